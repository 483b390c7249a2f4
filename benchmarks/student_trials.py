"""Changes to the distillation that are no options of `cure`: tried by cure_recipes.py, and kept.

A row of its table "students" names one of TRIALS; the process that trains that row applies it
before `cv.cure` runs. What proves worth having becomes an option, the others stay here with their
numbers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from clearvit.cures import distill
from clearvit.cures.distill import Batch, Student, cosine
from clearvit.cures.targets import Target, TargetCache
from clearvit.cures.teacher import Teacher, read_tokens
from clearvit.precision import autocast, uses_bf16
from clearvit.views.denoise import denoise

SAMPLED = 64  # images whose targets decide the whitening
RELATIONS = 10.0  # weight of the squared differences of similarities


def apply(trial: str) -> None:
    """Change the distillation of this process."""
    name, _, number = trial.partition(" ")
    if name == "larger":
        TRIALS[name](int(number))
    else:
        TRIALS[name]()


def use_larger_teacher(views: int) -> None:
    """Take targets from an image twice as large, averaged over the cells of each patch."""
    plain = Teacher.target

    def target(self: Teacher, image: Image.Image, number: int) -> Target:
        own = plain(self, image, number)
        return Target(own.image, larger_tokens(self, image, number, views).half(), own.cls)

    Teacher.target = target  # type: ignore[method-assign]


@torch.no_grad()
def larger_tokens(teacher: Teacher, image: Image.Image, number: int, views: int) -> Tensor:
    """Tokens (N, C) on the grid of the teacher's size, from an image twice as large."""
    height, width = teacher.size_of(number)
    size, backbone, config = (2 * height, 2 * width), teacher.backbone, teacher.config
    pixels = teacher.preprocessing(image, size)[None].to(backbone.device, backbone.dtype)
    if views > 1:
        clean = denoise(
            backbone, pixels, views=views, seed=config.seed + number, precision=config.precision
        ).map
    else:
        with autocast(backbone.device, uses_bf16(backbone.device, config.precision)):
            clean = backbone.forward(pixels).map
    return F.avg_pool2d(clean.float(), 2)[0].flatten(1).T


class WhitenedStudent(Student):
    """Also asks for the direction of centred tokens whose channels were made equally wide."""

    mean: Tensor | None = None
    matrix: Tensor

    def _losses(self, batch: Batch) -> dict[str, Tensor]:
        losses = super()._losses(batch)
        if self.mean is None:  # timed before any target is there
            return losses
        patches, _ = read_tokens(self.backbone, batch.pixels, with_class=False)
        both = ((one.float() - self.mean) @ self.matrix for one in (patches, batch.patches))
        losses["loss"] = losses["loss"] + (1 - cosine(*both))[batch.shown].mean()
        return losses


def whiten() -> None:
    """Add a loss in the teacher's whitened space."""
    plain = TargetCache.split_readable

    def split_readable(self: TargetCache) -> object:
        numbers, skipped = plain(self)
        tokens = torch.cat([self[n].patches.float() for n in numbers[:SAMPLED]])
        centred = tokens - tokens.mean(0)
        values, vectors = torch.linalg.eigh((centred.T @ centred / len(tokens)).double())
        scales = values.clamp(min=float(values[-1]) * 1e-6).pow(-0.25)  # power 0.5 of the spread
        WhitenedStudent.mean = tokens.mean(0)
        WhitenedStudent.matrix = (vectors * scales).float()
        return numbers, skipped

    TargetCache.split_readable = split_readable  # type: ignore[assignment,method-assign]
    distill.Student = WhitenedStudent  # type: ignore[misc]


class RelatedStudent(Student):
    """Also asks for the similarities between the patches of an image."""

    def _losses(self, batch: Batch) -> dict[str, Tensor]:
        losses = super()._losses(batch)
        patches, _ = read_tokens(self.backbone, batch.pixels, with_class=False)
        own, wanted = (similarities(one.float()) for one in (patches, batch.patches))
        pairs = batch.shown[:, :, None] & batch.shown[:, None]
        losses["loss"] = losses["loss"] + RELATIONS * (own - wanted)[pairs].square().mean()
        return losses


def similarities(tokens: Tensor) -> Tensor:
    """Cosines of centred tokens with each other, (B, N, C) -> (B, N, N)."""
    unit = F.normalize(tokens - tokens.mean(1, keepdim=True), dim=-1)
    return unit @ unit.transpose(1, 2)


def relate() -> None:
    """Add a loss on relations."""
    distill.Student = RelatedStudent  # type: ignore[misc]


TRIALS = {"larger": use_larger_teacher, "whitened": whiten, "relations": relate}
