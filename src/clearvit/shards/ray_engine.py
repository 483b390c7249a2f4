"""The same extraction on a Ray cluster: one task per shard.

A shard is renamed into place when it is whole and a task whose worker dies is run again, so
nothing is lost and nothing is doubled. Every node must see the images and the output directory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.load import load
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ClearvitError, StoreError, missing_extra
from clearvit.images import ImageSource
from clearvit.images.image_places import absolute_place
from clearvit.options import PositionRule
from clearvit.progress import Meter
from clearvit.shards.extract import Extraction, encode, write_shard
from clearvit.views.denoised import with_views

RETRIES = 5  # of one shard, after its worker died


@dataclass(frozen=True)
class LoadRecipe:
    """How a worker gets the backbone: by name, checked against the fingerprint."""

    name: str
    size: tuple[int, int]
    positions: PositionRule | None
    fingerprint: str


def run_on_ray(run: Extraction, numbers: Sequence[int], meter: Meter) -> None:
    """Write the missing shards on the cluster at RAY_ADDRESS, or on a local one made for it."""
    plan = run.plan
    recipe = recipe_of(getattr(run.backbone, "inner", run.backbone))  # workers wrap it themselves
    parts = [run.images[plan.members(number)] for number in numbers]
    shared = (recipe, plan, run.folder.absolute(), run.config)
    run_tasks(_write_one, shared, parts, numbers, meter)


def run_tasks(
    work: Callable[[Any, Sequence[ImageSource], Any], Any],
    shared: Any,
    parts: Sequence[Sequence[ImageSource]],
    extras: Sequence[Any],
    meter: Meter,
) -> list[Any]:
    """Run `work(shared, images, extra)` for every part on a cluster; give what each returned.

    Args:
        work: A function of a module, since workers import it.
        shared: What all tasks need; sent once.
        parts: Images of each task, as files.
        extras: What else each task needs.
        meter: Advances by the images of each finished task.
    """
    try:
        import ray
    except ImportError as error:
        raise missing_extra("ray", "scale", "--engine ray") from error
    if any(not isinstance(image.source, (str, Path)) for part in parts for image in part):
        raise StoreError("Ray workers read files; pass paths instead of images in memory.")
    started_here = not ray.is_initialized()
    if started_here:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        task = ray.remote(max_retries=RETRIES, num_cpus=1)(work)
        common = ray.put(shared)
        waiting = {
            task.remote(common, _absolute(part), extra): number
            for number, (part, extra) in enumerate(zip(parts, extras, strict=True))
        }
        found: dict[int, Any] = {}
        while waiting:
            done, _ = ray.wait(list(waiting), num_returns=1)
            number = waiting.pop(done[0])
            found[number] = ray.get(done[0])
            meter.advance(len(parts[number]))
        return [found[number] for number in range(len(parts))]
    except ray.exceptions.RayTaskError as error:
        cause = error.as_instanceof_cause()
        raise cause if isinstance(cause, ClearvitError) else StoreError(str(error)) from error
    except ray.exceptions.RayError as error:
        raise StoreError(
            f"Ray gave up: {error}. What is finished is kept; run the same command again."
        ) from error
    finally:
        if started_here:
            ray.shutdown()


def recipe_of(backbone: Backbone) -> LoadRecipe:
    """Describe a backbone so that another machine can load it."""
    positions = backbone.positions if isinstance(backbone, VitBackbone) else None
    return LoadRecipe(backbone.name, backbone.preprocessing.size, positions, backbone.fingerprint())


def _write_one(shared: Any, images: Sequence[ImageSource], number: int) -> None:
    recipe, plan, folder, config = shared
    backbone = with_views(
        load_once(recipe), config.views, config.scale, refine=config.refine, batch=config.batch
    )
    run = Extraction(backbone, images, plan, folder, config)
    write_shard(plan.path(folder, number), list(encode(run, images)))


@functools.lru_cache(maxsize=1)
def load_once(recipe: LoadRecipe) -> Backbone:
    """Load the backbone once per worker process."""
    torch.set_num_threads(1)  # a task is given one core; shards are what runs side by side
    backbone = load(recipe.name, size=recipe.size, positions=recipe.positions)
    if backbone.fingerprint() != recipe.fingerprint:
        raise StoreError(
            f"a worker loaded other weights under the name '{recipe.name}'. Save the backbone to a"
            " directory that every machine sees and load it as 'dir:PATH'."
        )
    return backbone


def _absolute(images: Sequence[ImageSource]) -> list[ImageSource]:
    return [ImageSource(p.name, absolute_place(str(p.source))) for p in images]
