"""Read tokens back without loading what was not asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from clearvit.backbones.tokens import PerBlock, Tokens
from clearvit.errors import StoreError
from clearvit.files import read_json
from clearvit.images import Skipped
from clearvit.runs import FORMAT, PLAN
from clearvit.schema import Rule, check_content, flag, list_of, text, whole
from clearvit.shards.plan import INDEX


def _row(value: Any) -> str:
    """Expect the name of an image, the number of its shard and the row in it."""
    right = isinstance(value, list) and len(value) == 3 and isinstance(value[0], str)
    right = right and all(type(one) is int and 0 <= one < 1 << 40 for one in value[1:])
    return "" if right else "rows of [name, shard, row] were expected"


_PAIR = list_of(whole(1, 1 << 20), 2, 2)
RULES: dict[str, Rule] = {  # of INDEX
    "model": text,
    "fingerprint": text,
    "norm": flag,
    "grid": _PAIR,
    "size": _PAIR,
    "layers": list_of(whole(0, 511), 0, 512),
    "depth": whole(0, 512),
    "prefix_names": list_of(text, 0, 4096),
    "images": list_of(_row, 0, 1 << 40),
    "skipped": list_of(list_of(text, 2, 2), 0, 1 << 40),
}


def open_tokens(path: str | Path) -> TokenStore:
    """Open a directory that `clearvit tokens` wrote; nothing but its index is read yet."""
    folder = Path(path)
    if not (folder / INDEX).exists():
        if (folder / PLAN).exists():
            raise StoreError(
                f"'{folder}' is not finished. Run the same 'clearvit tokens' command again; it"
                " continues where it stopped."
            )
        raise StoreError(
            f"'{folder}' holds no tokens. Make some: clearvit tokens MODEL FOLDER --out DIR"
        )
    return TokenStore(folder)


def read_header(path: Path) -> dict[str, Any]:
    """Read names and bad files of one shard."""
    try:
        with safe_open(path, framework="pt") as shard:
            header: dict[str, Any] = json.loads(shard.metadata()["clearvit"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"'{path}' is damaged ({error}). Delete it and run the same command again."
        ) from error
    return header


def is_whole(path: Path) -> bool:
    """Tell whether a shard is there and not cut off; only its header is read."""
    try:
        with safe_open(path, framework="pt") as shard:
            return shard.metadata() is not None
    except (OSError, SafetensorError):
        return False


class TokenStore(Sequence[Tokens]):
    """Tokens of many images on disk; indexing reads only the images asked for.

    Attributes:
        names: Name of every image, in order.
        skipped: Files that could not be read, with the reason.
        grid: (H, W) in patches.
        layers: Blocks that were kept beside the final tokens.
        model: Name of the model that made them.
    """

    def __init__(self, folder: Path) -> None:
        index = read_json(folder / INDEX)
        if index.get("format") != FORMAT:
            raise StoreError(f"'{folder}' was written by another version of clearvit.")
        where = str(folder / INDEX)
        check_content(index, RULES, where=where, error=StoreError, ignore_unknown=True)
        self.folder = folder
        self.model: str = index["model"]
        self.fingerprint: str = index["fingerprint"]
        self.normed: bool = index["norm"]
        self.grid: tuple[int, int] = (index["grid"][0], index["grid"][1])
        self.scale: int = index.get("scale", 1)
        self.size: tuple[int, int] = (index["size"][0], index["size"][1])
        self.layers: tuple[int, ...] = tuple(index["layers"])
        self.depth: int = index["depth"]
        self.prefix_names: tuple[str, ...] = tuple(index["prefix_names"])
        self.names: list[str] = [row[0] for row in index["images"]]
        self.skipped: list[Skipped] = [Skipped(*entry) for entry in index["skipped"]]
        self._locations: list[tuple[int, int]] = [(row[1], row[2]) for row in index["images"]]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int | slice) -> Tokens:  # type: ignore[override]
        """Read one image (a batch of 1) or a slice of them, in the stored precision."""
        if isinstance(index, slice):
            return self.read(range(len(self))[index])
        return self.read([range(len(self))[index]])

    def __iter__(self) -> Iterator[Tokens]:
        for index in range(len(self)):
            yield self[index]

    def batches(self, size: int = 64) -> Iterator[Tokens]:
        """Go through all images, `size` at a time."""
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def read(self, indices: Sequence[int]) -> Tokens:
        """Read the tokens of some images, in the order given."""
        if not indices:
            raise StoreError("no images were asked for.")
        tensors = self._tensors(indices)
        inner = {
            block: self._tokens(tensors[f"layer.{block}.patches"], tensors[f"layer.{block}.prefix"])
            for block in self.layers
        }
        return self._tokens(tensors["patches"], tensors["prefix"], PerBlock(inner, self.depth))

    def _tokens(
        self, patches: Tensor, prefix: Tensor, layers: PerBlock[Tokens] | None = None
    ) -> Tokens:
        return Tokens(
            patches=patches,
            prefix=prefix,
            grid=self.grid,
            scale=self.scale,
            normed=self.normed,
            prefix_names=self.prefix_names,
            layers=layers or PerBlock(),
        )

    def _tensors(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """Gather rows; every shard is opened once and its runs of rows are read in one piece."""
        pieces: dict[str, list[Tensor]] = {}
        order: list[int] = []
        by_shard: dict[int, list[tuple[int, int]]] = {}
        for position, index in enumerate(indices):
            number, row = self._locations[index]
            by_shard.setdefault(number, []).append((row, position))
        for number, wanted in by_shard.items():
            path = self.folder / f"shard-{number:05d}.safetensors"
            with _open_shard(path) as shard:
                keys = list(shard.keys())
                for run in _runs(sorted(wanted)):
                    order += [position for _, position in run]
                    rows = slice(run[0][0], run[-1][0] + 1)
                    for key in keys:
                        pieces.setdefault(key, []).append(shard.get_slice(key)[rows])
        back = torch.tensor(order).argsort()
        tensors = {key: torch.cat(parts) for key, parts in pieces.items()}
        stems = ("", *(f"layer.{block}." for block in self.layers))
        expected = {f"{stem}{kind}" for stem in stems for kind in ("patches", "prefix")}
        if not expected <= set(tensors) or any(
            tensor.ndim != 3 or len(tensor) != len(order) for tensor in tensors.values()
        ):
            raise StoreError(
                f"the shards in '{self.folder}' do not hold what {INDEX} says. Make the tokens"
                " again."
            )
        return {key: tensor[back] for key, tensor in tensors.items()}

    def __repr__(self) -> str:
        return f"TokenStore('{self.folder}', {len(self)} images, grid {self.grid}, '{self.model}')"


def _runs(wanted: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Cut sorted (row, position) pairs into runs of consecutive rows."""
    run: list[tuple[int, int]] = []
    for row, position in wanted:
        if run and row != run[-1][0] + 1:
            yield run
            run = []
        run.append((row, position))
    yield run


def _open_shard(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise StoreError(
            f"'{path}' cannot be read ({error}). Delete it and run 'clearvit tokens' again."
        ) from error
