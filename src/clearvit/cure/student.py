"""The student: the model with registers, and the losses of one batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clearvit.backbones.dense_clip import DenseClip
from clearvit.backbones.vit import VitBackbone
from clearvit.cure.loss import confidence, cosine, distance, distances
from clearvit.cure.views import Views, apply_view, taken_along


@dataclass(frozen=True)
class Lesson:
    """Pictures and what their tokens should be."""

    pixels: Tensor  # (B, 3, height, width)
    patches: Tensor  # (B, N, D)
    cls: Tensor  # (B, C) of the teacher, untouched pictures; (B, 0) for a model without
    variance: Tensor  # (B, N)
    shown: Tensor  # (B, N) bool: patches of the picture; the others are filling


@dataclass(frozen=True)
class Look:
    """How views of pictures are made."""

    grid: tuple[int, int]  # (H, W) in patches
    patch: tuple[int, int]  # (height, width) in pixels
    white: Tensor  # normalised colour of what a shift uncovers, (3,)


class Student(nn.Module):
    """A backbone that is told how far its tokens are from clean ones.

    Args:
        backbone: The network that learns.
        mse: Weight of the squared distance beside the cosine.
        class_weight: Weight of the term that keeps the class token; not for models without one.
        weigh: Let patches on which the views disagree count less.
    """

    def __init__(
        self, backbone: VitBackbone, *, mse: float, class_weight: float, weigh: bool
    ) -> None:
        super().__init__()
        self.network: nn.Module = backbone.network
        self.backbone = backbone
        self.mse, self.class_weight, self.weigh = mse, class_weight, weigh

    def forward(self, lesson: Lesson) -> dict[str, Tensor]:
        """Compute "loss" and its parts, means over the batch."""
        patches, cls = self._read(lesson.pixels, with_class=self.class_weight > 0)
        weights = lesson.shown.float()
        if self.weigh:
            weights = weights * confidence(lesson.variance.float())
        near = distance(patches, lesson.patches, mse=self.mse, weights=weights)
        losses = {"loss": near, "patches": near}
        if cls is not None:
            whole = lesson.shown.all(1).float()  # a shifted picture shows less: another class token
            kept = (distances(cls, lesson.cls, mse=self.mse) * whole).mean()
            losses["class"] = kept
            losses["loss"] = near + self.class_weight * kept
        return losses

    @torch.no_grad()
    def agreement(self, lesson: Lesson) -> tuple[Tensor, Tensor]:
        """Mean cosine of patches to their targets and of the class token to the teacher's, (B,)."""
        patches, cls = self._read(lesson.pixels, with_class=True)
        near = cosine(patches, lesson.patches).mean(1)
        return near, torch.ones_like(near) if cls is None else cosine(cls, lesson.cls)

    def _read(self, pixels: Tensor, *, with_class: bool) -> tuple[Tensor, Tensor | None]:
        """Patches (B, N, D) and, if asked for, the class token of the network itself (B, C)."""
        if "class" not in self.backbone.prefix_names or not with_class:
            return self.backbone.forward(pixels).patches, None
        if not isinstance(self.backbone, DenseClip):
            tokens = self.backbone.forward(pixels)
            return tokens.patches, tokens.cls
        # The dense head changes the class token too; what must stay is that of the last block.
        tokens = self.backbone.forward(pixels, layers=[-1])
        return tokens.patches, tokens.layers[-1].cls


def varied(lesson: Lesson, views: Views, look: Look) -> Lesson:
    """Show every picture of a lesson in a view of its own, and move its targets along.

    Args:
        lesson: B pictures as they are.
        views: B views.
        look: How a view is made.
    """
    pictures, patches, variance, shown = [], [], [], []
    for number, (offset, flip) in enumerate(zip(views.offsets.tolist(), views.flips, strict=True)):
        shift, mirrored = (offset[0], offset[1]), bool(flip)
        picture = lesson.pixels[number : number + 1]
        pictures.append(apply_view(picture, shift, mirrored, look.patch, look.white))
        targets = torch.cat([lesson.patches[number], lesson.variance[number, :, None]], 1)
        moved, seen = taken_along(targets.unflatten(0, look.grid), shift, mirrored)
        patches.append(moved[..., :-1].flatten(0, 1))
        variance.append(moved[..., -1].flatten())
        shown.append(seen.flatten())
    stacked = (torch.stack(values) for values in (patches, variance, shown))
    new_patches, new_variance, new_shown = stacked
    return Lesson(torch.cat(pictures), new_patches, lesson.cls, new_variance, new_shown)
