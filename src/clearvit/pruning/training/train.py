"""Train which patches to keep: DynamicViT's predictors (Rao et al., NeurIPS 2021)."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from clearvit.backbones.vit import VitBackbone
from clearvit.errors import TrainingError
from clearvit.files import write_json
from clearvit.images import ImageSource, Skipped, find_images, listing_of
from clearvit.progress import Progress
from clearvit.pruning.config import DEFAULT_SCORER, PruneConfig
from clearvit.pruning.pruned import PrunedBackbone
from clearvit.pruning.pruned_files import save_pruned
from clearvit.pruning.pruning_plan import Plan, make_plan
from clearvit.pruning.training.finetune import PrunedStudent, finetune
from clearvit.pruning.training.folder_labels import read_labels
from clearvit.pruning.training.masked import check_maskable
from clearvit.pruning.training.masked_student import MaskedStudent
from clearvit.pruning.training.predictor_task import PredictorTask, TrainingImages
from clearvit.pruning.training.trained_speed import find_speed
from clearvit.runs import claim, claim_files, output_directory
from clearvit.training.held_out import check_batch_fits, filter_readable, split_held_out
from clearvit.training.loop import BEST, STATE, FitConfig, accelerator_for, check_divisible, fit
from clearvit.training.order import BatchOrder
from clearvit.training.state import State

TRAINING, FINETUNE = "training", "finetune"  # directories, one in the other
RESULT = "training.json"
FREEZE = 5 / 30  # fraction of the epochs in which the rate rises and the backbone is frozen
WARMUP, FINETUNING = 4, 4  # epochs, where nothing else is asked for
NEAR = 0.9  # cosine of the output to the dense model's below which the report says so
END = 0.05  # fraction of the learning rate that is left at the end
NO_EFFECT = ("overwrite", "grad_checkpointing", "objective", "labels", "preset")  # or resolved


@dataclass(frozen=True)
class TrainingReport:
    """How a training went; scores are those of held-out images, empty without any.

    A row has "output" and "map", mean cosines to the dense model, and "score", by which the best
    epoch was chosen; with labels "accuracy" and "cross_entropy" too.
    """

    before: dict[str, float]  # of the default scorer, which needs no training
    after: dict[str, float]  # of the result
    best_epoch: int  # of the last stage of training; 0: before it
    epochs: list[dict[str, float]]  # one row per epoch, that before training first
    finetune: list[dict[str, float]]  # the same of the fine-tuning; empty without
    skipped: list[Skipped]  # files that could not be used

    def __str__(self) -> str:
        if not self.after.get("output"):
            return f"trained for {self.best_epoch} epochs, nothing held out"
        words = (
            f"held-out cosine to the dense model: output {self.after['output']:.4f} (default"
            f" scorer, not trained, {self.before['output']:.4f}), map {self.after['map']:.4f}"
            f" ({self.before['map']:.4f})"
        )
        if self.after["output"] < NEAR:
            words += f"; the output is below {NEAR}: train longer, on more images, or keep more"
        if "accuracy" in self.after:
            words += f"; accuracy {self.after['accuracy']:.3f} ({self.before['accuracy']:.3f})"
        return f"{words}; epoch {self.best_epoch}"


@dataclass(frozen=True)
class Job:
    """A training with all options resolved for a model and its images."""

    dense: VitBackbone
    plan: Plan
    config: PruneConfig
    sources: Sequence[ImageSource]
    skipped: Sequence[Skipped]
    labels: Sequence[int] | None
    logits: bool  # the output is a classifier's
    unfreeze: bool
    warmup_epochs: int
    finetune_epochs: int


def train_pruned(
    dense: VitBackbone,
    images: str | Path | Iterable[object],
    out: str | Path | None,
    config: PruneConfig,
    progress: Progress | None,
) -> PrunedBackbone:
    """Train predictors that choose the patches to keep, with the dense model as teacher."""
    with output_directory(out) as folder:
        speed = None
        if isinstance(config.keep, str):
            speed = find_speed(dense, config, folder)
            config = dataclasses.replace(config, keep=speed.keep)
        job = _prepare(dense, images, config, progress)
        pruned = _train(job, folder, progress)
    pruned.speed = speed
    return pruned


def _prepare(
    dense: VitBackbone,
    images: str | Path | Iterable[object],
    config: PruneConfig,
    progress: Progress | None,
) -> Job:
    """Check all that can be checked before the work."""
    assert not isinstance(config.keep, str)
    plan = make_plan(
        dense.depth,
        keep=config.keep,
        stages=config.stages,
        scorer=None,
        fill=config.fill,
        merge=config.merge,
    )
    if any(fraction == 1 for fraction in plan.keep):
        raise TrainingError(
            f"keep is {list(plan.keep)}; where all patches are kept there is nothing to train. Use"
            " fractions below 1."
        )
    check_maskable(dense, plan.stages)
    if (config.mixup or config.cutmix) and (config.batch % 2 or (config.micro_batch or 2) % 2):
        raise TrainingError("mixup works in pairs; use an even batch and micro_batch.")
    sources, skipped = filter_readable(find_images(images), dense.patch, progress)
    check_batch_fits(len(sources), config.held_out, config.batch)
    logits = _has_logits(dense, config)
    classes = int(dense.network.num_classes) if logits else 0
    labels = read_labels(images, sources, config.labels, classes=classes)
    if progress:
        progress("prune", 0, 0, _describe_aim(dense, logits=logits, labelled=bool(labels)))
    unfreeze = labels is not None if config.unfreeze is None else config.unfreeze
    warmup, finetuning = config.warmup_epochs, config.finetune_epochs
    return Job(
        dense, plan, config, sources, skipped, labels, logits, unfreeze,
        warmup_epochs=WARMUP * (labels is None) if warmup is None else warmup,
        finetune_epochs=(
            FINETUNING * (unfreeze and labels is None) if finetuning is None else finetuning
        ),
    )  # fmt: skip


def _describe_aim(dense: VitBackbone, *, logits: bool, labelled: bool) -> str:
    plain = "tokens" if dense.text is None else "image embedding and tokens"
    output = "class scores" if logits else plain
    known = "with the labels of its folders" if labelled else "without labels"
    return f"note: trained {known}, to give the {output} of the dense model"


def _has_logits(dense: VitBackbone, config: PruneConfig) -> bool:
    outputs = int(dense.network.num_classes)
    # the head of CLIP is a projection beside a text tower, no classifier
    logits = outputs > 0 and dense.text is None
    if config.objective != "auto":
        logits = config.objective == "logits"
    if logits and not outputs:
        raise TrainingError(
            f"'{dense.name}' has no classifier; use objective='tokens', which needs none."
        )
    return logits


def _train(job: Job, folder: Path, progress: Progress | None) -> PrunedBackbone:
    """Train, or continue what an earlier run began in the folder, and write the result."""
    accelerator = accelerator_for(job.dense.device)
    check_divisible(job.config.batch, accelerator.num_processes)
    if accelerator.is_main_process:
        _claim(folder, job)
    accelerator.wait_for_everyone()
    task = _make_task(job, accelerator.device)
    before = task.compare_to_dense(_untrained(task.student.teacher, job.plan))
    state = _fit(task, job, folder / TRAINING, accelerator, progress)
    tuned: PrunedStudent | None = None
    later: State | None = None
    if job.finetune_epochs:
        tuned, later = finetune(
            task,
            folder / TRAINING / FINETUNE,
            accelerator,
            progress,
            epochs=job.finetune_epochs,
            merge=job.config.merge is not False,
        )
    pruned = _result(job, task.student, tuned)
    pruned.report = _report(job, before, state, later)
    if accelerator.is_main_process and job.dense.blueprint is not None:
        save_pruned(pruned, folder, kind="prune")
        write_json(folder / RESULT, dataclasses.asdict(pruned.report))
    accelerator.wait_for_everyone()
    return pruned


def _claim(folder: Path, job: Job) -> None:
    """Take the output directory, or continue a training with the same options."""
    claim_files(folder, (RESULT, TRAINING), kind="prune")
    claim(
        folder / TRAINING,
        _decisive(job),
        kind="training",
        files=(STATE, BEST, f"{FINETUNE}/{STATE}", f"{FINETUNE}/{BEST}"),
        overwrite=job.config.overwrite,
    )


def _decisive(job: Job) -> dict[str, Any]:
    """Write down all that decides the weights, for a resumed run to compare."""
    options = dataclasses.asdict(job.config)
    return {
        "model": job.dense.name,
        "fingerprint": job.dense.fingerprint(),
        "images": len(job.sources),
        "listing": listing_of(job.sources),
        **{key: value for key, value in options.items() if key not in NO_EFFECT},
        "size": job.dense.fitting_size(),
        "keep": job.plan.keep,
        "stages": job.plan.stages,
        "logits": job.logits,
        "labelled": job.labels is not None,
        "unfreeze": job.unfreeze,
        "warmup_epochs": job.warmup_epochs,
        "finetune_epochs": job.finetune_epochs,
    }


def _make_task(job: Job, device: torch.device) -> PredictorTask:
    dense, config = job.dense, job.config
    if dense.device != device:  # another GPU for each process
        dense = dense.around(copy.deepcopy(dense.network).to(device), dense.blueprint)
    training, held_out = split_held_out(len(job.sources), config.held_out)
    student = MaskedStudent(dense, job.plan, config, logits=job.logits, unfreeze=job.unfreeze)
    images = TrainingImages(job.sources, job.labels, training, held_out, dense.fitting_size())
    steps = len(training) // config.batch
    frozen = job.warmup_epochs or round(FREEZE * config.epochs)
    return PredictorTask(
        student,
        images,
        config,
        freeze_steps=steps * (frozen if config.freeze_epochs is None else config.freeze_epochs),
        warmup_steps=steps * job.warmup_epochs,
        device=device,
    )


def _fit(
    task: PredictorTask,
    job: Job,
    folder: Path,
    accelerator: Accelerator,
    progress: Progress | None,
) -> State:
    config = job.config
    order = BatchOrder(len(task.images.training), config.batch, config.seed)
    epochs = config.epochs + job.warmup_epochs
    rising = 1 if job.warmup_epochs else round(FREEZE * config.epochs)
    if config.lr_warmup_epochs is not None:
        rising = config.lr_warmup_epochs
    cosine = config.schedule == "cosine"
    settings = FitConfig(
        epochs=epochs,
        micro_batch=config.micro_batch or config.batch,
        warmup_steps=rising * order.steps_per_epoch,
        schedule=config.schedule,
        end_factor=config.min_lr / task.rate if cosine else END,
        patience=config.patience,
        clip_norm=config.clip_norm,
        precision=config.precision,
        ema_decay=config.ema_decay,
        ema_warmup=False,
    )
    return fit(task, order, settings, folder, accelerator, progress)


def _untrained(dense: VitBackbone, plan: Plan) -> PrunedBackbone:
    """The baseline: the same plan with the default scorer, which needs no training."""
    return PrunedBackbone(dense, dataclasses.replace(plan, scorer=DEFAULT_SCORER, merge=True))


def _result(job: Job, student: MaskedStudent, tuned: PrunedStudent | None) -> PrunedBackbone:
    if job.unfreeze:
        student.network.requires_grad_(True)
    dense = student.backbone if job.unfreeze else job.dense
    plan, fill = (job.plan, None) if tuned is None else (tuned.pruned.plan, tuned.fill)
    return PrunedBackbone(dense, plan, student.predictors, fill)


def _report(
    job: Job, before: dict[str, float], state: State, later: State | None
) -> TrainingReport:
    last = state if later is None else later
    return TrainingReport(
        before=before,
        after=next(row for row in last.history if row["epoch"] == last.best_epoch),
        best_epoch=last.best_epoch,
        epochs=state.history,
        finetune=[] if later is None else later.history,
        skipped=list(job.skipped),
    )
