"""The same extraction on a Ray cluster: one task per shard.

A shard is renamed into place when it is whole and a task whose worker dies is run again, so
nothing is lost and nothing is doubled. Every node must see the images and the output directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clearvit.images import ImageSource
from clearvit.progress import Meter
from clearvit.shards.extract import Extraction, encode, write_shard
from clearvit.shards.ray_tasks import load_once, recipe_of, run_tasks
from clearvit.views.denoised import with_views


def run_on_ray(run: Extraction, numbers: Sequence[int], meter: Meter) -> None:
    """Write the missing shards on the cluster at RAY_ADDRESS, or on a local one made for it."""
    plan = run.plan
    recipe = recipe_of(getattr(run.backbone, "inner", run.backbone))  # workers wrap it themselves
    parts = [run.images[plan.members(number)] for number in numbers]
    shared = (recipe, plan, run.folder.absolute(), run.config)
    run_tasks(_write_one, shared, parts, numbers, meter)


def _write_one(shared: Any, images: Sequence[ImageSource], number: int) -> None:
    recipe, plan, folder, config = shared
    backbone = with_views(
        load_once(recipe), config.views, config.scale, refine=config.refine, batch=config.batch
    )
    run = Extraction(backbone, images, plan, folder, config)
    write_shard(plan.path(folder, number), list(encode(run, images)))
