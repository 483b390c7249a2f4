"""A ViT that runs its own blocks on ever fewer patches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from clearvit.backbones.blueprint import Blueprint
from clearvit.backbones.capture import Kind, capturing, check_kinds, per_block, prefix_to_patches
from clearvit.backbones.tokens import PerBlock, Tokens
from clearvit.backbones.vit import Embedded, VitBackbone
from clearvit.errors import ModelError
from clearvit.options import Size
from clearvit.pruning.modules import LearnedFill, Predictors
from clearvit.pruning.pruning_plan import Plan, make_plan
from clearvit.pruning.reduction import (
    KeptTokens,
    last_values,
    reduce_tokens,
    restore_captured,
    restore_tokens,
)
from clearvit.pruning.scores import captures_for, mean_attention, random_scores
from clearvit.pruning.selection import (
    Choice,
    assign_most_similar,
    assign_preceding,
    deal_checkerboard,
    match_pairs,
    match_scored,
    select_top,
)
from clearvit.pruning.speed import Speed

if TYPE_CHECKING:
    from clearvit.pruning.training.train import TrainingReport


@dataclass(frozen=True)
class Running:
    """A batch between two blocks."""

    x: Tensor  # (B, P + K, C)
    kept: KeptTokens
    grid: Size  # (H, W) of all patches
    captured: dict[Kind, Tensor] = field(default_factory=dict)  # from the last block


class PrunedBackbone(VitBackbone):
    """A ViT that removes patches before some blocks and gives its tokens on the full grid.

    The network and its blocks are those of the dense backbone, unchanged and shared.

    Attributes:
        dense: The backbone it was made of.
        plan: Where, how many and which patches are removed.
        predictors: The trained scorers, or None.
        learned_fill: Restores removed patches where that was trained; else None.
        speed: What was measured, where `keep` was a speed such as "2x"; else None.
        report: How the training went, where `cv.prune` trained it; else None.
    """

    speed: Speed | None = None
    report: TrainingReport | None = None

    def __init__(
        self,
        dense: VitBackbone,
        plan: Plan,
        predictors: Predictors | None = None,
        learned_fill: LearnedFill | None = None,
    ) -> None:
        """Wrap a dense backbone.

        Args:
            dense: Any ViT.
            plan: Made by `make_plan`; without predictors it names a scorer.
            predictors: One for each stage of the plan.
            learned_fill: Only and always with `fill="learned"`.
        """
        self.__dict__.update(dense.__dict__)
        self.name = f"{dense.name} pruned to {', '.join(f'{part:.3g}' for part in plan.keep)}"
        self.dense = dense
        self.plan = plan
        self.predictors = None if predictors is None else predictors.eval()
        self.learned_fill = learned_fill
        self.blueprint = None  # a saved copy of the network alone would not be pruned
        _check_modules(self)
        _check_attention(self)
        for module in self._modules():
            module.to(dense.device, dense.dtype)

    def forward(
        self,
        pixels: Tensor,
        *,
        layers: Sequence[int] | None = None,
        norm: bool = True,
        capture: Sequence[str] | str = (),
    ) -> Tokens:
        """Run the network on normalized pixels (B, 3, height, width), with gradients.

        Everything comes back on the full grid: `layers` as `fill` says; captured queries, keys,
        values and rows of attention of a dropped patch are those of the patch that represents it,
        and no token attends to a dropped patch.
        """
        wanted = self.block_indices(layers or ())
        kinds = self._checked_kinds(capture)
        captured_blocks = wanted or [self.depth - 1]
        x, grid, rope = self.embed_pixels(pixels)
        state = self._begin(x, grid)
        outputs: dict[int, Tokens] = {}
        masks: dict[int, Tensor] = {}
        captured: dict[Kind, dict[int, Tensor]] = {kind: {} for kind in kinds}
        for index in range(self.depth):
            if index in self.plan.stages:
                state = self._reduce(state, self.plan.stages.index(index))
                masks[index] = state.kept.mask
            here = kinds if index in captured_blocks else ()
            state = self._run(state, index, rope, here)
            if index in wanted:
                last = index == self.depth - 1
                outputs[index] = self._full_grid(state, grid, norm, final=last)
            for kind in here:
                captured[kind][index] = restore_captured(
                    state.captured[kind], kind, state.kept, len(self.prefix_names)
                )
        extra: dict[str, Any] = {
            "layers": PerBlock(outputs, self.depth),
            "kept_stages": PerBlock(masks, self.depth),
        }
        final = self.finish(self._full_grid(state, grid, norm, final=True))
        return replace(final, **extra, **per_block(captured, self.depth))

    def _begin(self, x: Tensor, grid: tuple[int, int]) -> Running:
        """What enters the first block: all patches."""
        batch, length, _ = x.shape  # not len(x), which an exported graph would hold as a constant
        patches = length - len(self.prefix_names)
        return Running(x, KeptTokens.all_of(batch, patches, x.device), grid)

    def _run(
        self, state: Running, index: int, rope: Tensor | None, kinds: Sequence[Kind]
    ) -> Running:
        """Pass a batch through one block; capture what was asked and what the next stage needs."""
        needs = check_kinds([*{*kinds, *self.captures_before(index + 1)}])
        mixed = getattr(self.network, "rope_mixed", False)
        rows = _rope_rows(rope, state.kept, index, mixed=mixed)
        blocks, prefix = self.network.blocks, len(self.prefix_names)
        weighs = self.plan.weighs_merged and not state.kept.is_full
        bias = state.kept.attention_bias(prefix) if weighs else None
        with capturing(blocks, [index], needs, prefix, bias) as seen:
            x = self.run_block(index, state.x, rows, bias)
        captured = {kind: values[index] for kind, values in seen.items()}
        return Running(x, state.kept, state.grid, captured)

    def captures_before(self, block: int) -> tuple[Kind, ...]:
        """Name what the stage before a block needs from the block before it."""
        if block not in self.plan.stages or self.plan.keep[self.plan.stages.index(block)] == 1:
            return ()
        kinds = captures_for(self.plan.scorer, class_token="class" in self.prefix_names)
        return (*kinds, "key") if self.plan.represents else kinds

    def _reduce(self, state: Running, stage: int) -> Running:
        """Remove patches before a stage, counted from 0."""
        prefix = len(self.prefix_names)
        patches = state.x[:, prefix:]
        count = self.plan.counts(state.kept.assignment.shape[1])[stage]
        if self.plan.keep[stage] == 1 or count == patches.shape[1]:
            return state
        choice = self._choose(state, self._scores(state, stage), count)
        shorter, kept = reduce_tokens(
            patches, state.kept, choice, fill=self.plan.fill, merge=self.plan.merge
        )
        return Running(_join(state.x[:, :prefix], shorter), kept, state.grid)

    def _scores(self, state: Running, stage: int) -> Tensor | None:
        """Scores of the patches, (B, K); None for merging, which needs none."""
        prefix, seen, scorer = len(self.prefix_names), state.captured, self.plan.scorer
        if self.predictors is not None:
            return self.predictors.keep_scores(stage, state.x[:, prefix:])
        if scorer == "random":
            return random_scores(state.kept.positions, state.kept.assignment.shape[1], seed=stage)
        if scorer == "merge":
            return None
        if "class" in self.prefix_names:
            return prefix_to_patches(seen["prefix_attention"], prefix)
        scale = self.network.blocks[self.plan.stages[stage] - 1].attn.scale
        return mean_attention(seen["query"], seen["key"], scale, prefix)

    def _choose(self, state: Running, scores: Tensor | None, count: int) -> Choice:
        """Choose `count` patches to keep, and assign the others to them."""
        if not self.plan.represents:
            assert scores is not None
            return assign_preceding(select_top(scores, count), scores.shape[1])
        # heads share one similarity, the mean of their keys
        key = state.captured["key"][:, :, len(self.prefix_names) :].mean(1)
        whole = state.kept.is_full and self.plan.merge
        sides = deal_checkerboard(state.grid, key.device) if whole else None
        if scores is None:
            return match_pairs(key, state.kept.sizes, count, sides=sides)
        if self.plan.merge:
            return match_scored(key, state.kept.sizes, count, scores, sides)
        return assign_most_similar(key, select_top(scores, count))

    def _full_grid(
        self, state: Running, grid: tuple[int, int], norm: bool, *, final: bool
    ) -> Tokens:
        """Give tokens on the full grid; a learned fill was trained for the final ones."""
        x, kept = state.x, state.kept
        if not kept.is_full:
            prefix = len(self.prefix_names)
            patches = restore_tokens(x[:, prefix:], kept, self.plan.fill)
            if final and self.learned_fill is not None:
                restored = self.learned_fill(patches, last_values(x[:, prefix:], kept))
                patches = torch.where(kept.unmerged[..., None], patches, restored)
            x = _join(x[:, :prefix], patches)
        return replace(self._cut(x, grid, norm), kept=kept.mask)

    def _checked_kinds(self, capture: Sequence[str] | str) -> tuple[Kind, ...]:
        kinds = check_kinds(capture)
        if kinds and not self.plan.represents:
            raise ModelError(
                f"with fill='{self.plan.fill}' no patch represents a dropped one, so nothing can be"
                " captured on the full grid. Prune with fill='similar', or use pruned.dense."
            )
        return kinds

    def embed_pixels(self, pixels: Tensor) -> Embedded:
        """Turn pixels (B, 3, height, width) into the sequence that enters the first block."""
        return self.dense.embed_pixels(pixels)

    def run_block(
        self, index: int, x: Tensor, rope: Tensor | None, bias: Tensor | None = None
    ) -> Tensor:
        """Pass (B, T, C) through one block, whatever its length."""
        return self.dense.run_block(index, x, rope, bias)

    def resized(self, size: int | Size) -> Self:
        """Return the same network with another default size, in pixels."""
        other = super().resized(size)
        other.dense = self.dense.resized(size)
        return other

    def to(self, device: str | torch.device) -> Self:
        """Move the weights to a device; returns the backbone itself."""
        for module in self._modules():
            module.to(device)
        return super().to(device)

    def _modules(self) -> list[nn.Module]:
        return [m for m in (self.predictors, self.learned_fill) if m is not None]

    def with_keep(self, keep: float | Sequence[float]) -> PrunedBackbone:
        """Return the same model, with what it has learned, that keeps other fractions."""
        plan = self.plan
        other = make_plan(
            self.depth,
            keep=keep,
            stages=plan.stages,
            scorer=plan.scorer,
            fill=plan.fill,
            merge=plan.merge,
        )
        other = replace(other, proportional=plan.proportional)
        return PrunedBackbone(self.dense, other, self.predictors, self.learned_fill)

    def around(self, network: nn.Module, blueprint: Blueprint | None) -> PrunedBackbone:
        """Return the same pruning around another network, which may have more prefix tokens."""
        dense = self.dense.around(network, blueprint)
        return PrunedBackbone(dense, self.plan, self.predictors, self.learned_fill)

    def save(self, out: str | Path, *, kind: str = "model") -> Path:
        """Write the dense model and its pruning to a directory, as `clearvit.save` does."""
        from clearvit.pruning.pruned_files import save_pruned  # which loads into this class

        return save_pruned(self, out, kind=kind)

    def _settings(self) -> tuple[object, ...]:
        digest = hashlib.sha256()
        for tensor in (t for m in self._modules() for t in m.state_dict().values()):
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return (*self.dense._settings(), self.plan, digest.hexdigest())


def _join(prefix: Tensor, patches: Tensor) -> Tensor:
    """Put patches after the prefix tokens; OpenVINO cannot join what is empty."""
    return torch.cat([prefix, patches], dim=1) if prefix.shape[1] else patches


def _rope_rows(rope: Tensor | None, kept: KeptTokens, index: int, *, mixed: bool) -> Tensor | None:
    """Rotary rows of the kept patches, in the form `run_block` takes them."""
    if rope is None or kept.is_full:
        return rope
    if not mixed:
        return rope[kept.positions][:, None]  # (N, D) -> (b, 1, K, D)
    rows = rope[index][:, kept.positions].movedim(0, 1)  # (heads, N, D) -> (b, heads, K, D)
    return rows.expand(index + 1, *rows.shape)  # looks like one per block, costs no memory


def _check_modules(backbone: PrunedBackbone) -> None:
    """Refuse predictors and a fill that do not fit the network or the plan."""
    predictors, plan, fill = backbone.predictors, backbone.plan, backbone.learned_fill
    name, width = backbone.dense.name, backbone.width
    if (predictors is None) != (plan.scorer is not None):
        raise ModelError("a plan has either a scorer or trained predictors (scorer=None).")
    if predictors is not None and (len(predictors), predictors.width) != (len(plan.stages), width):
        raise ModelError(
            f"{len(predictors)} predictors of {predictors.width} channels do not fit '{name}' with"
            f" {width} channels and {len(plan.stages)} stages {list(plan.stages)}; give one"
            " predictor for each stage."
        )
    if (fill is not None) != (plan.fill == "learned"):
        raise ModelError("fill='learned' and a trained LearnedFill belong together.")
    if fill is not None and fill.width != width:
        raise ModelError(
            f"a LearnedFill of {fill.width} channels does not fit '{name}' with {width}."
        )


def _check_attention(backbone: PrunedBackbone) -> None:
    """Say now, not at the first image, when a block has no keys to capture."""
    for stage in backbone.plan.stages:
        kinds = check_kinds(backbone.captures_before(stage))
        try:
            with capturing(backbone.network.blocks, [stage - 1], kinds, 0):
                pass
        except ModelError as error:
            raise ModelError(
                f"'{backbone.dense.name}' cannot be pruned by scorer='{backbone.plan.scorer}' and"
                f" fill='{backbone.plan.fill}': block {stage - 1} has no plain attention. Put"
                " stages after other blocks, or use scorer='random' with fill='mean'."
            ) from error
