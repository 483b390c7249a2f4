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
from clearvit.backbones.positions import PositionRule
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ClearvitError, StoreError, missing_extra
from clearvit.images import Picture
from clearvit.shards.extract import Advance, encode, write_shard
from clearvit.shards.plan import Plan, TokenConfig

RETRIES = 5  # of one shard, after its worker died


@dataclass(frozen=True)
class Recipe:
    """How a worker gets the backbone: by name, checked against the fingerprint."""

    name: str
    size: tuple[int, int]
    positions: PositionRule | None
    fingerprint: str


def run_on_ray(
    backbone: Backbone,
    pictures: Sequence[Picture],
    plan: Plan,
    numbers: Sequence[int],
    out: Path,
    config: TokenConfig,
    report: Advance,
) -> None:
    """Write the missing shards on the cluster at RAY_ADDRESS, or on a local one made for it."""
    try:
        import ray
    except ImportError as error:
        raise missing_extra("ray", "scale", "--engine ray") from error
    if any(not isinstance(picture.source, (str, Path)) for picture in pictures):
        raise StoreError("Ray workers read files; pass paths instead of images in memory.")
    recipe = recipe_of(backbone)
    started_here = not ray.is_initialized()
    if started_here:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        task = ray.remote(max_retries=RETRIES, num_cpus=1)(_write_one)
        options = ray.put((recipe, plan, config, out.absolute()))
        waiting = {
            task.remote(options, number, _absolute(pictures[plan.members(number)])): number
            for number in numbers
        }
        while waiting:
            done, _ = ray.wait(list(waiting), num_returns=1)
            ray.get(done[0])
            report(len(plan.names[plan.members(waiting.pop(done[0]))]))
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


def recipe_of(backbone: Backbone) -> Recipe:
    """Describe a backbone so that another machine can load it."""
    positions = backbone.positions if isinstance(backbone, VitBackbone) else None
    return Recipe(backbone.name, backbone.preprocessing.size, positions, backbone.fingerprint())


def _write_one(options: Any, number: int, pictures: Sequence[Picture]) -> None:
    recipe, plan, config, out = options
    backbone = _backbone(recipe)
    write_shard(plan.path(out, number), list(encode(backbone, pictures, plan, config)))


@functools.lru_cache(maxsize=1)
def _backbone(recipe: Recipe) -> Backbone:
    """Load the backbone once per worker process."""
    torch.set_num_threads(1)  # a task is given one core; shards are what runs side by side
    backbone = load(recipe.name, size=recipe.size, positions=recipe.positions)
    if backbone.fingerprint() != recipe.fingerprint:
        raise StoreError(
            f"a worker loaded other weights under the name '{recipe.name}'. Save the backbone to a"
            " directory that every machine sees and load it as 'dir:PATH'."
        )
    return backbone


def _absolute(pictures: Sequence[Picture]) -> list[Picture]:
    return [Picture(p.name, Path(str(p.source)).absolute()) for p in pictures]
