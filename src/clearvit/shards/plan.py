"""What a directory of tokens will hold: decided and written down before the first image is read."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from clearvit.errors import StoreError
from clearvit.files import remove_leftovers, write_json
from clearvit.images import Picture

FORMAT = 1
PLAN, INDEX = "plan.json", "index.json"

Engine = Literal["local", "ray"]


@dataclass(frozen=True)
class TokenConfig:
    """Options of `save_tokens` and of `clearvit tokens`."""

    size: int | tuple[int, int] | None = None  # pixels; None is the backbone's own size
    layers: tuple[int, ...] = ()  # blocks to keep beside the final tokens
    norm: bool = True  # apply the final norm, to the layers too
    dtype: Literal["float16", "float32"] = "float16"  # on disk
    batch: int = 16  # images per forward pass
    shard: int = 64  # images per file, rounded up to whole batches
    decoders: int | None = None  # threads that read ahead; None: 1 beside a CPU network, else 4
    strict: bool = False  # the first bad file ends the run
    overwrite: bool = False  # throw away what another run left in the directory
    engine: Engine = "local"  # "ray" spreads the shards over a cluster


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
    listing: str  # hash of the names and sizes of the files

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
        return {"format": FORMAT, **content}


def listing_of(pictures: Sequence[Picture]) -> str:
    """Hash the names and sizes of the files, so that a changed folder is noticed."""
    digest = hashlib.sha256()
    for picture in pictures:
        digest.update(f"{picture.name}\0{_bytes(picture)}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def claim(out: Path, plan: Plan, *, overwrite: bool) -> None:
    """Take a directory for this plan, or continue one that was begun with the same plan."""
    remove_leftovers(out)
    if overwrite:
        _clear(out)
    if not (out / PLAN).exists():
        if out.exists() and any(out.iterdir()):
            raise StoreError(
                f"'{out}' is not empty and holds no tokens of clearvit. Choose another --out."
            )
        write_json(out / PLAN, plan.to_json())
        return
    theirs, ours = read_json(out / PLAN), plan.to_json()
    differing = [key for key in ours if theirs.get(key) != ours[key]]
    if differing:
        raise StoreError(
            f"'{out}' was made by another run: {_difference(differing, theirs, ours)}."
            " Choose another --out, or --overwrite to start again."
        )


def read_json(path: Path) -> dict[str, Any]:
    """Read one of the directory's own JSON files."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read '{path}': {error}") from error
    if not isinstance(content, dict):
        raise StoreError(f"'{path}' is not what clearvit wrote.")
    return content


def _difference(keys: list[str], theirs: dict[str, Any], ours: dict[str, Any]) -> str:
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


def _clear(out: Path) -> None:
    """Remove what an earlier run wrote, and nothing else."""
    if not (out / PLAN).exists():
        return
    for path in [*out.glob("shard-*.safetensors"), out / INDEX, out / PLAN]:
        path.unlink(missing_ok=True)


def _bytes(picture: Picture) -> int:
    if not isinstance(picture.source, (str, Path)):
        return 0
    try:
        return os.stat(picture.source).st_size
    except OSError:
        return -1  # broken links are met, and listed, when they are read


def check_space(out: Path, needed: int) -> None:
    """Refuse to begin what the disk cannot hold, `needed` in bytes."""
    existing = next(p for p in [out, *out.absolute().parents] if p.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise StoreError(
            f"the tokens need {needed / 1e9:.1f} GB and '{existing}' has {free / 1e9:.1f} GB free."
            " Use float16, a smaller --size or fewer --layers, or another disk."
        )
