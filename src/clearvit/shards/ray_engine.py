"""The same extraction on a Ray cluster: one task per shard.

A shard is renamed into place when it is whole and a task whose worker dies is run again, so
nothing is lost and nothing is doubled. Every node must see the images and the output directory.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.load import load
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ClearvitError, StoreError, missing_extra
from clearvit.images import ImageSource
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
    try:
        import ray
    except ImportError as error:
        raise missing_extra("ray", "scale", "--engine ray") from error
    if any(not isinstance(image.source, (str, Path)) for image in run.images):
        raise StoreError("Ray workers read files; pass paths instead of images in memory.")
    plan = run.plan
    recipe = recipe_of(getattr(run.backbone, "inner", run.backbone))  # workers wrap it themselves
    started_here = not ray.is_initialized()
    if started_here:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        task = ray.remote(max_retries=RETRIES, num_cpus=1)(_write_one)
        options = ray.put((recipe, plan, run.folder.absolute(), run.config))
        waiting = {
            task.remote(options, number, _absolute(run.images[plan.members(number)])): number
            for number in numbers
        }
        while waiting:
            done, _ = ray.wait(list(waiting), num_returns=1)
            ray.get(done[0])
            meter.advance(len(plan.names[plan.members(waiting.pop(done[0]))]))
    except ray.exceptions.RayTaskError as error:
        cause = error.as_instanceof_cause()
        raise cause if isinstance(cause, ClearvitError) else StoreError(str(error)) from error
    except ray.exceptions.RayError as error:
        raise StoreError(
            f"Ray gave up: {error}. Finished shards are kept; run the same command again."
        ) from error
    finally:
        if started_here:
            ray.shutdown()


def recipe_of(backbone: Backbone) -> LoadRecipe:
    """Describe a backbone so that another machine can load it."""
    positions = backbone.positions if isinstance(backbone, VitBackbone) else None
    return LoadRecipe(backbone.name, backbone.preprocessing.size, positions, backbone.fingerprint())


def _write_one(options: Any, number: int, images: Sequence[ImageSource]) -> None:
    recipe, plan, folder, config = options
    backbone = with_views(
        _load_once(recipe), config.views, config.scale, refine=config.refine, batch=config.batch
    )
    run = Extraction(backbone, images, plan, folder, config)
    write_shard(plan.path(folder, number), list(encode(run, images)))


@functools.lru_cache(maxsize=1)
def _load_once(recipe: LoadRecipe) -> Backbone:
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
    return [ImageSource(p.name, Path(str(p.source)).absolute()) for p in images]
