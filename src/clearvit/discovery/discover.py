"""Boxes around the objects of images, without labels, in pixels of the original images."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from clearvit.artifacts.outliers import outlier_mask
from clearvit.backbones.backbone import Backbone
from clearvit.discovery.boxes import Box, Grid, GridObject, to_pixels
from clearvit.discovery.config import DiscoverConfig, Method
from clearvit.discovery.consensus_cut import consensus
from clearvit.discovery.discovery_features import (
    ImageBatch,
    Plan,
    make_plan,
    read_batches,
    read_features,
)
from clearvit.discovery.feature_choice import choose_features
from clearvit.discovery.normalized_cut import tokencut
from clearvit.discovery.seed_expansion import lost
from clearvit.errors import ImageError
from clearvit.images import Skipped
from clearvit.images.find import ImageInput, ImageSource, find_images
from clearvit.options import Size, with_options
from clearvit.progress import Progress

MOST_SHOWN = 8  # images in a notebook


@dataclass(frozen=True, repr=False)
class ImageObjects:
    """The K objects of one image, in the order they were found."""

    name: str
    boxes: tuple[Box, ...]  # (x0, y0, x1, y1) in pixels of the original image, ends exclusive
    scores: tuple[float, ...]  # comparable within one method only
    masks: Tensor  # (K, H, W) bool, on the grid
    size: Size  # (height, width) of the original image
    crop: Box  # the part of the image that the grid covers, in pixels
    degenerate: bool = False  # the features do not separate the patches; the box is meaningless

    def __repr__(self) -> str:
        boxes = ", ".join(f"({', '.join(f'{side:.0f}' for side in box)})" for box in self.boxes)
        return f"ImageObjects('{self.name}', {self.size[0]}x{self.size[1]} px, boxes {boxes})"


class Discoveries(list[ImageObjects]):
    """The objects of each good image, in order; `skipped` lists the bad images."""

    def __init__(
        self,
        found: Sequence[ImageObjects],
        skipped: Sequence[Skipped] = (),
        sources: Sequence[ImageSource] = (),
    ) -> None:
        super().__init__(found)
        self.skipped = tuple(skipped)
        first = {one.name for one in self[:MOST_SHOWN]}
        self._sources = {one.name: one.source for one in sources if one.name in first}

    def __repr__(self) -> str:
        boxes = sum(len(one.boxes) for one in self)
        return f"Discoveries({len(self)} images, {boxes} boxes, {len(self.skipped)} skipped)"

    def _repr_html_(self) -> str:
        """Show the boxes on the images in a notebook; where an image is gone, the masks."""
        from clearvit.discovery.discovery_page import draw_thumbnail
        from clearvit.report.notebook import card

        shown = self[:MOST_SHOWN]
        images = [(draw_thumbnail(one, self._sources.get(one.name)), one.name) for one in shown]
        rows = [
            (one.name, " ".join(f"{side:.0f}" for side in box), f"{score:.3f}")
            for one in self
            for box, score in zip(one.boxes, one.scores, strict=True)
        ]
        table = (("image", "box x0 y0 x1 y1, pixels", "score"), rows)
        return card(repr(self), images=images, table=table)

    def to_json(self) -> dict[str, Any]:
        """Give the boxes as JSON holds them."""
        listed = [
            {
                "name": one.name,
                "size": list(one.size),
                "boxes": [[round(side, 2) for side in box] for box in one.boxes],
                "scores": [round(score, 4) for score in one.scores],
                "degenerate": one.degenerate,
            }
            for one in self
        ]
        return {"images": listed}


@with_options(DiscoverConfig)
def discover(
    backbone: Backbone,
    images: Tensor | ImageInput,
    *,
    config: DiscoverConfig,
    progress: Progress | None = None,
) -> Discoveries:
    """Find the objects of images without labels.

    Images that cannot be read are skipped with a warning and listed in `.skipped`. Results do not
    depend on the batch size.

    Args:
        backbone: Any backbone; one that is not a ViT offers only its final tokens.
        images: A folder, a file, a pattern, a PIL image, a list of files and PIL images, or a
            normalized tensor (B, 3, height, width).
        config: Options as one object.
        progress: Called with the stage, images done and images in all.
    """
    sources = [] if isinstance(images, Tensor) else find_images(images)
    images = images if isinstance(images, Tensor) else sources
    if config.features == ("auto",):
        choice = choose_features(backbone, images, layers=config.layers, size=config.size)
        config = replace(config, features=choice.features)
        if progress:
            progress("features", 0, 0, f"features: {', '.join(choice.features)}")
    plan = make_plan(backbone, config)
    found: list[ImageObjects] = []
    skipped: list[Skipped] = []
    with warnings.catch_warnings(), torch.no_grad():
        warnings.filterwarnings("ignore", message=".*the box is meaningless")  # one warning below
        for batch in read_batches(backbone, images, config, skipped, progress):
            found += _search_batch(backbone, plan, batch)
    if not found:
        why = f": {skipped[0].name}: {skipped[0].reason}" if skipped else "; give at least one"
        raise ImageError(f"none of {len(skipped)} images can be read{why}.")
    _warn(found, skipped, plan.method)
    return Discoveries(found, skipped, sources)


def _search_batch(backbone: Backbone, plan: Plan, batch: ImageBatch) -> Iterator[ImageObjects]:
    features, norms, grid = read_features(backbone, plan, batch.pixels)
    for i, (name, size) in enumerate(zip(batch.names, batch.sizes, strict=True)):
        own = [feature[i] for feature in features]
        objects = search(plan, own, grid, None if norms is None else norms[i])
        crop = _visible_part(backbone, size, (batch.pixels.shape[2], batch.pixels.shape[3]))
        yield ImageObjects(
            name=name,
            boxes=tuple(_to_image(one.box, grid, crop) for one in objects),
            scores=tuple(one.score for one in objects),
            masks=torch.stack([one.mask for one in objects]),
            size=size,
            crop=crop,
            degenerate=objects[0].degenerate,
        )


def search(
    plan: Plan, features: Sequence[Tensor], grid: Grid, norms: Tensor | None
) -> list[GridObject]:
    """Find the objects of one image; features (N, C) each, norms (L, N)."""
    if plan.method == "lost":
        return [lost(features[0].cpu(), grid)]
    if plan.method == "tokencut":
        return [tokencut(features[0], grid)]
    artifacts = None if norms is None else outlier_mask(norms.float().cpu()).any(0)  # in any block
    return consensus(features, grid, objects=plan.objects, exclude=artifacts)


def _visible_part(backbone: Backbone, size: Size, seen: Size) -> Box:
    """Find the part of an image of (height, width) that the network sees."""
    height, width = size
    if backbone.preprocessing.fit != "crop":
        return 0.0, 0.0, float(width), float(height)
    across = min(width, height * seen[1] / seen[0])
    down = across * seen[0] / seen[1]
    left, upper = (width - across) / 2, (height - down) / 2
    return left, upper, left + across, upper + down


def _to_image(box: Sequence[float], grid: Grid, crop: Box) -> Box:
    left, upper, right, lower = crop
    x0, y0, x1, y1 = to_pixels(box, grid, (lower - upper, right - left))
    return left + x0, upper + y0, left + x1, upper + y1


def _warn(found: Sequence[ImageObjects], skipped: Sequence[Skipped], method: Method) -> None:
    """Warn once about meaningless boxes and skipped images."""
    void = sum(one.degenerate for one in found)
    if void:
        hint = "" if method == "consensus" else " Try other features or method='consensus'."
        warnings.warn(
            f"'{method}' could not separate the patches of {void} of {len(found)} images; their"
            f" boxes are meaningless.{hint}",
            stacklevel=4,
        )
    if skipped:
        bad = "; ".join(f"{one.name}: {one.reason}" for one in skipped[:5])
        more = f" and {len(skipped) - 5} more" if len(skipped) > 5 else ""
        warnings.warn(f"{len(skipped)} images were skipped: {bad}{more}", stacklevel=4)
