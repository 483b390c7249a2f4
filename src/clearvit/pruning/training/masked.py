"""The training forward of DynamicViT (Rao et al., NeurIPS 2021): patches are masked, not removed.

A removed patch would get no gradient. Here all patches stay in the sequence, and a decision masks
the dropped ones in the attention of the others, so that a predictor learns what they contribute.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from clearvit.backbones.capture import capturing
from clearvit.backbones.neurons import NeuronBackbone
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError
from clearvit.pruning.modules import KEEP, Predictors

# A dropped key keeps this fraction of its weight: too little to change a token, enough for the
# gradient. A clamped mask or -inf gives the same tokens and cuts the gradient of the decision.
EPSILON = 1e-8

Decide = Callable[[int, Tensor], Tensor]
"""Called with a stage from 0 and log-probabilities (B, N, 2); returns 1 to keep, 0 to drop."""


@dataclass(frozen=True)
class Masked:
    """All tokens after the final norm, dropped ones too, and what was decided."""

    prefix: Tensor  # (B, P, C)
    patches: Tensor  # (B, N, C)
    decisions: tuple[Tensor, ...]  # (B, N) after each stage: 1 kept, 0 dropped; with gradients
    scores: tuple[Tensor, ...]  # (B, N, 2) log-probabilities of each stage

    @property
    def kept(self) -> Tensor:
        """Which patches reached the end, (B, N) bool; straight-through ones are 1 +- 6e-8."""
        return self.decisions[-1].detach() > 0.5

    def sequence(self) -> Tensor:
        """Tokens for a head, (B, P + N, C); dropped patches are the mean of the kept.

        A head that pools patches sees the kept ones only; one that reads the class token sees no
        difference.
        """
        weight = self.decisions[-1][..., None]
        # guarded: an image may have lost every patch
        mean = (self.patches * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True).clamp(1)
        shown = self.patches * weight + mean * (1 - weight)
        return torch.cat([self.prefix, shown], dim=1)


def masked_forward(
    backbone: VitBackbone,
    predictors: Predictors,
    stages: Sequence[int],
    pixels: Tensor,
    decide: Decide,
    *,
    grad_checkpointing: bool = False,
) -> Masked:
    """Run a ViT on all its patches while decisions mask some of them, with gradients.

    Args:
        backbone: The dense model.
        predictors: One for each stage.
        stages: Blocks before which a decision is taken, ascending.
        pixels: Normalised, (B, 3, height, width).
        decide: Turns log-probabilities into decisions; `gumbel_decide` for training. A patch
            dropped at an earlier stage stays dropped whatever is decided.
        grad_checkpointing: Recompute the activations of a block in the backward pass.
    """
    prefix = len(backbone.prefix_names)
    x, _, rope = backbone.embed_pixels(pixels)
    decision = torch.ones_like(x[:, prefix:, 0])
    bias: Tensor | None = None
    decisions: list[Tensor] = []
    scores: list[Tensor] = []
    for index in range(backbone.depth):
        if index in stages:
            stage = len(decisions)
            scores.append(predictors[stage](x[:, prefix:], decision))
            decision = decision * decide(stage, scores[-1])
            decisions.append(decision)
            bias = attention_bias(decision, prefix)
        run = functools.partial(backbone.run_block, index)
        again = grad_checkpointing and torch.is_grad_enabled()
        x = checkpoint(run, x, rope, bias, use_reentrant=False) if again else run(x, rope, bias)
    x = backbone.network.norm(x)
    return Masked(x[:, :prefix], x[:, prefix:], tuple(decisions), tuple(scores))


def attention_bias(decision: Tensor, prefix: int) -> Tensor:
    """What to add to attention logits so that only itself attends to a dropped patch.

    With M_ij = p_j for i != j and M_ii = 1, where p is 1 for prefix tokens and the decision for
    patches, softmax(logits + log(M + 1e-8)) is DynamicViT's masked softmax up to 1e-6, and so is
    its gradient.

    Args:
        decision: 1 for kept patches, 0 for dropped ones, (B, N).
        prefix: Number of prefix tokens P.

    Returns:
        (B, 1, P + N, P + N), for all heads.
    """
    policy = torch.cat([decision.new_ones(len(decision), prefix), decision], dim=1)
    itself = torch.eye(policy.shape[1], device=policy.device, dtype=policy.dtype)
    seen = policy[:, None, :] * (1 - itself) + itself
    return (seen + EPSILON).log()[:, None]


def gumbel_decide(noise: Tensor) -> Decide:
    """Decide by Gumbel-softmax, hard with straight-through gradients, temperature 1.

    Args:
        noise: Gumbel noise of all stages, (B, S, N, 2).
    """

    def decide(stage: int, scores: Tensor) -> Tensor:
        noisy = scores + noise[:, stage].to(scores)
        soft = noisy.softmax(dim=-1)[..., KEEP]
        hard = (noisy[..., KEEP] >= noisy[..., 1 - KEEP]).to(soft)
        return hard - soft.detach() + soft

    return decide


def gumbel_noise(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Sample standard Gumbel noise, always finite."""
    exponential = torch.empty(*shape).exponential_(generator=generator)
    return -exponential.clamp(min=torch.finfo(exponential.dtype).tiny).log()


def check_maskable(backbone: VitBackbone, stages: Sequence[int]) -> None:
    """Refuse a network with a block whose attention cannot be masked."""
    edited = max(backbone.neurons, default=0) if isinstance(backbone, NeuronBackbone) else 0
    if edited >= stages[0]:
        raise ModelError(
            f"'{backbone.name}' edits register neurons in block {edited}, which read masked"
            " patches too. Prune it without images, or train on a model cured by distillation."
        )
    try:
        with capturing(backbone.network.blocks, range(stages[0], backbone.depth), ("key",), 0):
            pass
    except ModelError as error:
        raise ModelError(
            f"predictors of '{backbone.name}' cannot be trained: it has blocks without plain"
            f" attention after block {stages[0]}. Without images cv.prune trains nothing."
        ) from error
