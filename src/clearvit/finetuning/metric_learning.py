"""Metric learning: an embedding trained on classes or places, so that unseen ones are found too.

The ground under the tables of "Beyond the CLS Token" (Zhang et al., BMVC 2022) and DIML (Zhao et
al., ICCV 2021): class token, linear projection to 128 channels, margin loss with distance-weighted
mining. The projection is fitted in closed form first; often that is all it takes. Top to bottom.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.load import load
from clearvit.backbones.saved import MODEL_FILES, save
from clearvit.backbones.vit import VitBackbone
from clearvit.datasets.retrieval_dataset import RetrievalDataset
from clearvit.datasets.retrieval_layouts import read_retrieval
from clearvit.errors import ModelError, OptionError, TrainingError
from clearvit.files import write_json
from clearvit.finetuning.config import FEW, FinetuneConfig
from clearvit.finetuning.embedding_task import (
    Material,
    MetricTask,
    check_projection,
    describe_images,
    make_student,
    pools_class_token,
)
from clearvit.finetuning.judgement import RAW, FinetuneReport, Rows, judge_parts, split_groups
from clearvit.finetuning.labelled_images import LabelledImages
from clearvit.finetuning.learned_whitening import (
    SHRINKAGES,
    apply_projection,
    fit_to_teacher,
    fit_whitening,
)
from clearvit.finetuning.place_images import PlaceImages
from clearvit.images import listing_of
from clearvit.options import with_options
from clearvit.precision import uses_bf16
from clearvit.progress import Meter, Progress
from clearvit.runs import claim, claim_files
from clearvit.training.loop import FitConfig, accelerator_for, fit
from clearvit.training.low_rank import merge_factors
from clearvit.training.state import State

REPORT, TRAINING = "finetune.json", "training"
INNER = 5  # parts of the training groups on which the shrinkage is chosen
WITHOUT_EFFECT = ("overwrite", "keep_anyway", "grad_checkpointing")


@with_options(FinetuneConfig)
def finetune(
    backbone: Backbone,
    images: str | Path,
    *,
    out: str | Path,
    config: FinetuneConfig,
    progress: Progress | None = None,
) -> VitBackbone:
    """Train a backbone on labelled images so that images of one class, or place, find each other.

    A projection is fitted behind the network, then whatever `unfreeze` names trains with it. Every
    class is held out once to judge (or a part of them, with one fold), the model as it came in
    being a candidate; if the gain is not above noise, nothing is written. The result is a plain
    timm model whose head is the projection; it indexes, re-ranks and exports like any other. A
    killed run goes on when called again with the same arguments.

    Args:
        backbone: A ViT; left as it was.
        images: A folder with one subfolder per class; a CUB, Cars196 or SOP folder, of which the
            published training classes are taken; or places: MSLS (its training cities), or query/,
            ref/ and ground_truth.json.
        out: Directory for the result.
        config: All options at once, instead of keywords.
        progress: Called with the stage, what is done and of how much; a bar by default.

    Returns:
        The trained backbone; its `report` is a `FinetuneReport`.
    """
    if type(backbone) is not VitBackbone:
        raise ModelError(
            f"'{backbone.name}' cannot be trained: finetune takes a plain ViT, not a pruned,"
            " denoised, exported or grid-only model."
        )
    data = read_retrieval(images, layout=config.layout, training=True)
    material = _material(backbone, data, config)
    folder, plan = Path(out), _plan(backbone, data, config)
    claim_files(folder, (*MODEL_FILES, REPORT, TRAINING), kind="finetune")
    run = folder / TRAINING
    claim(run, plan, kind="training", files=("fold-*", "all"), overwrite=config.overwrite)
    trainer = _Trainer(backbone, material, run, progress)
    report, result = trainer.run()
    if not (report.better or config.keep_anyway):
        raise TrainingError(
            "the training did not help beyond noise, and no model was written; use the model as it"
            f" is. {report} Give more classes or images, another --loss, --unfreeze or --lr;"
            " --keep-anyway writes it all the same."
        )
    student = result()
    merge_factors(student.network)
    student.network.requires_grad_(True)
    student.grad_checkpointing, student.report = False, report
    save(student, folder, kind="finetune")
    write_json(folder / REPORT, {"options": plan, **report.to_json()})
    return student


class _Trainer:
    """All trainings of a run: one for each fold, and the last one on everything."""

    def __init__(
        self, backbone: VitBackbone, material: Material, run: Path, progress: Progress | None
    ) -> None:
        self.backbone, self.material, self.folder = backbone, material, run
        self.config, self.progress, self.images = material.config, progress, material.images
        everything = range(len(self.images.sources))
        twice = self.config.dimension > 0 and not pools_class_token(backbone)
        meter = Meter(progress, len(everything) * (2 if twice else 1), "describe")
        self.plain = self.pooled = describe_images(backbone, material, everything, meter=meter)
        if twice:
            self.pooled = describe_images(backbone, material, everything, pooled=True, meter=meter)

    def run(self) -> tuple[FinetuneReport, Callable[[], VitBackbone]]:
        """Judge in folds; gives the report and a function that makes the result."""
        groups, config = list(range(self.images.groups)), self.config
        folds = config.folds or (3 if len(groups) < FEW else 1)
        folds = max(1, min(folds, len(groups) // 2))
        if folds == 1:
            held = groups[:: max(2, round(1 / config.held_out))]
            held = held if len(held) > 1 else groups[:2]
            rows, student = self.train_part(held, "fold-0")
            halves = [list(range(len(held)))[i::2] for i in range(2)]
            parts: list[Rows] = [{c: found[half] for c, found in rows.items()} for half in halves]
            report = self.report(parts, len(groups) - len(held))
            return report, lambda: student
        done = [
            self.train_part(held, f"fold-{number}")[0]
            for number, held in enumerate(split_groups(len(groups), folds))
        ]
        report = self.report(done, len(groups))
        return report, lambda: self.train_all(report.chosen)

    def report(self, parts: Sequence[Rows], trained: int) -> FinetuneReport:
        """Judge what was measured."""
        count = len(self.images.sources) * trained // self.images.groups
        return judge_parts(parts, self.images.metrics, self.images.words, count)

    def train_part(self, held: list[int], name: str) -> tuple[Rows, VitBackbone]:
        """Train without some groups; gives their scores by candidate, and the best student."""
        training = [one for one in range(self.images.groups) if one not in held]
        members = self.images.members(held)
        rows: dict[int, Tensor] = {RAW: self.images.judge(self.plain[members], held)}
        projection = self.projection(training)
        if projection is not None:
            projected = apply_projection(projection, self.pooled[members])
            rows[0] = self.images.judge(projected, held)
        student = make_student(self.backbone, self.config, projection)
        if self.config.most_epochs:
            state = self.fit(student, training, held, name)
            for row in state.history[1:]:
                table = [[row[f"{m} of {g}"] for m in self.images.metrics] for g in held]
                rows[int(row["epoch"])] = torch.tensor(table, dtype=torch.float64)
        return rows, student

    def train_all(self, chosen: int) -> VitBackbone:
        """Train on all groups, as long as the judged trainings found best."""
        groups = list(range(self.images.groups))
        student = make_student(self.backbone, self.config, self.projection(groups))
        if self.config.most_epochs and chosen != 0:
            ends = self.config.most_epochs if chosen == RAW else chosen
            self.fit(student, groups, [], "all", last_epoch=ends)
        return student

    def projection(self, groups: Sequence[int]) -> Tensor | None:
        """Fit a projection on some groups, its shrinkage chosen within them."""
        dimension = min(self.config.dimension, self.pooled.shape[1])
        if not dimension:
            return None
        members = self.images.members(groups)
        if self.material.targets is not None:
            return fit_to_teacher(self.pooled[members], self.material.targets[members])

        def fitted(own: Sequence[int], shrinkage: float) -> Tensor:
            apart = self.images.differences(self.pooled, own)
            return fit_whitening(self.pooled[self.images.members(own)], apart, dimension, shrinkage)

        parts = split_groups(len(groups), max(2, min(INNER, len(groups) // 2)))
        scores = dict.fromkeys(SHRINKAGES, 0.0)
        for part in parts if len(groups) >= 4 else ():
            held = [groups[i] for i in part]
            rest = [one for one in groups if one not in held]
            judged = self.pooled[self.images.members(held)]
            for shrinkage in SHRINKAGES:
                projected = apply_projection(fitted(rest, shrinkage), judged)
                scores[shrinkage] += float(self.images.judge(projected, held).mean())
        return fitted(groups, max(reversed(SHRINKAGES), key=lambda one: scores[one]))

    def fit(
        self,
        student: VitBackbone,
        groups: Sequence[int],
        held: Sequence[int],
        name: str,
        last_epoch: int | None = None,
    ) -> State:
        """Train a student on some groups, or go on with a training that was begun."""
        config = self.config
        per_class = config.images_per_class
        order = self.images.order(groups, config.classes, per_class, config.seed)
        task = MetricTask(student, self.material, held)
        fitting = FitConfig(
            epochs=config.most_epochs,
            micro_batch=order.batch,  # a loss between images needs them all at once
            warmup_steps=order.steps_per_epoch,
            schedule="cosine",
            patience=config.patience if held else None,
            precision=config.precision,
            ema_decay=config.ema_decay,
            last_epoch=last_epoch,
            stage=name,
        )
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        accelerator = accelerator_for(student.device)
        return fit(task, order, fitting, folder, accelerator, self.progress)


def _material(backbone: VitBackbone, data: RetrievalDataset, config: FinetuneConfig) -> Material:
    """Check, before any work, that data, task and loss fit together."""
    found = "retrieval" if data.labels else "places"
    if config.task not in ("auto", found):
        have = "classes" if found == "retrieval" else "places without classes"
        raise OptionError(f"task is '{config.task}', but '{data.root}' holds {have}.", "task")
    if found == "places" and config.loss not in (None, "triplet", "distill"):
        raise OptionError(f"loss is '{config.loss}'; places have triplet and distill.", "loss")
    if (config.loss == "distill") != (config.teacher is not None):
        raise OptionError("loss 'distill' and --teacher need each other; give both.", "teacher")
    if not config.dimension and (config.unfreeze == "none" or config.teacher):
        raise OptionError(
            "dimension is 0, which leaves nothing to train in a frozen network, and no embedding"
            " that could follow a teacher; give 128, or --unfreeze low-rank.",
            "dimension",
        )
    images = LabelledImages(data) if data.labels else PlaceImages(data)
    size = backbone.fitting_size(config.size)
    if not config.dimension:
        return Material(images, config, size)
    check_projection(backbone)
    if config.teacher is None:
        return Material(images, config, size)
    return Material(images, config, size, _teacher_targets(images, config))


def _teacher_targets(images: LabelledImages | PlaceImages, config: FinetuneConfig) -> Tensor:
    """Describe all images by the teacher, at its own size, (N, D) unit norm."""
    teacher = load(str(config.teacher))
    if not isinstance(teacher, VitBackbone):
        raise ModelError(f"'{config.teacher}' cannot teach: a ViT is needed.")
    material = Material(images, config, teacher.fitting_size())
    return F.normalize(describe_images(teacher, material, range(len(images.sources))), dim=1)


def _plan(backbone: VitBackbone, data: RetrievalDataset, config: FinetuneConfig) -> dict[str, Any]:
    options = dataclasses.asdict(config)
    plan = {
        "model": backbone.name,
        "fingerprint": backbone.fingerprint(),
        "listing": listing_of(data.sources),
        **{key: value for key, value in options.items() if key not in WITHOUT_EFFECT},
        "bf16": uses_bf16(backbone.device, config.precision),
    }
    content: dict[str, Any] = json.loads(json.dumps(plan))
    return content
