"""The last lesson: train what is really run, when nobody's place is in doubt any more.

DynamicViT trains a network that hides patches, by decisions with chance in them. The model that is
used removes them, by a ranking. Here the predictors stand still, patches leave for good, and the
blocks behind the first stage learn to do without them; where patches come back to the grid, a
`LearnedFill` learns what they should show. All of the dense model's patches teach, not only those
that stayed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from clearvit.files import remove_leftovers
from clearvit.images import read_image
from clearvit.prune import losses
from clearvit.prune.learned_fill import LearnedFill
from clearvit.prune.lessons import Lessons, by_decay
from clearvit.prune.pictures import part_of
from clearvit.prune.pruned import PrunedBackbone
from clearvit.prune.pupil import Pupil, taught, vector_of
from clearvit.training.loop import FitConfig, fit
from clearvit.training.order import Order, generator
from clearvit.training.state import State

MAP = 0.5  # weight of the full grid beside that of the output
CLIP = 1.0  # largest norm of the gradient
END = 0.02  # share of the learning rate that is left at the end

Report = Callable[[str, int, int, str], None]


class Settling(nn.Module):
    """A pruned model as it runs, beside the dense model that teaches it.

    Args:
        pupil: After its training; its network goes on learning, if it was unlocked.
        average: Whether similar patches are averaged, those with low scores first, or dropped.
        seed: Of the first weights of the fill.
    """

    def __init__(self, pupil: Pupil, *, average: bool, seed: int = 0) -> None:
        super().__init__()
        self.teacher, self.logits = pupil.teacher, pupil.logits
        dense = pupil.backbone
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.fill = LearnedFill(dense.width)
        plan = dataclasses.replace(pupil.plan, fill="learned", average=average)
        self.pruned = PrunedBackbone(dense, plan, pupil.predictors, self.fill)
        self.network: nn.Module = dense.network
        behind = [*list(dense.network.blocks)[plan.stages[0] :], dense.network.norm]
        self.network.requires_grad_(False)
        for module in behind:
            module.requires_grad_(pupil.unlock)

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """Compute "loss" and its parts, means over the batch (B, 3, height, width)."""
        tokens = self.pruned.forward(pixels)
        ours = vector_of(self.pruned, torch.cat([tokens.prefix, tokens.patches], 1))
        theirs, patches = taught(self.teacher, pixels)
        output = (losses.divergence if self.logits else losses.output)(ours, theirs)
        shown = losses.output(tokens.patches, patches)
        return {"loss": output + MAP * shown, "output": output, "map": shown}


class LastLessons:
    """Teach a settling model; all chance is a function of the step and the picture."""

    def __init__(self, lessons: Lessons, *, average: bool) -> None:
        self.lessons = lessons
        self.settling = Settling(lessons.pupil, average=average, seed=lessons.config.seed)
        self.module: nn.Module = self.settling.to(lessons.device)

    def groups(self) -> list[dict[str, Any]]:
        """Give the fill the full rate, the network the share that a backbone gets."""
        config = self.lessons.config
        slow = config.lr * config.backbone_lr
        return [
            *by_decay(self.settling.fill, config.lr, config.decay, "fill"),
            *by_decay(self.settling.network, slow, 0.0, "backbone"),
        ]

    def batch(self, images: Sequence[int], step: int) -> Tensor:
        """Load parts of training pictures, half of them mirrored: there are few pictures."""
        taken, seed = self.lessons.taken, self.lessons.config.seed
        pixels = []
        for image in images:
            chance = generator(seed + 3, step * len(taken.training) + image)
            picture = read_image(taken.pictures[taken.training[image]].source)
            pixels.append(self.lessons.prepared(part_of(picture, chance)))
        return torch.stack(pixels).to(self.lessons.device, self.lessons.pupil.teacher.dtype)

    def score(self, module: nn.Module) -> dict[str, float]:
        """Judge on held-out pictures, output and map alike."""
        assert isinstance(module, Settling)
        found = self.lessons.judged(module.pruned)
        return {**found, "score": (found["output"] + found["map"]) / 2}

    def names(self, images: Sequence[int]) -> list[str]:
        """Name some training pictures."""
        return self.lessons.names(images)


def settled(
    lessons: Lessons,
    folder: Path,
    accelerator: Accelerator,
    report: Report | None,
    *,
    epochs: int,
    average: bool,
) -> tuple[Settling, State]:
    """Train what is really run, after `lessons` are over, or go on where that was killed."""
    config = lessons.config
    remove_leftovers(folder)
    last = LastLessons(lessons, average=average)
    order = Order(len(lessons.taken.training), config.batch, config.seed + 4)
    fitting = FitConfig(
        epochs=epochs,
        batch=config.batch,
        micro=config.micro or config.batch,
        warmup=max(1, order.steps // 2),
        end=END,
        patience=config.patience,
        clip=config.clip or CLIP,
        precision=config.precision,
        seed=config.seed,
    )
    tell = None if report is None else functools.partial(report, "settle")
    return last.settling, fit(last, order, fitting, folder, accelerator, tell)
