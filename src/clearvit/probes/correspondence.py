"""Patches matched between images by their nearest token.

Geometric correspondence: between an image and a known affine warp of it. Semantic correspondence:
between two images that show the same class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.datasets.splits import MaskSplit, load_image
from clearvit.errors import ImageError
from clearvit.images import ImageSource
from clearvit.options import Size
from clearvit.precision import autocast
from clearvit.probes.features import Features
from clearvit.probes.metrics import pck
from clearvit.probes.patches import patch_labels
from clearvit.progress import Progress

Floats = NDArray[np.float64]
Pair = tuple[int, int, int]  # index of an image, index of its partner, class that both show
MAJORITY = 0.5  # a patch has the class of more than this fraction of its pixels
NO_CLASS = -1
Grid = tuple[int, int]
ANGLE, ZOOM, SHIFT = math.radians(30), 1.25, 0.15  # largest changes of a sampled warp


def sample_warp(seed: int) -> Tensor:
    """Sample an affine map from the warped image to the image, (2, 3), in coordinates -1 to 1."""
    rng = np.random.default_rng(seed)
    angle, zoom = rng.uniform(-ANGLE, ANGLE), ZOOM ** rng.uniform(-1, 1)
    flip = 1.0 if rng.random() < 0.5 else -1.0
    cosine, sine = zoom * math.cos(angle), zoom * math.sin(angle)
    shift = rng.uniform(-2 * SHIFT, 2 * SHIFT, size=2)
    return torch.tensor(
        [[flip * cosine, -sine, shift[0]], [flip * sine, cosine, shift[1]]], dtype=torch.float32
    )


def warp_images(pixels: Tensor, warp: Tensor) -> Tensor:
    """Warp images (B, 3, height, width); pixels outside are reflected in."""
    grid = F.affine_grid(
        warp[None].expand(len(pixels), -1, -1), list(pixels.shape), align_corners=False
    )
    return F.grid_sample(
        pixels, grid, mode="bilinear", padding_mode="reflection", align_corners=False
    )


def patch_centers(grid: Grid) -> Tensor:
    """Give the center of each patch, (N, 2): x, y from -1 to 1."""
    rows, columns = (((torch.arange(n) + 0.5) * 2 / n) - 1 for n in grid)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], dim=1)


def map_points(points: Tensor, warp: Tensor) -> Tensor:
    """Map points (M, 2) of the image to the warped image, (M, 2)."""
    mapped: Tensor = torch.linalg.solve(warp[:, :2], (points - warp[:, 2]).T)
    return mapped.T


def match_patches(source: Tensor, target: Tensor) -> Tensor:
    """Find for each source token (M, C) the target token (N, C) with the highest cosine, (M,)."""
    return (F.normalize(source, dim=1) @ F.normalize(target, dim=1).T).argmax(1)


def score_matches(
    source: Tensor, target: Tensor, grid: Grid, warp: Tensor, size: Size, alphas: Sequence[float]
) -> NDArray[np.float64]:
    """Match all patches of an image that the warped image still shows.

    Args:
        source: Patch tokens of the image, (N, C).
        target: Patch tokens of the warped image, (N, C).
        grid: (H, W) in patches.
        warp: Affine map from the warped image to the image, (2, 3).
        size: (height, width) in pixels.
        alphas: A match counts within alpha * max(height, width) of its true position.

    Returns:
        PCK in percent for each alpha, and 1, (A + 1,).
    """
    points = patch_centers(grid)
    truth = map_points(points, warp)
    visible = (truth.abs() <= 1).all(1)
    if not bool(visible.any()):
        return np.zeros(len(alphas) + 1)
    scale = np.array([size[1], size[0]]) / 2  # -1 to 1 is the whole side
    predicted = points[match_patches(source[visible], target)].numpy() * scale
    pixels = truth[visible].numpy() * scale
    return np.array([*(pck(predicted, pixels, alpha * max(size)) for alpha in alphas), 1.0])


def measure_warps(
    backbone: Backbone,
    images: Sequence[ImageSource],
    *,
    size: int | Size | None,
    alphas: Sequence[float],
    seed: int,
    progress: Progress | None = None,
) -> NDArray[np.float64]:
    """Warp and match every image, rows of `matched_row`, (V, A + 1)."""
    height_width = backbone.fitting_size(size)
    rows = []
    for index, source in enumerate(images):
        image = load_image(Path(str(source.source)))
        pixels = backbone.preprocessing(image, height_width)[None]
        warp = sample_warp(seed * 1_000_003 + index)
        both = torch.cat([pixels, warp_images(pixels, warp)])
        with torch.no_grad(), autocast(backbone.device, backbone.bf16):
            tokens = backbone.forward(both.to(backbone.device, backbone.dtype))
        patches = tokens.patches.float().cpu()
        rows.append(score_matches(patches[0], patches[1], tokens.grid, warp, height_width, alphas))
        if progress:
            progress("images", index + 1, len(images))
    return np.stack(rows)


def patch_classes(
    mask: NDArray[np.int64], grid: tuple[int, int], classes: int
) -> NDArray[np.int64]:
    """Give each patch the class of most of its pixels, (N,); -1 where none has more than half."""
    fractions, valid = patch_labels(mask, grid, classes)
    best = (fractions * valid[:, None]).max(1)
    labels: NDArray[np.int64] = best.indices.where(best.values > MAJORITY, NO_CLASS).numpy()
    return labels


def sample_pairs(shown: Sequence[set[int]], seed: int) -> list[Pair]:
    """Sample for each image a class that another image shows too, and one such image.

    Args:
        shown: The classes of each image.
        seed: Seed of the sample.
    """
    rng = np.random.default_rng(seed)
    members: dict[int, list[int]] = {}
    for index, classes in enumerate(shown):
        for label in classes:
            members.setdefault(label, []).append(index)
    pairs = []
    for index, classes in enumerate(shown):
        shared = sorted(label for label in classes if len(members[label]) > 1)
        if shared:
            label = shared[int(rng.integers(len(shared)))]
            others = [other for other in members[label] if other != index]
            pairs.append((index, others[int(rng.integers(len(others)))], label))
    return pairs


def score_pair(
    source: Tensor,
    source_labels: NDArray[np.int64],
    target: Tensor,
    target_labels: NDArray[np.int64],
    label: int,
) -> Floats:
    """Match the patches of one class to the nearest patches of another image.

    Args:
        source: Patch tokens of the image, (N, C).
        source_labels: Their classes, (N,).
        target: Patch tokens of the other image, (M, C).
        target_labels: Their classes, (M,).
        label: The class that both show.

    Returns:
        Percent of matches that land in the class, percent at random, and 1, (3,).
    """
    found = target_labels[match_patches(source[source_labels == label], target).numpy()]
    return np.array([100 * np.mean(found == label), 100 * np.mean(target_labels == label), 1.0])


def measure_pairs(features: Features, split: MaskSplit, *, seed: int = 0) -> Floats:
    """Match every image with a partner, rows of `score_pair`, (V, 3); background is no class."""
    first = int(split.classes[0] == "background")
    grid, count = features.grid, len(split.classes)
    labels = [patch_classes(split.read(i), grid, count) for i in range(len(split))]
    shown = [{int(label) for label in np.unique(some) if label >= first} for some in labels]
    pairs = sample_pairs(shown, seed)
    if not pairs:
        raise ImageError(
            f"no two images of split '{split.name}' in '{split.root}' show the same class; more"
            " images are needed."
        )
    rows = np.zeros((len(split), 3))
    for index, partner, label in pairs:
        source, target = (features.patches([i])[0] for i in (index, partner))
        rows[index] = score_pair(source, labels[index], target, labels[partner], label)
    return rows
