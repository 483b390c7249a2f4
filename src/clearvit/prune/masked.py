"""The training forward of DynamicViT (Rao et al., NeurIPS 2021): patches are hidden, not removed.

A removed patch would get no gradient. Here everybody stays in the sequence, and a decision hides
the dropped patches from the others, so that a predictor learns what they would have brought.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from clearvit.backbones.capture import capturing
from clearvit.backbones.neurons import NeuronBackbone
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError
from clearvit.prune.predictor import KEEP, Predictors

# A dropped key keeps this share of its weight: too little for a number, enough for its gradient.
# A clamped mask or -inf would give the same tokens and cut the gradient of the decision.
LEAK = 1e-8

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
    recompute: bool = False,
) -> Masked:
    """Run a ViT on all its patches while decisions hide some of them, with gradients.

    Args:
        backbone: The dense model.
        predictors: One for each stage.
        stages: Blocks before which a decision is taken, ascending.
        pixels: Normalised, (B, 3, height, width).
        decide: Turns log-probabilities into decisions; `drawn` for training. A patch dropped at an
            earlier stage stays dropped whatever is decided.
        recompute: Forget what happens inside a block and compute it again for its gradient.
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
        run = functools.partial(_run_hidden, backbone, index, rope)
        again = recompute and torch.is_grad_enabled()
        x = checkpoint(run, x, bias, use_reentrant=False) if again else run(x, bias)
    x = backbone.network.norm(x)
    return Masked(x[:, :prefix], x[:, prefix:], tuple(decisions), tuple(scores))


def attention_bias(decision: Tensor, prefix: int) -> Tensor:
    """What to add to attention logits so that nobody but itself attends to a dropped patch.

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
    return (seen + LEAK).log()[:, None]


def drawn(noise: Tensor) -> Decide:
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


def gumbel(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Draw standard Gumbel noise, always finite."""
    waiting = torch.empty(*shape).exponential_(generator=generator)
    return -waiting.clamp(min=torch.finfo(waiting.dtype).tiny).log()


def check_can_hide(backbone: VitBackbone, stages: Sequence[int]) -> None:
    """Refuse a network with a block that cannot be told to overlook patches."""
    edited = max(backbone.neurons, default=0) if isinstance(backbone, NeuronBackbone) else 0
    if edited >= stages[0]:
        raise ModelError(
            f"'{backbone.name}' moves register neurons in block {edited}, which look at hidden"
            " patches too. Prune it with a scorer that needs no training, or train on a model cured"
            " by distillation."
        )
    try:
        with capturing(backbone.network.blocks, range(stages[0], backbone.depth), ("key",), 0):
            pass
    except ModelError as error:
        raise ModelError(
            f"predictors of '{backbone.name}' cannot be trained: it has blocks without plain"
            f" attention after block {stages[0]}. cv.prune drops patches without training."
        ) from error


def _run_hidden(
    backbone: VitBackbone, index: int, rope: Tensor | None, x: Tensor, bias: Tensor | None
) -> Tensor:
    if bias is None:
        return backbone.run_block(index, x, rope)
    with _biased(backbone.network.blocks[index].attn, bias):
        return backbone.run_block(index, x, rope)


@contextmanager
def _biased(attention: nn.Module, bias: Tensor) -> Iterator[None]:
    """Let an attention module of timm add a bias to its logits while the body runs it."""

    def add(
        _: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return arguments, {**options, "attn_mask": bias.to(arguments[0].dtype)}

    handle = attention.register_forward_pre_hook(add, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
