"""Metric learning: an embedding trained on classes, so that unseen ones are found too.

The ground under the tables of "Beyond the CLS Token" (Zhang et al., BMVC 2022) and DIML (Zhao et
al., ICCV 2021): margin loss with distance-weighted mining on the class token. Top to bottom.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.saved import MODEL_FILES, save
from clearvit.backbones.vit import VitBackbone
from clearvit.datasets.retrieval_dataset import RetrievalDataset
from clearvit.datasets.retrieval_layouts import read_retrieval
from clearvit.errors import ModelError, TrainingError
from clearvit.files import write_json
from clearvit.finetuning.config import FinetuneConfig
from clearvit.finetuning.metric_losses import EmbeddingLoss
from clearvit.images import listing_of
from clearvit.options import Size, with_options
from clearvit.precision import autocast, uses_bf16
from clearvit.progress import Progress
from clearvit.pruning.training.augmentation import random_crop
from clearvit.retrieval.ranking_metrics import retrieval_metrics
from clearvit.runs import claim, claim_files
from clearvit.training.held_out import read_large_enough
from clearvit.training.loop import BEST, STATE, FitConfig, accelerator_for, fit
from clearvit.training.low_rank import KEPT, add_factors, is_factor, merge_factors
from clearvit.training.order import BatchOrder, seeded_generator
from clearvit.training.state import State

REPORT, TRAINING = "finetune.json", "training"
LEAST = 2  # images of a class, and classes to train on
RATES = {"low-rank": 1e-4}  # learning rates by what trains; of whole matrices WHOLE
WHOLE = 1e-5
LOSS_RATE = 10.0  # of the loss's own parameters, relative to the network's
WITHOUT_EFFECT = ("overwrite", "keep_anyway", "grad_checkpointing")


@dataclass(frozen=True)
class FinetuneReport:
    """What a training brought on classes that took no part in it.

    P@1 is the fraction of images whose nearest other image has their class, MAP@R the mean average
    precision over as many ranks as there are others of the class; both 0..1.
    """

    before: dict[str, float]
    after: dict[str, float]
    best_epoch: int
    epochs: tuple[dict[str, float], ...]
    classes: int  # trained on
    held_out: int  # classes that judged
    images: int

    def __str__(self) -> str:
        """Say before and after in one line."""
        names = ("P@1", "MAP@R")
        found = [
            f"{n} {100 * self.before[n]:.1f} before, {100 * self.after[n]:.1f} after" for n in names
        ]
        return (
            f"{self.held_out} held-out classes: {'; '.join(found)} (epoch {self.best_epoch},"
            f" {self.classes} classes trained on)"
        )

    def to_json(self) -> dict[str, Any]:
        """Give all numbers as JSON holds them."""
        return dataclasses.asdict(self)


# --- 1. batches of several images of several classes --------------------------------------------


@dataclass(frozen=True)
class ClassOrder(BatchOrder):
    """Batches that hold `per_class` images of each of several classes."""

    labels: tuple[int, ...] = ()
    per_class: int = 4

    def images(self, step: int) -> list[int]:
        """List the images of a step: classes and images are drawn anew, by seed and step."""
        rng = seeded_generator(self.seed, step)
        labels = torch.tensor(self.labels)
        classes = torch.unique(labels)
        chosen = classes[
            torch.randperm(len(classes), generator=rng)[: self.batch // self.per_class]
        ]
        found: list[int] = []
        for one in chosen:
            members = (labels == one).nonzero().flatten()
            repeats = -(-self.per_class // len(members))
            order = torch.randperm(len(members), generator=rng).repeat(repeats)
            found += members[order[: self.per_class]].tolist()
        return found


class Embedder(nn.Module):
    """A backbone with a loss on its class tokens (mean patch tokens without one)."""

    def __init__(self, backbone: VitBackbone, loss: EmbeddingLoss) -> None:
        super().__init__()
        self.network, self.backbone, self.loss = backbone.network, backbone, loss

    def forward(self, batch: tuple[Tensor, Tensor, int]) -> dict[str, Tensor]:
        """Compute "loss" of pixels (B, 3, height, width) and labels (B,)."""
        pixels, labels, seed = batch
        return {"loss": self.loss(describe(self.backbone, pixels), labels, seed)}


def describe(backbone: VitBackbone, pixels: Tensor) -> Tensor:
    """Give the class tokens, or the mean patch tokens of a model without, (B, C)."""
    tokens = backbone.forward(pixels)
    return tokens.patches.mean(1) if tokens.cls is None else tokens.cls


# --- 2. the task ---------------------------------------------------------------------------------


class MetricTask:
    """What the training loop asks for; all randomness is a function of step and image."""

    def __init__(
        self, student: VitBackbone, data: RetrievalDataset, config: FinetuneConfig, size: Size
    ) -> None:
        self.student, self.config, self.size = student, config, size
        self.sources, labels = data.sources, torch.tensor(data.labels)
        classes = torch.unique(labels)
        held = classes[:: max(2, round(1 / config.held_out))]
        is_held = torch.isin(labels, held)
        self.training = (~is_held).nonzero().flatten().tolist()
        self.held_out = is_held.nonzero().flatten().tolist()
        _, numbers = torch.unique(labels[~is_held], return_inverse=True)
        self.labels: list[int] = numbers.tolist()
        self.held_labels = labels[is_held]
        self.num_classes, self.num_held = len(classes) - len(held), len(held)
        loss = EmbeddingLoss(config.loss, self.num_classes, student.width)
        self.module: nn.Module = Embedder(student, loss).to(student.device)

    def param_groups(self) -> list[dict[str, Any]]:
        """Group the network's parameters and those of the loss."""
        assert isinstance(self.module, Embedder)
        rate = self.config.lr or RATES.get(self.config.unfreeze, WHOLE)
        own = [p for p in self.student.network.parameters() if p.requires_grad]
        groups = [{"params": own, "lr": rate, "weight_decay": self.config.weight_decay}]
        others = list(self.module.loss.parameters())
        if others:
            groups.append({"params": others, "lr": LOSS_RATE * rate, "weight_decay": 0.0})
        return groups

    def load_batch(self, images: Sequence[int], step: int) -> tuple[Tensor, Tensor, int]:
        """Load training images, cropped and mirrored at random."""
        pixels = []
        for place, image in enumerate(images):
            rng = seeded_generator(self.config.seed + 1, step * 10_000 + place)
            crop = random_crop(self._read(self.training[image]), rng)
            pixels.append(self.student.preprocessing(crop, self.size))
        labels = torch.tensor([self.labels[i] for i in images], device=self.student.device)
        return torch.stack(pixels).to(self.student.device), labels, self.config.seed + step

    @torch.no_grad()
    def evaluate(self, module: nn.Module) -> dict[str, float]:
        """Search every held-out image among the others of the held-out classes."""
        half = uses_bf16(self.student.device, self.config.precision)
        found = []
        for number in self.held_out:
            pixels = self.student.preprocessing(self._read(number), self.size)[None]
            with autocast(self.student.device, half):
                found.append(describe(self.student, pixels.to(self.student.device)).float().cpu())
        unit = F.normalize(torch.cat(found), dim=1)
        order = (unit @ unit.T).argsort(dim=1, descending=True)
        metrics = retrieval_metrics(order, self.held_labels)
        scores = {"P@1": float(metrics.precision_at_1), "MAP@R": float(metrics.map_at_r)}
        return {"score": (scores["P@1"] + scores["MAP@R"]) / 2, **scores}

    def image_names(self, images: Sequence[int]) -> list[str]:
        """Name some training images."""
        return [self.sources[self.training[i]].name for i in images]

    def _read(self, number: int) -> Any:
        return read_large_enough(self.sources[number], self.student.patch)


# --- 3. from images to the result ----------------------------------------------------------------


@with_options(FinetuneConfig)
def finetune(
    backbone: Backbone,
    images: str | Path,
    *,
    out: str | Path,
    config: FinetuneConfig,
    progress: Progress | None = None,
) -> VitBackbone:
    """Train a backbone on labelled images so that images of one class are found by each other.

    Classes are held out to choose the best epoch, the model as it came in among them; if no epoch
    is better, nothing is written. The result is a plain timm model that indexes, re-ranks and
    exports like any other. A killed run goes on when called again with the same arguments.

    Args:
        backbone: A ViT; left as it was.
        images: A folder with one subfolder per class, or a CUB, Cars196 or SOP folder, of which the
            published training classes are taken.
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
    _check(data, config)
    size, folder = backbone.fitting_size(config.size), Path(out)
    plan = _plan(backbone, data, config)
    claim_files(folder, (*MODEL_FILES, REPORT, TRAINING), kind="finetune")
    run = folder / TRAINING
    claim(run, plan, kind="training", files=(STATE, BEST), overwrite=config.overwrite)
    student = make_student(backbone, config)
    task = MetricTask(student, data, config, size)
    state = _fit(task, config, run, progress)
    report = _report(task, state.history, state.best_epoch)
    if not state.best_epoch and not config.keep_anyway:
        raise TrainingError(
            "the training did not help, and no model was written: no epoch was better on the"
            f" {task.num_held} held-out classes than the model as it was ({report}). Give more"
            " classes or images, another --loss, or a lower --lr; --keep-anyway writes it all the"
            " same."
        )
    merge_factors(student.network)
    student.network.requires_grad_(True)
    student.grad_checkpointing, student.report = False, report
    save(student, folder, kind="finetune")
    write_json(folder / REPORT, {"options": plan, **report.to_json()})
    return student


def _fit(
    task: MetricTask, config: FinetuneConfig, folder: Path, progress: Progress | None
) -> State:
    """Train, or go on with a training that was begun."""
    steps = max(1, len(task.training) // config.batch)
    order = ClassOrder(
        steps * config.batch,
        config.batch,
        config.seed,
        labels=tuple(task.labels),
        per_class=config.images_per_class,
    )
    fitting = FitConfig(
        epochs=config.epochs,
        micro_batch=config.batch,  # a loss between images needs them all at once
        warmup_steps=steps,
        schedule="cosine",
        patience=config.patience,
        precision=config.precision,
        ema_decay=config.ema_decay,
        stage="finetune",
    )
    return fit(task, order, fitting, folder, accelerator_for(task.student.device), progress)


def make_student(backbone: VitBackbone, config: FinetuneConfig) -> VitBackbone:
    """Copy a backbone and let the chosen weights train."""
    student = backbone.around(copy.deepcopy(backbone.network), backbone.blueprint)
    names = {name for name, _ in student.network.named_parameters()}
    if config.unfreeze == "low-rank":
        add_factors(student, config.rank, config.seed)
        wanted = {n for n, _ in student.network.named_parameters() if is_factor(n)}
        wanted |= {name for name in names if KEPT.match(name)}
    elif config.unfreeze == "all":
        wanted = {name for name in names if not name.startswith("head")}
    else:
        first = max(0, student.depth - int(config.unfreeze.removeprefix("last-")))
        blocks = tuple(f"blocks.{index}." for index in range(first, student.depth))
        wanted = {name for name in names if name.startswith((*blocks, "norm.", "fc_norm."))}
    for name, parameter in student.network.named_parameters():
        parameter.requires_grad_(name in wanted)
    student.grad_checkpointing = config.grad_checkpointing
    return student


def _check(data: RetrievalDataset, config: FinetuneConfig) -> None:
    """Refuse, before any work, data that hold nothing to learn."""
    if not data.labels:
        raise TrainingError(
            f"'{data.root}' holds places without classes, which a loss between classes cannot use;"
            " give a folder with one subfolder per class."
        )
    counts = torch.bincount(torch.tensor(data.labels))
    if len(counts) < 2 * LEAST:
        raise TrainingError(
            f"'{data.root}' has {len(counts)} classes; at least {2 * LEAST} are needed, because"
            " some are held out to judge."
        )
    if int(counts.min()) < LEAST:
        raise TrainingError(
            f"a class of '{data.root}' has one image; every class needs at least {LEAST}."
        )


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


def _report(task: MetricTask, history: Sequence[Any], best: int) -> FinetuneReport:
    rows = tuple({str(key): float(value) for key, value in row.items()} for row in history)
    scores = {int(row["epoch"]): {n: row[n] for n in ("P@1", "MAP@R")} for row in rows}
    return FinetuneReport(
        before=scores[0],
        after=scores[best],
        best_epoch=best,
        epochs=rows,
        classes=task.num_classes,
        held_out=task.num_held,
        images=len(task.training),
    )
