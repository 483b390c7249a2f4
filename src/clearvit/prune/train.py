"""Learn which patches to keep: DynamicViT's predictors (Rao et al., NeurIPS 2021)."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError, StoreError, TrainingError, closest
from clearvit.files import remove_leftovers, write_json
from clearvit.images import Picture, Skipped, find_images
from clearvit.prune.budgets import Plan, planned
from clearvit.prune.config import LABELS, OBJECTIVES, PruneConfig
from clearvit.prune.lessons import Class, Lessons
from clearvit.prune.losses import Weights
from clearvit.prune.masked import check_can_hide
from clearvit.prune.pictures import labels_of
from clearvit.prune.prune import checked, prune
from clearvit.prune.pruned import PrunedBackbone
from clearvit.prune.pupil import Pupil
from clearvit.prune.saved import load_pruned, save_pruned
from clearvit.prune.settle import settled
from clearvit.shards.plan import listing_of, read_json
from clearvit.training.loop import FitConfig, accelerator_for, check_share, fit
from clearvit.training.order import Order
from clearvit.training.pictures import check_enough, readable, split
from clearvit.training.run import claim
from clearvit.training.state import State

TRAINING, RUN, SETTLING = "training", "run", "settling"  # directories, one in the other
RESULT = "training.json"
BEGINNING = 5 / 30  # share of the epochs that warm up, with the backbone locked
FORESEE, SETTLE = 4, 4  # epochs, where nothing else is asked for
END = 0.05  # share of the learning rate that is left at the end
WITHOUT_EFFECT = ("overwrite", "recompute", "objective", "labels")  # on the result; or resolved

Report = Callable[[str, int, int, str], None]
"""Called with what is done now, how much of it, of how much, and how it goes."""


@dataclass(frozen=True)
class Aims:
    """What the options come to for a model and its pictures."""

    logits: bool  # the output is a classifier's
    labels: Sequence[int] | None
    unlock: bool
    foresee: int  # epochs
    settle: int  # epochs


@dataclass(frozen=True)
class Job:
    """A training whose every word was checked."""

    dense: VitBackbone
    plan: Plan
    config: PruneConfig
    pictures: Sequence[Picture]
    skipped: Sequence[Skipped]
    aims: Aims


def train_predictors(
    backbone: Backbone,
    images: str | Path | Iterable[object],
    *,
    out: str | Path | None = None,
    keep: float | Sequence[float] = 0.7,
    stages: Sequence[int] | None = None,
    config: PruneConfig | None = None,
    report: Report | None = None,
) -> PrunedBackbone:
    """Train predictors that choose the patches to keep, taught by the dense model.

    With a classifier and labels this is DynamicViT; without labels its cross-entropy is left out;
    without a classifier the class token (or pooled patches) and the kept patches are held to those
    of the dense model. The given backbone is left as it was.

    Args:
        backbone: A ViT. Of a pruned one, the model it was made of.
        images: A folder, a file, a pattern or a list of these. A folder with one folder for each
            class of the model's classifier has labels.
        out: Directory for the result, which `clearvit.load("dir:OUT")` loads. A killed run goes on
            when called again with the same arguments. Without it nothing is kept.
        keep: A share for rho, rho^2, rho^3, or one share of the patches for each stage.
        stages: Blocks before which patches leave; 3, 6, 9 of 12 by default.
        config: Size, epochs, rates and so on.
        report: Told what is going on, for a progress bar.
    """
    job = _job(backbone, images, keep, stages, config or PruneConfig(), report)
    if out is not None and job.dense.blueprint is None:
        raise ModelError(
            f"'{job.dense.name}' cannot be saved: its architecture is not known to timm. Train"
            " without out."
        )
    with _directory(out) as folder:
        return _done(job, folder, report)


def _job(
    backbone: Backbone,
    images: str | Path | Iterable[object],
    keep: float | Sequence[float],
    stages: Sequence[int] | None,
    config: PruneConfig,
    report: Report | None,
) -> Job:
    """Check all that can be checked before the work."""
    dense = backbone.dense if isinstance(backbone, PrunedBackbone) else checked(backbone)
    plan = planned(
        dense.depth,
        keep=keep,
        stages=stages,
        scorer=None,
        fill=config.fill,
        budget="fixed",
        average=config.average,
    )
    _check(dense, plan, config)
    tell = None if report is None else functools.partial(report, "check")
    pictures, skipped = readable(find_images(images), dense, tell)
    check_enough(len(pictures), config.validation, config.batch)
    return Job(dense, plan, config, pictures, skipped, _aims(dense, images, pictures, config))


def _done(job: Job, folder: Path, report: Report | None) -> PrunedBackbone:
    """Train, or finish what an earlier run began in the folder, and write the result."""
    accelerator = accelerator_for(job.dense.device)
    check_share(job.config.batch, accelerator.num_processes)
    decided = _decided(job)
    if accelerator.is_main_process:
        _claim(folder, decided, job.config)
    accelerator.wait_for_everyone()
    finished = _restored(job.dense, folder, decided)
    if finished is not None:
        return finished
    lessons = _lessons(job, accelerator.device)
    before, state = _trained(lessons, folder / TRAINING / RUN, accelerator, report)
    pupil, plan, fill, later = lessons.pupil, job.plan, None, None
    if job.aims.settle:
        settling, later = settled(
            lessons,
            folder / TRAINING / RUN / SETTLING,
            accelerator,
            report,
            epochs=job.aims.settle,
            average=job.config.average is not False,
        )
        plan, fill = settling.pruned.plan, settling.fill
    if job.aims.unlock:
        pupil.network.requires_grad_(True)
    dense = pupil.backbone if job.aims.unlock else job.dense
    pruned = PrunedBackbone(dense, plan, pupil.predictors, fill)
    if accelerator.is_main_process and job.dense.blueprint is not None:
        save_pruned(pruned, folder)
        write_json(folder / RESULT, _result(decided, before, state, later, job.skipped))
    accelerator.wait_for_everyone()
    return pruned


def _lessons(job: Job, device: torch.device) -> Lessons:
    dense, config = job.dense, job.config
    if dense.device != device:  # another GPU for each process
        dense = dense.around(copy.deepcopy(dense.network).to(device), dense.blueprint)
    training, held = split(len(job.pictures), config.validation)
    pupil = Pupil(
        dense,
        job.plan,
        weights=Weights(ratio=config.ratio_weight),
        logits=job.aims.logits,
        unlock=job.aims.unlock,
        per=config.ratio,
        recompute=config.recompute,
        seed=config.seed,
    )
    size = dense.fitting_size(config.size)
    taken = Class(job.pictures, job.aims.labels, training, held, size)
    steps = len(training) // config.batch
    ahead = job.aims.foresee * steps
    begin = ahead or _beginning(config) * steps
    return Lessons(pupil, taken, config, begin=begin, foreseeing=ahead, device=device)


def _trained(
    lessons: Lessons, folder: Path, accelerator: Accelerator, report: Report | None
) -> tuple[dict[str, float], State]:
    """Train; also tell what the best scorer without training reaches on the held-out pictures."""
    config, plan = lessons.config, lessons.pupil.plan
    order = Order(len(lessons.taken.training), config.batch, config.seed)
    fitting = FitConfig(
        epochs=config.epochs + lessons.foreseeing // order.steps,
        batch=config.batch,
        micro=config.micro or config.batch,
        warmup=order.steps if lessons.foreseeing else _beginning(config) * order.steps,
        end=END,
        patience=config.patience,
        clip=config.clip,
        precision=config.precision,
        seed=config.seed,
    )
    untrained = prune(lessons.pupil.teacher, keep=plan.keep, stages=plan.stages, fill=plan.fill)
    before = lessons.judged(untrained)
    tell = None if report is None else functools.partial(report, "train")
    return before, fit(lessons, order, fitting, folder, accelerator, tell)


def _beginning(config: PruneConfig) -> int:
    """Epochs of warm-up, in which an unlocked backbone does not change yet."""
    return round(BEGINNING * config.epochs)


def _aims(
    dense: VitBackbone,
    images: str | Path | Iterable[object],
    pictures: Sequence[Picture],
    config: PruneConfig,
) -> Aims:
    outputs = int(dense.network.num_classes)
    # the head of CLIP is a projection beside a text tower, no classifier
    logits = outputs > 0 and dense.text is None
    if config.objective != "auto":
        logits = config.objective == "logits"
    if logits and not outputs:
        raise TrainingError(
            f"'{dense.name}' has no classifier; use objective='tokens', which needs none."
        )
    labels = labels_of(images, pictures, config.labels, classes=outputs if logits else 0)
    unlock = labels is not None if config.unlock is None else config.unlock
    foresee = FORESEE * (labels is None) if config.foresee is None else config.foresee
    settle = SETTLE * (unlock and labels is None) if config.settle is None else config.settle
    return Aims(logits, labels, unlock, foresee, settle)


def _check(dense: VitBackbone, plan: Plan, config: PruneConfig) -> None:
    """Refuse, before any work, what cannot be done."""
    if any(share == 1 for share in plan.keep):
        raise TrainingError(
            f"keep is {list(plan.keep)}; where everybody stays there is nothing to learn. Use"
            " shares below 1."
        )
    check_can_hide(dense, plan.stages)
    for name, value, allowed in (
        ("objective", config.objective, OBJECTIVES),
        ("labels", config.labels, LABELS),
    ):
        if value not in allowed:
            known = ", ".join(allowed)
            raise TrainingError(f"{name} is '{value}'; use {known}.{closest(value, allowed)}")
    for name in ("epochs", "batch"):
        if getattr(config, name) < 1:
            raise TrainingError(f"{name} is {getattr(config, name)}; give at least 1.")
    for name in ("foresee", "settle"):
        count = getattr(config, name)
        if count is not None and count < 0:
            raise TrainingError(f"{name} is {count}; give a number of epochs, 0 for none.")
    if not config.lr > 0:
        raise TrainingError(f"lr is {config.lr}; give a positive number.")
    if not 0 < config.validation < 1:
        raise TrainingError(f"validation is {config.validation}; give a share in (0, 1).")
    if not 0 <= config.smoothing < 1:
        raise TrainingError(f"smoothing is {config.smoothing}; give a share in [0, 1).")


def _decided(job: Job) -> dict[str, Any]:
    """Write down all that decides the weights, for a resumed run to compare."""
    dense, config = job.dense, job.config
    options = dataclasses.asdict(config)
    content = {
        "model": dense.name,
        "fingerprint": dense.fingerprint(),
        "images": len(job.pictures),
        "listing": listing_of(job.pictures),
        **{key: value for key, value in options.items() if key not in WITHOUT_EFFECT},
        "size": dense.fitting_size(config.size),
        "keep": job.plan.keep,
        "stages": job.plan.stages,
        "logits": job.aims.logits,
        "labelled": job.aims.labels is not None,
        "unlock": job.aims.unlock,
        "foresee": job.aims.foresee,
        "settle": job.aims.settle,
    }
    plain: dict[str, Any] = json.loads(json.dumps(content))
    return plain


def _claim(folder: Path, decided: Mapping[str, Any], config: PruneConfig) -> None:
    if folder.exists() and any(folder.iterdir()) and not (folder / TRAINING).exists():
        raise StoreError(
            f"'{folder}' is not empty and holds no training of ours. Choose another --out."
        )
    remove_leftovers(folder)  # of a run that was killed while it wrote its result
    claim(folder / TRAINING / RUN, decided, overwrite=config.overwrite)


def _restored(
    dense: VitBackbone, folder: Path, decided: Mapping[str, Any]
) -> PrunedBackbone | None:
    """Give the model of a finished run, or None if there is none."""
    if not (folder / RESULT).exists() or read_json(folder / RESULT).get("plan") != decided:
        return None
    try:
        saved = load_pruned(folder)
    except ModelError:  # a file of the result was removed: write it again from the training
        return None
    if decided["unlock"]:
        network = saved.network.to(dense.device, dense.dtype)
        dense = dense.around(network, saved.dense.blueprint)
    return PrunedBackbone(dense, saved.plan, saved.predictors, saved.learned_fill)


def _result(
    decided: Mapping[str, Any],
    before: dict[str, float],
    state: State,
    settling: State | None,
    skipped: Sequence[Skipped],
) -> dict[str, Any]:
    last = state if settling is None else settling
    after = next(row for row in last.history if row["epoch"] == last.best_epoch)
    return {
        "plan": dict(decided),
        "before": before,
        "after": after,
        "best_epoch": last.best_epoch,
        "epochs": state.history,
        "settling": [] if settling is None else settling.history,
        "skipped": [{"name": bad.name, "reason": bad.reason} for bad in skipped],
    }


@contextlib.contextmanager
def _directory(out: str | Path | None) -> Iterator[Path]:
    """Give the output directory, or one that vanishes."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="clearvit-") as temporary:
        yield Path(temporary)
