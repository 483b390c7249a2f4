"""What a directory of tokens will hold: decided and written down before the first image is read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clearvit.runs import claim

INDEX = "index.json"
FILES = ("shard-[0-9][0-9][0-9][0-9][0-9]*.safetensors", INDEX)


@dataclass(frozen=True)
class Plan:
    """Everything that decides the bytes of the shards; JSON can hold it."""

    model: str
    fingerprint: str
    size: tuple[int, int]  # (height, width) in pixels
    layers: tuple[int, ...]  # ascending, from 0
    norm: bool
    dtype: str
    batch: int
    shard: int
    names: tuple[str, ...]
    listing: str  # hash of the names and contents of the files

    @property
    def shards(self) -> int:
        """How many files the tokens fill."""
        return -(-len(self.names) // self.shard)

    def members(self, number: int) -> slice:
        """Images of one shard."""
        return slice(number * self.shard, (number + 1) * self.shard)

    def path(self, out: Path, number: int) -> Path:
        """File of one shard."""
        return out / f"shard-{number:05d}.safetensors"

    def to_json(self) -> dict[str, Any]:
        """Give the plan as JSON holds it: lists instead of tuples."""
        content: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return content


def claim_tokens(out: Path, plan: Plan, *, overwrite: bool) -> None:
    """Take a directory for this plan, or continue one that was begun with the same plan."""
    content = plan.to_json()
    claim(out, content, kind="tokens", files=FILES, overwrite=overwrite, describe=_difference)


def _difference(keys: list[str], theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    if {"names", "listing"} & set(keys):
        counts = len(theirs.get("names", ())), len(ours["names"])
        changed = (
            f"{counts[0]} images then, {counts[1]} now" if counts[0] != counts[1] else "edited"
        )
        return f"the images are not the same ({changed})"
    if "fingerprint" in keys and theirs.get("model") == ours["model"]:
        return f"the weights of '{ours['model']}' are not the same"
    shown = [key for key in keys if key != "fingerprint"]
    return ", ".join(f"{key} was {theirs.get(key)}, now {ours[key]}" for key in shown)
