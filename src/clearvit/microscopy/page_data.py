"""The data of a page: a manifest of plain JSON, and chunks of text that it names by number."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import PurePosixPath
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from clearvit import __version__
from clearvit.backbones.backbone import Backbone
from clearvit.errors import ImageError
from clearvit.images import ImageSource, Skipped, batches
from clearvit.microscopy.channels import (
    EXPONENT,
    Basis,
    encode_channels,
    fit_basis,
    measure_error,
)
from clearvit.microscopy.coding import encode_attention, encode_norms, encode_photo, pack
from clearvit.microscopy.norm_verdict import judge_norms
from clearvit.microscopy.page_plan import ModelPlan, PagePlan, Part, base_grid, coarse_grid
from clearvit.microscopy.sight import Sight, collect_sights
from clearvit.microscopy.turns import Turn, at_once
from clearvit.options import Size

FORMAT, VERSION = "clearvit-microscope", 1
FITTED = 12  # images on which the directions are fitted, spread over all of them

Data = dict[str, Any]


@dataclass
class PageData:
    """A manifest and its chunks, which are filled model by model."""

    manifest: Data
    chunks: list[str] = field(default_factory=list)

    def add(self, text: str) -> int:
        """Keep a chunk and give its number."""
        self.chunks.append(text)
        return len(self.chunks) - 1

    @property
    def bytes(self) -> int:
        """The size of the chunks."""
        return sum(map(len, self.chunks))


@dataclass(frozen=True)
class Photos:
    """The readable images of a page."""

    sources: list[ImageSource]
    sizes: list[tuple[int, int]]  # (width, height) in pixels, upright
    encoded: list[str]  # JPEG, base64
    skipped: tuple[Skipped, ...]


def read_photos(sources: Sequence[ImageSource]) -> Photos:
    """Decode every image once; those that cannot be read are left out.

    Raises:
        ImageError: There is none that can be read.
    """
    count, found = len(sources), []
    skipped: list[Skipped] = []

    def prepare(image: Image.Image) -> tuple[tuple[int, int], str]:
        return image.size, encode_photo(image, count)

    for batch in batches(sources, prepare, size=4):
        found += list(zip(batch.names, batch.items, strict=True))
        skipped += batch.skipped
    if not found:
        raise ImageError(f"none of {count} images could be read: {skipped[0].reason}.")
    by_name = dict(found)
    return Photos(
        sources=[source for source in sources if source.name in by_name],
        sizes=[size for _, (size, _) in found],
        encoded=[photo for _, (_, photo) in found],
        skipped=tuple(skipped),
    )


def begin_page(photos: Photos, plan: PagePlan, title: str) -> PageData:
    """Start a page with its images."""
    data = PageData(
        {
            "format": FORMAT,
            "version": VERSION,
            "clearvit": __version__,
            "title": title,
            "exponent": EXPONENT,
            "leftOut": list(plan.left_out),
            "images": [],
            "models": [],
        }
    )
    names = shown_names([source.name for source in photos.sources])
    for name, (width, height), photo in zip(names, photos.sizes, photos.encoded, strict=True):
        entry = {"name": name, "width": width, "height": height, "photo": data.add(photo)}
        data.manifest["images"].append(entry)
    return data


@dataclass(frozen=True)
class PageModel:
    """One model of a page: what it is called and what is stored of it."""

    backbone: Backbone
    label: str
    plan: ModelPlan


def add_model(
    data: PageData,
    model: PageModel,
    photos: Photos,
    advance: Callable[[int], None],
    turn: Turn = at_once,
) -> None:
    """Run all images through a model and add what they show."""
    backbone, plan, count = model.backbone, model.plan, len(photos.sources)
    order = _spread(count)
    sights = collect_sights(backbone, [photos.sources[i] for i in order], plan, turn)
    stream = _advancing(sights, advance)
    first = list(islice(stream, FITTED))
    bases = {key: _fit(first, key, plan) for key in first[0].features}
    channels = data.manifest.setdefault("channels", 0)
    coder = _ModelCoder(data, backbone, plan, bases, count)
    coder.state_errors(first)
    for i, sight in zip(order, chain(first, stream), strict=True):
        coder.add(i, sight)
    data.manifest["channels"] = max(channels, *(basis.count for basis in bases.values()))
    entry = coder.finish()
    boxes = [_box(backbone, size, plan.size) for size in photos.sizes]
    whole = all(box == [0.0, 0.0, 1.0, 1.0] for box in boxes)
    entry |= {"name": backbone.name, "label": model.label, "boxes": None if whole else boxes}
    data.manifest["models"].append(entry)


def _fit(sights: Sequence[Sight], key: tuple[int, Part], plan: ModelPlan) -> Basis:
    return fit_basis([sight.features[key] for sight in sights], plan.channels)


def _advancing(sights: Iterator[Sight], advance: Callable[[int], None]) -> Iterator[Sight]:
    for sight in sights:
        advance(1)
        yield sight


class _ModelCoder:
    """Encode the sights of one model, image by image."""

    def __init__(
        self,
        data: PageData,
        backbone: Backbone,
        plan: ModelPlan,
        bases: dict[tuple[int, Part], Basis],
        count: int,
    ) -> None:
        self.data, self.backbone, self.plan, self.bases = data, backbone, plan, bases
        self.last = backbone.depth - 1
        self.count, self.grid = count, base_grid(backbone, plan.size)
        self.layers: dict[int, Data] = {
            block: self._layer(block) for block in sorted({b for b, _ in bases})
        }
        self.norms: list[Tensor | None] = [None] * count

    def _layer(self, block: int) -> Data:
        return {
            "block": None if block < 0 else block,
            "output": block in (-1, self.last),
            "facets": {},
            "prefixAttention": None,
            "patchAttention": None,
            "kept": None,
        }

    def state_errors(self, sights: Sequence[Sight]) -> None:
        """Describe every facet, with the error of its cosines."""
        for (block, part), basis in self.bases.items():
            error = measure_error([sight.features[block, part] for sight in sights], basis)
            self.layers[block]["facets"][part] = {
                "grid": list(sights[0].grids[block, part]),
                "channels": basis.count,
                "of": basis.directions.shape[0],
                "error": {key: _short(value) for key, value in asdict(error).items()},
                "low": [_short(value) for value in basis.low.tolist()],
                "high": [_short(value) for value in basis.high.tolist()],
                "chunks": [0] * self.count,
            }

    def add(self, i: int, sight: Sight) -> None:
        """Encode one image."""
        for (block, part), tokens in sight.features.items():
            coded = encode_channels(tokens, self.bases[block, part])
            chunk = self.data.add(pack(coded.to_bytes()))
            self.layers[block]["facets"][part]["chunks"][i] = chunk
        for block, rows in sight.prefix_attention.items():
            entry = self._entry(block, "prefixAttention", self.grid)
            entry["chunks"][i] = self.data.add(pack(encode_attention(rows)))
            entry["onPrefix"][i] = [_short(value) for value in sight.on_prefix[block].tolist()]
        for block, cells in sight.patch_attention.items():
            entry = self._entry(block, "patchAttention", coarse_grid(self.grid)[1])
            entry["chunks"][i] = self.data.add(pack(encode_attention(cells)))
        if sight.kept is not None and not bool(sight.kept.all()):
            entry = self._entry(self.last, "kept", self.grid)
            entry["chunks"][i] = self.data.add(pack(sight.kept.byte().numpy().tobytes()))
        self.norms[i] = sight.norms

    def _entry(self, block: int, key: str, grid: tuple[int, int]) -> Data:
        layer = self.layers[block]
        if layer[key] is None:
            layer[key] = {"grid": list(grid), "chunks": [None] * self.count}
            if key == "prefixAttention":
                layer[key] |= {"rows": _row_names(self.backbone), "onPrefix": [[]] * self.count}
        found: Data = layer[key]
        return found

    def finish(self) -> Data:
        """Give the entry of the model, with the verdict on its norms."""
        height, width = self.plan.size
        return {
            "depth": max(self.backbone.depth, 0),
            "width": self.backbone.width,
            "size": [height, width],
            "patch": list(self.backbone.patch),
            "norms": self._norms(),
            "layers": [self.layers[block] for block in sorted(self.layers)],
        }

    def _norms(self) -> Data | None:
        known = [norms for norms in self.norms if norms is not None]
        if len(known) < self.count:
            return None
        norms = torch.stack(known)  # (I, L, N)
        findings, depth = judge_norms(norms), norms.shape[1]
        flagged: list[dict[str, list[int]]] = [{} for _ in known]
        cutoffs: list[Data] = [{} for _ in range(depth)]
        for finding in findings:
            for block, outliers in zip(finding.blocks, finding.outliers, strict=True):
                cutoffs[block][finding.side] = _short(outliers.cutoff)
                for i, row in enumerate(outliers.mask(norms[:, block])):
                    flagged[i].setdefault(str(block), []).extend(row.nonzero()[:, 0].tolist())
        coded = [encode_norms(own) for own in known]
        return {
            "grid": list(self.grid),
            "chunks": [self.data.add(pack(content)) for content, _ in coded],
            "medians": [medians for _, medians in coded],
            "cutoffs": cutoffs,
            "flagged": flagged,
            "onset": findings[0].blocks[0] if findings else None,
            "peak": findings[0].peak if findings else None,
            "verdict": " ".join(finding.sentence(depth) for finding in findings)
            or "No high- or low-norm tokens in these images.",
        }


def _row_names(backbone: Backbone) -> list[str]:
    """Name the prefix tokens; registers are counted from 1."""
    names, registers = [], 0
    for kind in backbone.prefix_names:
        registers += kind == "register"
        names.append(f"register {registers}" if kind == "register" else f"{kind} token")
    return names


def _box(backbone: Backbone, image: tuple[int, int], size: Size) -> list[float]:
    """Give the part of an image that the model sees, in fractions: left, top, right, bottom."""
    if backbone.preprocessing.fit == "squash":
        return [0.0, 0.0, 1.0, 1.0]
    width, height = image
    seen_width = min(width, height * size[1] / size[0])
    across, down = seen_width / width, seen_width * size[0] / size[1] / height
    return [_short(v) for v in ((1 - across) / 2, (1 - down) / 2, (1 + across) / 2, (1 + down) / 2)]


def _spread(count: int) -> list[int]:
    """Order images so that the first ones are spread over all of them."""
    step = -(-count // FITTED)
    return [i for start in range(step) for i in range(start, count, step)]


def _short(value: float) -> float:
    return float(f"{value:.6g}") if math.isfinite(value) else 0.0


def shown_names(names: Sequence[str]) -> list[str]:
    """Name images on the page: absolute paths become relative to their common folder."""
    if not all(PurePosixPath(name).is_absolute() for name in names):
        return list(names)
    folder = os.path.commonpath([os.path.dirname(name) for name in names])
    return [os.path.relpath(name, folder) for name in names]


def short_labels(names: Sequence[str]) -> list[str]:
    """Shorten names of models to what tells them apart, at most 40 characters."""
    ends = [PurePosixPath(name.partition("dir:")[2] or name).name or name for name in names]
    shown = [end if ends.count(end) == 1 else name for end, name in zip(ends, names, strict=True)]
    cut = [name if len(name) <= 40 else f"…{name[-39:]}" for name in shown]
    return [
        label if cut.count(label) == 1 else f"{label} #{cut[: i + 1].count(label)}"
        for i, label in enumerate(cut)
    ]
