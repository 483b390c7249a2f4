"""Fine-tuning of the hard-pruned model, after the predictors are trained.

DynamicViT trains a network with masked patches and sampled decisions. The model that is used
removes patches by a ranking. Here the predictors are frozen, patches are really removed, and the
blocks after the first stage adapt to that; a `LearnedFill` learns to restore removed patches on the
full grid. All patches of the dense model are targets, not only those that were kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from clearvit.files import remove_leftovers
from clearvit.images import read_image
from clearvit.progress import Progress
from clearvit.pruning.modules import LearnedFill
from clearvit.pruning.pruned import PrunedBackbone
from clearvit.pruning.training import losses
from clearvit.pruning.training.augmentation import random_crop
from clearvit.pruning.training.masked_student import MaskedStudent, image_output, teacher_outputs
from clearvit.pruning.training.predictor_task import PredictorTask, decay_groups
from clearvit.training.loop import FitConfig, fit
from clearvit.training.order import BatchOrder, seeded_generator
from clearvit.training.state import State

MAP_WEIGHT = 0.5  # of the full grid beside the output
CLIP_GRAD = 1.0  # largest norm of the gradient
END = 0.02  # fraction of the learning rate that is left at the end


class PrunedStudent(nn.Module):
    """A hard-pruned model beside the dense model that teaches it.

    Args:
        student: After its training; its network is trained further if it is unfrozen.
        merge: Whether similar patches are merged, those with low scores first, or dropped.
    """

    def __init__(self, student: MaskedStudent, *, merge: bool) -> None:
        super().__init__()
        self.teacher, self.logits = student.teacher, student.logits
        dense = student.backbone
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(student.config.seed)
            self.fill = LearnedFill(dense.width)
        plan = dataclasses.replace(student.plan, fill="learned", merge=merge)
        self.pruned = PrunedBackbone(dense, plan, student.predictors, self.fill)
        self.network: nn.Module = dense.network
        after = [*list(dense.network.blocks)[plan.stages[0] :], dense.network.norm]
        self.network.requires_grad_(False)
        for module in after:
            module.requires_grad_(student.unfreeze)

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """Compute "loss" and its parts, means over the batch (B, 3, height, width)."""
        tokens = self.pruned.forward(pixels)
        ours = image_output(self.pruned, torch.cat([tokens.prefix, tokens.patches], 1))
        theirs, patches = teacher_outputs(self.teacher, pixels)
        output = (losses.kl_divergence if self.logits else losses.relative_error)(ours, theirs)
        grid = losses.relative_error(tokens.patches, patches)
        return {"loss": output + MAP_WEIGHT * grid, "output": output, "map": grid}


class FinetuneTask:
    """Train a hard-pruned student; all randomness is a function of the step and the image."""

    def __init__(self, task: PredictorTask, *, merge: bool) -> None:
        self.task = task
        self.student = PrunedStudent(task.student, merge=merge)
        self.module: nn.Module = self.student.to(task.device)

    def param_groups(self) -> list[dict[str, Any]]:
        """Give the fill the full learning rate, the network that of a backbone."""
        config = self.task.config
        slow = config.lr * config.backbone_lr_scale
        return [
            *decay_groups(self.student.fill, config.lr, config.weight_decay, "fill"),
            *decay_groups(self.student.network, slow, 0.0, "backbone"),
        ]

    def load_batch(self, images: Sequence[int], step: int) -> Tensor:
        """Load random crops of training images, half of them flipped."""
        own, seed = self.task.images, self.task.config.seed
        pixels = []
        for image in images:
            rng = seeded_generator(seed + 3, step * len(own.training) + image)
            whole = read_image(own.sources[own.training[image]].source)
            pixels.append(self.task.preprocess(random_crop(whole, rng)))
        return torch.stack(pixels).to(self.task.device, self.task.student.teacher.dtype)

    def evaluate(self, module: nn.Module) -> dict[str, float]:
        """Evaluate on held-out images; output and map count alike."""
        assert isinstance(module, PrunedStudent)
        found = self.task.compare_to_dense(module.pruned)
        return {**found, "score": (found["output"] + found["map"]) / 2} if found else {}

    def image_names(self, images: Sequence[int]) -> list[str]:
        """Name some training images."""
        return self.task.image_names(images)


def finetune(
    task: PredictorTask,
    folder: Path,
    accelerator: Accelerator,
    progress: Progress | None,
    *,
    epochs: int,
    merge: bool,
) -> tuple[PrunedStudent, State]:
    """Fine-tune the hard-pruned model of a finished task, or continue an interrupted run."""
    config = task.config
    remove_leftovers(folder)
    last = FinetuneTask(task, merge=merge)
    order = BatchOrder(len(task.images.training), config.batch, config.seed + 4)
    settings = FitConfig(
        epochs=epochs,
        micro_batch=config.micro_batch or config.batch,
        warmup_steps=max(1, order.steps_per_epoch // 2),
        end_factor=END,
        patience=config.patience,
        clip_norm=config.clip_norm or CLIP_GRAD,
        precision=config.precision,
        stage="fine-tune",
    )
    return last.student, fit(last, order, settings, folder, accelerator, progress)
