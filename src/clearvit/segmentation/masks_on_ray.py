"""The same masks on a Ray cluster: one task for some images at a time.

A mask is renamed into place when it is whole and a task whose worker dies is run again. Every node
must see the images and the output directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clearvit.images import ImageSource, Skipped
from clearvit.progress import Meter
from clearvit.segmentation.mask_making import Making, make_masks
from clearvit.segmentation.segmenter import load_segmenter
from clearvit.shards.ray_tasks import load_once, recipe_of, run_tasks

PER_TASK = 64  # images


def make_on_ray(
    run: Making, images: Sequence[ImageSource], meter: Meter, folder: Path
) -> list[Skipped]:
    """Write masks on the cluster at RAY_ADDRESS, or on a local one made for it."""
    recipe = recipe_of(getattr(run.backbone, "inner", run.backbone))  # workers wrap it themselves
    parts = [images[start : start + PER_TASK] for start in range(0, len(images), PER_TASK)]
    paths = [{image.name: run.paths[image.name].absolute() for image in part} for part in parts]
    shared = (recipe, folder.absolute(), run.batch, run.strict)
    found = run_tasks(_make_part, shared, parts, paths, meter)
    return [bad for part in found for bad in part]


def _make_part(shared: Any, images: Sequence[ImageSource], paths: Any) -> list[Skipped]:
    recipe, folder, batch, strict = shared
    segmenter = load_segmenter(folder)
    run = Making(segmenter, segmenter.prepare(load_once(recipe)), paths, batch, strict)
    return make_masks(run, images, Meter(None, len(images)))
