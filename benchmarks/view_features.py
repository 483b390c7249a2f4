"""Tokens of images under many sets of views, each view run once and gathered on several grids.

Used by finer.py. Features lie in WORK as float16 arrays, one file per split, row and model; a run
that was stopped goes on with the first missing row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import clearvit as cv
from clearvit.backbones.output import remove_directions, smooth_grid
from clearvit.datasets.splits import Split, load_image
from clearvit.probes.features import use_whole_image
from clearvit.views import Views, apply_view, gather, refine_by_image
from clearvit.views.guidance import denormalize
from clearvit.views.sampling import sample_views
from clearvit.views.shifting import white_of
from data import find_model

BATCH = 10  # views per forward pass


@dataclass(frozen=True)
class Recipe:
    """One row of a table: how the tokens of an image are made."""

    name: str
    passes: int = 1  # views
    sampler: str = "none"  # "none" is one pass over the image as it is
    scale: int = 1
    size: int | None = None  # pixels, where it differs from the table's
    directions: int = 0  # removed
    basis: str = "position"  # of these: "position", "uncentred" or "random" (the control)
    smooth: bool = False
    kernel: str = "tent"
    width: float | None = None
    guided: bool = False  # tokens refined by the image
    model: str | None = None  # another model than the table's, for `cv.load`

    @property
    def stored(self) -> str:
        """Name of the file: rows that differ only by steps after the gathering share one."""
        plain = self.width is None and self.kernel == "tent"
        kernel = "" if plain else f"-{self.kernel}{self.width}"
        guided = "-guided" if self.guided else ""
        other = f"-{self.name}" if self.model else ""
        views = f"{self.sampler}-{self.passes}-x{self.scale}-{self.size or 'own'}"
        return f"{views}{kernel}{guided}{other}"


class StoredFeatures:
    """What probes ask of `clearvit.probes.features.Features`, with steps taken on reading."""

    def __init__(self, path: Path, grid: tuple[int, int], size: tuple[int, int]) -> None:
        self._all, self.grid, self.size = np.load(path, mmap_mode="r"), grid, size
        self.steps: Callable[[Tensor], Tensor] = lambda patches: patches

    def __len__(self) -> int:
        return len(self._all)

    def patches(self, indices: Sequence[int]) -> Tensor:
        """Patch tokens (B, N, C), float32."""
        return self.steps(torch.from_numpy(self._all[list(indices)]).float())

    def map(self, indices: Sequence[int], *, cls: bool = False) -> Tensor:
        """Patch tokens as maps, (B, C, H, W)."""
        assert not cls
        return self.patches(indices).transpose(1, 2).unflatten(2, self.grid)


def stored_features(
    work: Path,
    split: Split,
    recipe: Recipe,
    backbone: cv.Backbone,
    size: int,
    bases: Mapping[str, Tensor],
) -> StoredFeatures:
    """Open the features of a row; `bases` are those of `Recipe.basis`."""
    height, width = backbone.fitting_size(recipe.size or size)
    own = backbone.grid_of((height, width))
    path = work / split.name / f"{recipe.stored}.npy"
    cells = np.load(path, mmap_mode="r").shape[1]
    scale = math.isqrt(cells // (own[0] * own[1]))  # also of a model with a head for fine tokens
    grid = (own[0] * scale, own[1] * scale)
    found = StoredFeatures(path, grid, (height, width))

    def steps(patches: Tensor) -> Tensor:
        if recipe.directions:
            patches = remove_directions(patches, bases[recipe.basis][: recipe.directions])
        return smooth_grid(patches, grid) if recipe.smooth else patches

    found.steps = steps
    return found


def extract(
    work: Path, split: Split, recipes: Sequence[Recipe], backbone: cv.Backbone, size: int
) -> None:
    """Compute what is missing of the rows; views that rows share are run once."""
    missing = {r.stored: r for r in recipes if not (work / split.name / f"{r.stored}.npy").exists()}
    groups: dict[tuple[object, ...], list[Recipe]] = {}
    for recipe in missing.values():
        phases = recipe.scale if recipe.scale > 2 else 2
        key = (recipe.sampler, recipe.passes, recipe.size, phases, recipe.model)
        groups.setdefault(key, []).append(recipe)
    (work / split.name).mkdir(parents=True, exist_ok=True)
    for number, group in enumerate(groups.values()):
        print(f"{split.name}: views {number + 1} of {len(groups)}: {group[0].stored}", flush=True)
        model = backbone if group[0].model is None else _other(group[0].model)
        _extract_group(work / split.name, split, group, model, size)


def _other(model: str) -> cv.Backbone:
    return use_whole_image(cv.load(find_model(model)))


def _extract_group(
    folder: Path, split: Split, group: Sequence[Recipe], backbone: cv.Backbone, size: int
) -> None:
    """Run one set of views on every image, and gather it as each row of the group asks."""
    first = group[0]
    pixel_size = backbone.fitting_size(first.size or size)
    grid = backbone.grid_of(pixel_size)
    views = _views(backbone, first, grid)
    white = white_of(backbone.preprocessing)
    arrays = {}
    for recipe in group:
        shape = (len(split), grid[0] * grid[1] * recipe.scale**2, backbone.width)
        path = folder / f"{recipe.stored}.part.npy"
        arrays[recipe] = np.lib.format.open_memmap(path, "w+", np.float16, shape)
    for index, path in enumerate(split.images):
        pixels = backbone.preprocessing(load_image(path), pixel_size)[None]
        shown = [apply_view(pixels, offset, flip, white) for offset, flip in views.pairs()]
        tokens = run(backbone, torch.cat(shown)).unflatten(1, grid)[None]
        for recipe, array in arrays.items():
            options = {"kernel": recipe.kernel, "width": recipe.width, "scale": recipe.scale}
            gathered = gather(tokens, views, patch=backbone.patch, **options)
            fine = gathered.map.permute(0, 3, 1, 2)
            if recipe.guided:
                fine = refine_by_image(
                    fine, denormalize(pixels, backbone.preprocessing), fine.shape[2:]
                )
            array[index] = fine[0].flatten(1).T.half().numpy()
    for recipe, array in arrays.items():
        array.flush()
        (folder / f"{recipe.stored}.part.npy").rename(folder / f"{recipe.stored}.npy")


def _views(backbone: cv.Backbone, recipe: Recipe, grid: tuple[int, int]) -> Views:
    if recipe.sampler == "none":
        return Views(torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, dtype=torch.bool))
    return sample_views(
        grid,
        recipe.passes,
        patch=backbone.patch,
        sampler=recipe.sampler,
        scale=recipe.scale,
        fraction=0.15,
        seed=0,
    )


@torch.inference_mode()
def run(backbone: cv.Backbone, pixels: Tensor) -> Tensor:
    """Final patch tokens of views, (n, N, C), in bfloat16 arithmetic."""
    parts = []
    with torch.autocast("cpu", torch.bfloat16):
        for some in pixels.split(BATCH):
            parts.append(backbone.forward(some).patches.float())
    return torch.cat(parts)
