"""The student of predictor training: a masked network beside the dense model that teaches it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clearvit.backbones.sources.lvvit_network import LvVit
from clearvit.backbones.vit import VitBackbone
from clearvit.pruning.config import PruneConfig
from clearvit.pruning.modules import Predictors
from clearvit.pruning.pruned import PrunedBackbone
from clearvit.pruning.pruning_plan import Plan
from clearvit.pruning.training import losses
from clearvit.pruning.training.masked import Masked, gumbel_decide, masked_forward
from clearvit.pruning.training.warmup import warmup_loss

# DynamicViT never trains the embeddings; prefix tokens are part of what must not change
NEVER_TRAINED = ("cls_token", "dist_token", "reg_token", "pos_embed")


@dataclass(frozen=True)
class TrainingBatch:
    """Images of one step, its Gumbel noise, and the labels."""

    pixels: Tensor  # (B, 3, height, width)
    noise: Tensor  # Gumbel noise, (B, S, N, 2)
    labels: Tensor | None = None  # (B, K), each row sums to 1
    warmup: bool = False  # predict the attention of later blocks; no decisions are taken


class MaskedStudent(nn.Module):
    """A copy of a backbone whose predictors, and perhaps weights, learn from the dense model.

    Args:
        teacher: The dense model; it is neither changed nor given gradients.
        plan: Stages and fractions.
        config: Weight and target of the ratio loss, gradient checkpointing, seed.
        logits: Whether the output of the network is a classifier's; else it is a feature.
        unfreeze: Whether the backbone is trained.
    """

    def __init__(
        self,
        teacher: VitBackbone,
        plan: Plan,
        config: PruneConfig,
        *,
        logits: bool,
        unfreeze: bool,
    ) -> None:
        super().__init__()
        self.teacher, self.plan, self.config = teacher, plan, config
        self.logits, self.unfreeze = logits, unfreeze
        self.moves_statistics = unfreeze and config.batch_statistics
        self.weights = losses.Weights(ratio=config.ratio_weight)
        self.backbone = teacher.around(copy.deepcopy(teacher.network), teacher.blueprint)
        self.network: nn.Module = self.backbone.network
        for name, parameter in self.network.named_parameters():
            parameter.requires_grad_(unfreeze and name not in NEVER_TRAINED)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.predictors = Predictors(teacher.width, len(plan.stages))
        self.predictors.to(teacher.device, teacher.dtype)

    def forward(self, batch: TrainingBatch) -> dict[str, Tensor]:
        """Compute "loss" and its parts, means over the batch."""
        if batch.warmup:
            loss = warmup_loss(self.teacher, self.predictors, self.plan, batch.pixels)
            # several processes expect a gradient of every trainable weight
            unused = [p.sum() for p in self.network.parameters() if p.requires_grad]
            return {"loss": loss + 0 * sum(unused), "warmup": loss}
        with _batch_statistics(self.network if self.moves_statistics else None):
            seen = masked_forward(
                self.backbone,
                self.predictors,
                self.plan.stages,
                batch.pixels,
                gumbel_decide(batch.noise),
                grad_checkpointing=self.config.grad_checkpointing,
            )
        parts = self._parts(seen, batch)
        weights = vars(self.weights)
        total = torch.stack([weights[name] * part for name, part in parts.items()]).sum()
        return {"loss": total, **parts}

    def _parts(self, seen: Masked, batch: TrainingBatch) -> dict[str, Tensor]:
        """Losses by the names of their weights."""
        parts = {
            "ratio": losses.ratio_loss(seen.decisions, self.plan.keep, self.config.ratio_target)
        }
        if not self.logits:
            theirs, patches = teacher_outputs(self.teacher, batch.pixels)
            ours = image_output(self.backbone, seen.sequence())
            parts["output"] = losses.relative_error(ours, theirs)
            parts["tokens"] = losses.token_loss(seen.patches, patches, seen.kept, relative=True)
            return parts
        ours, parts["tokens"], theirs = self._classified(seen, batch.pixels)
        parts["logits"] = losses.kl_divergence(ours, theirs)
        if batch.labels is not None:
            parts["labels"] = losses.cross_entropy(ours, batch.labels)
        return parts

    def _classified(self, seen: Masked, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (B, K) of the student, the loss of its patches, logits of the teacher."""
        network: Any = self.network
        if not isinstance(network, LvVit):
            theirs, patches = teacher_outputs(self.teacher, pixels)
            ours = image_output(self.backbone, seen.sequence())
            return ours, losses.token_loss(seen.patches, patches, seen.kept), theirs
        with torch.no_grad():
            found, dense = self.teacher.forward(pixels), self.teacher.network
            theirs, patches = dense.class_logits(found.prefix), dense.patch_logits(found.patches)
        loss = losses.patch_kl(network.patch_logits(seen.patches), patches, seen.kept)
        return network.class_logits(seen.prefix), loss, theirs

    @property
    def moving_buffers(self) -> dict[str, Tensor]:
        """Running statistics that the forward pass changes, by name; a resumed run needs them."""
        if not self.moves_statistics:
            return {}
        return {
            f"network.{name}.{key}": value
            for name, module in self.network.named_modules()
            if isinstance(module, nn.BatchNorm2d)
            for key, value in module.named_buffers()
            if value.is_floating_point()
        }

    def pruned(self) -> PrunedBackbone:
        """Give the hard-pruned model; a frozen one shares the teacher's weights."""
        dense = self.backbone if self.unfreeze else self.teacher
        return PrunedBackbone(dense, self.plan, self.predictors)


@contextmanager
def _batch_statistics(network: nn.Module | None) -> Iterator[None]:
    """Let batch norms use and update the statistics of a batch inside the context."""
    modules = () if network is None else network.modules()
    norms: list[Any] = [module for module in modules if isinstance(module, nn.BatchNorm2d)]
    counts = [norm.num_batches_tracked.clone() for norm in norms]
    for norm in norms:
        norm.train()
    try:
        yield
    finally:
        for norm, count in zip(norms, counts, strict=True):
            norm.eval()
            norm.num_batches_tracked.copy_(count)  # nothing reads it, so no state file holds it


@torch.no_grad()
def teacher_outputs(teacher: VitBackbone, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Output (B, D) and patches (B, N, C) of the dense model."""
    found = teacher.forward(pixels)
    return image_output(teacher, torch.cat([found.prefix, found.patches], 1)), found.patches


def image_output(backbone: VitBackbone, sequence: Tensor) -> Tensor:
    """Logits, or the class token or pooled patches, of normed tokens (B, P + N, C) -> (B, D)."""
    found: Tensor = backbone.network.forward_head(sequence)
    if found.ndim == 2:
        return found
    # a network without pooling returns its tokens
    prefix = len(backbone.prefix_names)
    return found[:, 0] if "class" in backbone.prefix_names else found[:, prefix:].mean(dim=1)
