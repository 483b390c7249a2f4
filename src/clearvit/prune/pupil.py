"""The pupil: a masked network with predictors, beside the dense model that teaches it."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clearvit.backbones.vit import VitBackbone
from clearvit.prune import losses
from clearvit.prune.budgets import Plan
from clearvit.prune.foresight import foresight
from clearvit.prune.losses import Per, Weights
from clearvit.prune.masked import Masked, drawn, masked_forward
from clearvit.prune.predictor import Predictors
from clearvit.prune.pruned import PrunedBackbone

# DynamicViT leaves the embeddings alone; prefix tokens are part of what must not change
NEVER_TRAINED = ("cls_token", "dist_token", "reg_token", "pos_embed")


@dataclass(frozen=True)
class Lesson:
    """Pictures, the chance of this step, and what the pictures show."""

    pixels: Tensor  # (B, 3, height, width)
    noise: Tensor  # Gumbel noise, (B, S, N, 2)
    labels: Tensor | None = None  # (B, K), each row sums to 1
    foresee: bool = False  # learn attention to come; no decisions are taken


class Pupil(nn.Module):
    """A copy of a backbone whose predictors, and perhaps weights, learn from the dense model.

    Args:
        teacher: The dense model; it is neither changed nor given gradients.
        plan: Stages and shares.
        weights: Of the parts of the loss.
        logits: Whether the output of the network is a classifier's; else it is a feature.
        unlock: Whether the backbone may change.
        per: What the ratio is held to.
        recompute: Less memory, more time.
        seed: Of the predictors' first weights.
    """

    def __init__(
        self,
        teacher: VitBackbone,
        plan: Plan,
        *,
        weights: Weights,
        logits: bool,
        unlock: bool,
        per: Per = "image",
        recompute: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.teacher, self.plan, self.weights = teacher, plan, weights
        self.logits, self.unlock, self.per, self.recompute = logits, unlock, per, recompute
        self.backbone = teacher.around(copy.deepcopy(teacher.network), teacher.blueprint)
        self.network: nn.Module = self.backbone.network
        for name, parameter in self.network.named_parameters():
            parameter.requires_grad_(unlock and name not in NEVER_TRAINED)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.predictors = Predictors(teacher.width, len(plan.stages))
        self.predictors.to(teacher.device, teacher.dtype)

    def forward(self, lesson: Lesson) -> dict[str, Tensor]:
        """Compute "loss" and its parts, means over the batch."""
        if lesson.foresee:
            ahead = foresight(self.teacher, self.predictors, self.plan, lesson.pixels)
            # processes wait for a gradient of every weight that will learn
            waiting = [p.sum() for p in self.network.parameters() if p.requires_grad]
            return {"loss": ahead + 0 * sum(waiting), "foresight": ahead}
        seen = masked_forward(
            self.backbone,
            self.predictors,
            self.plan.stages,
            lesson.pixels,
            drawn(lesson.noise),
            recompute=self.recompute,
        )
        ours = vector_of(self.backbone, seen.sequence())
        theirs, patches = taught(self.teacher, lesson.pixels)
        parts = self._parts(seen, ours, theirs, patches, lesson.labels)
        weights = vars(self.weights)
        total = torch.stack([weights[name] * part for name, part in parts.items()]).sum()
        return {"loss": total, **parts}

    def _parts(
        self, seen: Masked, ours: Tensor, theirs: Tensor, patches: Tensor, labels: Tensor | None
    ) -> dict[str, Tensor]:
        """Losses by the names of their weights."""
        parts = {
            "ratio": losses.ratio(seen.decisions, self.plan.keep, self.per),
            "tokens": losses.tokens(seen.patches, patches, seen.kept, relative=not self.logits),
        }
        if not self.logits:
            return {"output": losses.output(ours, theirs), **parts}
        parts["logits"] = losses.divergence(ours, theirs)
        if labels is not None:
            parts["classes"] = losses.classes(ours, labels)
        return parts

    def pruned(self) -> PrunedBackbone:
        """Give the model that really drops patches; a locked one shares the teacher's weights."""
        dense = self.backbone if self.unlock else self.teacher
        return PrunedBackbone(dense, self.plan, self.predictors)


@torch.no_grad()
def taught(teacher: VitBackbone, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Output (B, D) and patches (B, N, C) of the dense model."""
    found = teacher.forward(pixels)
    return vector_of(teacher, torch.cat([found.prefix, found.patches], 1)), found.patches


def vector_of(backbone: VitBackbone, sequence: Tensor) -> Tensor:
    """Logits, or the class token or pooled patches, of normed tokens (B, P + N, C) -> (B, D)."""
    found: Tensor = backbone.network.forward_head(sequence)
    if found.ndim == 2:
        return found
    # a network without pooling hands its tokens on
    prefix = len(backbone.prefix_names)
    return found[:, 0] if "class" in backbone.prefix_names else found[:, prefix:].mean(dim=1)
