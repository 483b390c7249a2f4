"""Tasks on a Ray cluster, for every verb that has `--engine ray`.

A task is given some images and returns when what it writes is whole; a task whose worker dies is
run again, on another machine if its own is gone. Every node must see images, model and output.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
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

RETRIES = 5  # of one task, after its worker died
AHEAD = 4  # tasks that are waiting for each core or GPU of the cluster

Work = Callable[[Any, Sequence[ImageSource], Any], Any]


@dataclass(frozen=True)
class LoadRecipe:
    """How a worker gets the backbone: by name, checked against the fingerprint."""

    name: str
    size: tuple[int, int]
    positions: PositionRule | None
    fingerprint: str


def run_tasks(
    work: Work,
    shared: Any,
    parts: Sequence[Sequence[ImageSource]],
    extras: Sequence[Any],
    meter: Meter,
) -> list[Any]:
    """Run all tasks, see `finished_tasks`; give what each returned, in their order.

    Args:
        work: A function of a module, since workers import it.
        shared: What all tasks need; sent once.
        parts: Images of each task, as files.
        extras: What else each task needs.
        meter: Advances by the images of each finished task.
    """
    found: dict[int, Any] = {}
    with closing(finished_tasks(work, shared, parts, extras)) as tasks:
        for number, result in tasks:
            found[number] = result
            meter.advance(len(parts[number]))
    return [found[number] for number in range(len(parts))]


def finished_tasks(
    work: Work, shared: Any, parts: Sequence[Sequence[ImageSource]], extras: Sequence[Any]
) -> Generator[tuple[int, Any], None, None]:
    """Run `work(shared, images, extra)` for every part on a cluster.

    The cluster is the one at RAY_ADDRESS, or a local one made for it. If it has GPUs, every task is
    given one; else every task is given a core.

    Yields:
        The number of a part and what its task returned, as they finish.
    """
    if any(not isinstance(image.source, (str, Path)) for part in parts for image in part):
        raise StoreError("Ray workers read files; pass paths instead of images in memory.")
    with _cluster() as ray:
        room = ray.cluster_resources()
        gpus = 1 if room.get("GPU", 0) >= 1 else 0
        task = ray.remote(max_retries=RETRIES, num_cpus=1, num_gpus=gpus)(work)
        common = ray.put(shared)
        todo = iter(enumerate(zip(parts, extras, strict=True)))
        most = AHEAD * max(1, int(room.get("GPU" if gpus else "CPU", 1)))
        waiting: dict[Any, int] = {}
        while True:
            while len(waiting) < most and (following := next(todo, None)) is not None:
                number, (part, extra) = following
                waiting[task.remote(common, _absolute(part), extra)] = number
            if not waiting:
                return
            done, _ = ray.wait(list(waiting), num_returns=1)
            yield waiting.pop(done[0]), ray.get(done[0])


@contextmanager
def _cluster() -> Iterator[Any]:
    """Connect to a cluster; what goes wrong on it becomes one sentence."""
    try:
        import ray
    except ImportError as error:
        raise missing_extra("ray", "scale", "--engine ray") from error
    started_here = not ray.is_initialized()
    try:
        if started_here:
            ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
        yield ray
    except ray.exceptions.RayTaskError as error:
        cause = error.cause  # as_instanceof_cause() puts the worker's traceback into the message
        if isinstance(cause, ClearvitError):
            raise cause from error
        reason = (str(cause).splitlines() or [""])[0]
        raise StoreError(f"a Ray worker failed: {type(cause).__name__}: {reason}") from error
    except ray.exceptions.RayError as error:
        raise StoreError(
            f"Ray gave up: {error}. What is finished is kept; run the same command again."
        ) from error
    except ConnectionError as error:
        raise StoreError(f"there is no Ray cluster at RAY_ADDRESS: {error}") from error
    finally:
        if started_here:
            ray.shutdown()


def recipe_of(backbone: Backbone) -> LoadRecipe:
    """Describe a backbone so that another machine can load it."""
    positions = backbone.positions if isinstance(backbone, VitBackbone) else None
    return LoadRecipe(backbone.name, backbone.preprocessing.size, positions, backbone.fingerprint())


@functools.lru_cache(maxsize=1)
def load_once(recipe: LoadRecipe) -> Backbone:
    """Load the backbone once per worker process, on its GPU if the task was given one."""
    torch.set_num_threads(1)  # a task is given one core; tasks are what runs side by side
    device = "auto" if _has_gpu() else None
    backbone = load(recipe.name, size=recipe.size, positions=recipe.positions, device=device)
    if backbone.fingerprint() != recipe.fingerprint:
        raise StoreError(
            f"a worker loaded other weights under the name '{recipe.name}'. Save the backbone to a"
            " directory that every machine sees and load it as 'dir:PATH'."
        )
    return backbone


def _has_gpu() -> bool:
    import ray

    return bool(ray.get_gpu_ids())


def _absolute(images: Sequence[ImageSource]) -> list[ImageSource]:
    return [ImageSource(p.name, absolute_place(str(p.source))) for p in images]
