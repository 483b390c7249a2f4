"""The experiments of "Vision Transformers Need Registers" on any ViT, beside the published numbers.

Darcet et al., arXiv 2309.16588, section 2.2: are artifacts redundant patches, do they forget
where they are and what they saw, and do they know what the whole image shows?
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

import torch
from torch import Tensor

from clearvit.artifacts.neighbors import (
    NAN,
    Contrast,
    neighbor_contrast,
    neighbor_similarity,
)
from clearvit.artifacts.token_probes import Probe, Row, class_probe, pixel_probe, position_probe
from clearvit.backbones.preprocessing import Preprocessing
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ImageError
from clearvit.images import ImageSource, Skipped, batches, spread_evenly
from clearvit.options import Size
from clearvit.report.page import replace_nonfinite

MAX_FULL_BYTES = 200e6  # bytes of tokens from which on they are kept in half precision
MAX_BYTES = 1e9  # bytes of tokens and pixels in all; fewer images are used beyond
PER_CLASS = 8  # images of a class wanted at least, when not all images can be used
MAX_HALF = 65504.0  # the largest number in half precision; massive activations may exceed it

OutlierRule = Callable[[Tensor], Tensor]
"""Marks outliers by their norms before the final norm: (I, N) -> (I, N) bool."""


@dataclass(frozen=True)
class Published:
    """What the paper says, in the form of our own results.

    Attributes:
        name: The probe or contrast it belongs to.
        metrics: Columns.
        rows: One per kind of token; empty if the paper gives no numbers.
        checked: Whether the numbers were compared with the text of the paper.
        finding: The claim in words.
    """

    name: str
    metrics: tuple[str, ...]
    rows: tuple[Row, ...]
    checked: bool
    finding: str


@dataclass(frozen=True)
class Experiments:
    """All results on one model.

    Attributes:
        model: Name of the model.
        block: Block whose tokens were probed, from 0.
        size: (height, width) of the images in pixels.
        grid: (H, W) in patches.
        images: Number of images used.
        fraction: Fraction of patch tokens that are outliers, 0..1.
        skipped: Images that could not be read.
        redundancy: Neighbor similarity after patch embedding.
        position: The position probe.
        pixels: The pixel probe.
        classes: The class probe; None without labels.
        published: What the paper says on each of them.
        differences: How its protocol differs from ours.
    """

    model: str
    block: int
    size: Size
    grid: tuple[int, int]
    images: int
    fraction: float
    skipped: tuple[Skipped, ...]
    redundancy: Contrast
    position: Probe
    pixels: Probe
    classes: Probe | None
    published: tuple[Published, ...]
    differences: str

    def to_json(self) -> dict[str, Any]:
        """Return plain dicts, lists, numbers and strings; unknown numbers become None."""
        plain: dict[str, Any] = replace_nonfinite(dataclasses.asdict(self))
        return plain


@dataclass(frozen=True)
class ProbeSettings:
    """What the experiments are run on."""

    size: int | Size | None = None  # pixels to resize to, or (height, width); else the backbone's
    labels: Sequence[int] | None = None  # of each image, see `labels_of`; else no class probe
    seeds: int = 3  # runs of each probe; numbers are mean and standard deviation over them
    limit: int = 64  # most images used, spread over all of them
    batch: int = 4  # images per forward pass; only memory and speed depend on it


def run_experiments(
    backbone: VitBackbone,
    sources: Sequence[ImageSource],
    *,
    block: int,
    outlier_rule: OutlierRule,
    settings: ProbeSettings,
    advance: Callable[[int], None] | None = None,
) -> Experiments:
    """Run the experiments in one pass over the images, then on the CPU.

    Args:
        backbone: The model.
        sources: What to look at; unreadable ones are skipped. At least 64 make good numbers.
        block: Block whose output to probe, from 0 or from -1 backwards, before the final norm.
        outlier_rule: Marks outliers by the norms of the patch tokens, (I, N) -> (I, N) bool.
        settings: Size, labels, and how much is used.
        advance: Told how many more images are done.
    """
    seen = _collect(backbone, sources, block, settings, advance)
    outlier, seeds = outlier_rule(seen.norms), settings.seeds
    return Experiments(
        model=backbone.name,
        block=seen.block,
        size=backbone.fitting_size(settings.size),
        grid=seen.grid,
        images=len(seen.names),
        fraction=float(outlier.float().mean()),
        skipped=seen.skipped,
        redundancy=neighbor_contrast(seen.similarity, outlier),
        position=position_probe(seen.tokens, outlier, seen.grid, seeds=seeds),
        pixels=pixel_probe(seen.tokens, seen.levels, outlier, seeds=seeds),
        classes=_probe_classes(seen, outlier, seeds),
        published=PUBLISHED,
        differences=_differences(backbone, seen.block, len(seen.names)),
    )


def _probe_classes(seen: _Seen, outlier: Tensor, seeds: int) -> Probe | None:
    if seen.labels is None:
        return None
    whole = {} if seen.cls is None else {"class": seen.cls}
    return class_probe(seen.tokens, outlier, seen.labels, descriptors=whole, seeds=seeds)


def labels_of(sources: Sequence[ImageSource]) -> list[int] | None:
    """Read classes off the folders: "cat/1.jpg" is of class "cat", as in an ImageFolder.

    Returns:
        Numbers of the classes in the order of their names; None unless there are two classes
        and each has two images.
    """
    folders = [PurePosixPath(source.name).parent.name for source in sources]
    counts = Counter(folders)
    if len(counts) < 2 or min(counts.values()) < 2 or "" in counts:
        return None
    number = {folder: i for i, folder in enumerate(sorted(counts))}
    return [number[folder] for folder in folders]


def choose_images(labels: Sequence[int], limit: int) -> list[int]:
    """Choose at most `limit` images, spread evenly; of few classes rather than one of each.

    Args:
        labels: Class of each image; all the same if there are no classes.
        limit: Most images.

    Returns:
        Their numbers, ascending.
    """
    if len(labels) <= limit:
        return list(range(len(labels)))
    sizes, count = Counter(labels), max(2, limit // PER_CLASS)
    while sum(sizes[kind] for kind in spread_evenly(sorted(sizes), count)) < limit:
        count += 1
    kinds = spread_evenly(sorted(sizes), count)
    members = [[i for i, label in enumerate(labels) if label == kind] for kind in kinds]
    chosen: list[int] = []
    for left, group in zip(range(len(members), 0, -1), sorted(members, key=len), strict=True):
        chosen += spread_evenly(
            group, (limit - len(chosen)) // left
        )  # small classes leave more room
    return sorted(chosen)


@dataclass(frozen=True)
class _Seen:
    """What one pass over I images leaves, all on the CPU."""

    names: list[str]
    skipped: tuple[Skipped, ...]
    grid: tuple[int, int]
    tokens: Tensor  # (I, N, C) of the block, float32 or float16
    norms: Tensor  # (I, N), float32
    levels: Tensor  # (I, N, D) uint8
    similarity: Tensor  # (I, N)
    cls: Tensor | None  # (I, C) of the block
    labels: Tensor | None  # (I,)
    block: int  # from 0


def _collect(
    backbone: VitBackbone,
    sources: Sequence[ImageSource],
    block: int,
    settings: ProbeSettings,
    advance: Callable[[int], None] | None,
) -> _Seen:
    """Choose images and run them through the network.

    Raises:
        ImageError: No image can be read, or labels and images do not match.
    """
    labels = settings.labels
    if labels is not None and len(labels) != len(sources):
        raise ImageError(f"{len(labels)} labels for {len(sources)} images; give one for each.")
    size = backbone.fitting_size(settings.size)
    (index,) = backbone.block_indices([block])
    room = int(MAX_BYTES / _bytes_per_image(backbone, size))
    chosen = choose_images(labels or [0] * len(sources), max(1, min(settings.limit, room)))
    seen = _run_images(
        backbone, [sources[i] for i in chosen], index, size, batch=settings.batch, advance=advance
    )
    if labels is None:
        return seen
    label_of = {sources[i].name: labels[i] for i in chosen}
    return replace(seen, labels=torch.tensor([label_of[name] for name in seen.names]))


def _run_images(
    backbone: VitBackbone,
    sources: Sequence[ImageSource],
    block: int,
    size: Size,
    *,
    batch: int,
    advance: Callable[[int], None] | None,
) -> _Seen:
    height, width = (length // step for length, step in zip(size, backbone.patch, strict=True))
    half = 4 * len(sources) * height * width * backbone.width > MAX_FULL_BYTES
    names: list[str] = []
    skipped: list[Skipped] = []
    parts: list[tuple[Tensor, ...]] = []
    stream = batches(sources, lambda image: backbone.preprocessing(image, size), size=batch)
    with closing(stream):
        for read in stream:
            names += read.names
            skipped += read.skipped
            if read.items:
                parts.append(_measure_batch(backbone, torch.stack(read.items), block, half))
            if advance:
                advance(len(read.names) + len(read.skipped))
    if not parts:
        reason = f" ({skipped[0].name}: {skipped[0].reason})" if skipped else ""
        raise ImageError(f"none of {len(sources)} images can be read{reason}.")
    tokens, norms, levels, similarity, cls = map(torch.cat, zip(*parts, strict=True))
    return _Seen(
        names=names,
        skipped=tuple(skipped),
        grid=(height, width),
        tokens=tokens,
        norms=norms,
        levels=levels,
        similarity=similarity,
        cls=cls if cls.shape[1] else None,
        labels=None,
        block=block,
    )


@torch.no_grad()
def _measure_batch(
    backbone: VitBackbone, pixels: Tensor, block: int, half: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Give tokens, norms, levels, similarity and class token of one batch, as in `_Seen`."""
    given = pixels.to(backbone.device, backbone.dtype)
    tokens = backbone.forward(given, layers=[block], norm=False).layers[block]
    patches = tokens.patches.float().cpu()
    cls = patches.new_empty(len(patches), 0) if tokens.cls is None else tokens.cls.float().cpu()
    embedded = backbone.embed_patches(given).permute(0, 3, 1, 2).float()
    return (
        patches.clamp(-MAX_HALF, MAX_HALF).half() if half else patches,
        patches.norm(dim=-1),
        patch_levels(pixels, backbone.preprocessing, backbone.patch),
        neighbor_similarity(embedded).flatten(1).cpu(),
        cls,
    )


def patch_levels(pixels: Tensor, preprocessing: Preprocessing, patch: Size) -> Tensor:
    """Undo the normalization and cut into patches: (B, 3, height, width) -> (B, N, D) uint8.

    The D = 3 * patch height * patch width values of a patch are 8-bit levels, channel by channel.
    """
    mean, std = (torch.tensor(v)[:, None, None] for v in (preprocessing.mean, preprocessing.std))
    levels = (pixels * std + mean).mul(255).round().clamp(0, 255).byte()
    cells: Tensor = levels.unflatten(3, (-1, patch[1])).unflatten(2, (-1, patch[0]))
    return cells.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # from (B, 3, H, p, W, p)


def _bytes_per_image(backbone: VitBackbone, size: Size) -> int:
    patches = math.prod(size) // math.prod(backbone.patch)
    return patches * (2 * backbone.width + 3 * math.prod(backbone.patch))


# What the paper says, for DINOv2 ViT-g/14.


def _published_row(kind: str, means: Sequence[float], sds: Sequence[float] | None = None) -> Row:
    return Row(kind, tuple(means), tuple(sds or [NAN] * len(means)), count=None)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))


PUBLISHED = (
    Published(
        name="redundancy",
        metrics=(),
        rows=(),
        checked=True,
        finding="Densities only: outlier positions pile up near a cosine of 1.",
    ),
    Published(
        name="position",
        metrics=("position top-1 %", "mean distance in patches"),
        rows=(_published_row("normal", (41.7, 0.79)), _published_row("outlier", (22.8, 5.09))),
        checked=False,
        finding="Outliers hold less of where they are.",
    ),
    Published(
        name="pixels",
        metrics=("pixel L2 error, unit not given",),
        rows=(_published_row("normal", (18.38,)), _published_row("outlier", (25.23,))),
        checked=False,
        finding="Outliers hold less of what they saw.",
    ),
    Published(
        name="class",
        metrics=tuple(
            "IN1k P205 Airc CF10 CF100 CUB Cal101 Cars DTD Flow Food Pets SUN VOC".split()
        ),
        rows=(
            _published_row(
                "class",
                _numbers("86.0 66.4 87.3 99.4 94.5 91.3 96.9 91.5 85.2 99.7 94.7 96.9 78.6 89.1"),
            ),
            _published_row(
                "normal",
                _numbers("65.8 53.1 17.1 97.1 81.3 18.6 73.2 10.8 63.1 59.5 74.2 47.8 37.7 70.8"),
                _numbers("0.1 0.3 0.5 0.1 0.3 0.6 1.3 0.3 0.8 1.2 0.3 0.5 0.3 0.5"),
            ),
            _published_row(
                "outlier",
                _numbers("69.0 55.1 79.1 99.3 93.7 84.9 97.6 85.2 84.9 99.6 93.5 94.1 78.5 89.7"),
                _numbers("0.7 1.0 0.5 0.0 0.3 2.1 0.7 0.9 0.9 0.0 0.2 0.2 0.2 0.1"),
            ),
        ),
        checked=True,
        finding="One outlier says more about the class of its image than one normal token.",
    ),
)


def _differences(backbone: VitBackbone, block: int, images: int) -> str:
    return (
        "The paper probes the last block of DINOv2 ViT-g/14, with outliers of a norm above 150,"
        f" on whole datasets; here: block {block} of 0..{backbone.depth - 1} of {backbone.name},"
        f" outliers by the rule of this diagnosis, {images} images. Fewer images lower every"
        " score, position top-1 most: compare kinds of token, not our numbers with the paper's."
        " Outliers that recur in the same cells, as in models with positional artifacts, are easy"
        " to place for that reason alone; their distance tells more than their top-1."
        " The paper discloses no recipe for its position and pixel probes nor the unit of the"
        " pixel error: compare the ratio of outlier to normal. Its class probe has one accuracy"
        " per dataset, ours cross-validates on the folders given; our class token is that of the"
        " same block."
    )
