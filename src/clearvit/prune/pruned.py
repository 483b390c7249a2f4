"""A ViT that runs its own blocks on ever fewer patches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from clearvit.backbones.blueprint import Blueprint
from clearvit.backbones.capture import Kind, capturing, check_kinds, per_block
from clearvit.backbones.preprocessing import Size
from clearvit.backbones.tokens import PerBlock, Tokens
from clearvit.backbones.vit import Embedded, VitBackbone
from clearvit.errors import ModelError
from clearvit.prune.budgets import Plan, bucket, needed, planned
from clearvit.prune.groups import Group, joined, regrouped, some
from clearvit.prune.learned_fill import LearnedFill
from clearvit.prune.predictor import Predictors
from clearvit.prune.restore import restored
from clearvit.prune.scores import (
    class_attention,
    evidence,
    lengths,
    mean_attention,
    random_scores,
)
from clearvit.prune.selection import Choice, best, fused, merged, most_similar, preceding
from clearvit.prune.speed import Speed
from clearvit.prune.survivors import Survivors, filled, left_behind, shortened


class PrunedBackbone(VitBackbone):
    """A ViT that drops patches before some blocks and gives its tokens on the full grid.

    The network and its blocks are those of the dense backbone, unchanged and shared.

    Attributes:
        dense: The backbone it was made of.
        plan: Where, how many and which patches leave.
        predictors: The learned scorers, or None.
        learned_fill: What dropped patches show, where that was learned; else None.
        speed: What was measured, where `keep` was a speed such as "2x"; else None.
    """

    speed: Speed | None = None

    def __init__(
        self,
        dense: VitBackbone,
        plan: Plan,
        predictors: Predictors | None = None,
        learned_fill: LearnedFill | None = None,
    ) -> None:
        """Wrap a dense backbone; `prune` checks the plan."""
        self.__dict__.update(dense.__dict__)
        self.name = f"{dense.name} pruned to {', '.join(f'{share:.3g}' for share in plan.keep)}"
        self.dense = dense
        self.plan = plan
        self.predictors = None if predictors is None else predictors.eval()
        self.learned_fill = learned_fill
        self.blueprint = None  # a saved copy of the network alone would not be pruned
        _check_predictors(self)
        _check_fill(self)
        _check_attention(self)
        for module in self._learned():
            module.to(dense.device, dense.dtype)

    def forward(
        self,
        pixels: Tensor,
        *,
        layers: Sequence[int] | None = None,
        norm: bool = True,
        capture: Sequence[str] | str = (),
    ) -> Tokens:
        """Run the network on normalised pixels (B, 3, height, width), with gradients.

        Everything comes back on the full grid: `layers` as `fill` says; captured queries, keys,
        values and rows of attention of a dropped patch are those of the one that stands for it,
        and nobody attends to a dropped patch.
        """
        wanted = self.block_indices(layers or ())
        kinds = self._checked_kinds(capture)
        asked = wanted or [self.depth - 1]
        x, grid, rope = self.embed_pixels(pixels)
        groups = [self._everyone(x)]
        outputs: dict[int, Tokens] = {}
        masks: dict[int, Tensor] = {}
        captured: dict[Kind, dict[int, Tensor]] = {kind: {} for kind in kinds}
        for index in range(self.depth):
            if index in self.plan.stages:
                groups = self._pruned(groups, self.plan.stages.index(index))
                masks[index] = joined(groups, lambda g: g.survivors.mask)
            here = kinds if index in asked else ()
            groups = [self._stepped(g, index, rope, here) for g in groups]
            if index in wanted:
                last = index == self.depth - 1
                outputs[index] = self._full(groups, grid, norm, final=last)
            for kind in here:
                captured[kind][index] = joined(groups, partial(self._restored, kind))
        extra: dict[str, Any] = {
            "layers": PerBlock(outputs, self.depth),
            "kept_stages": PerBlock(masks, self.depth),
        }
        final = self._full(groups, grid, norm, final=True)
        return replace(final, **extra, **per_block(captured, self.depth))

    def _everyone(self, x: Tensor) -> Group:
        batch, length, _ = x.shape  # not len(x), which an exported graph would hold as a constant
        images = torch.arange(batch, device=x.device)
        patches = length - len(self.prefix_names)
        return Group(images, x, Survivors.everyone(batch, patches, x.device))

    def _stepped(
        self, group: Group, index: int, rope: Tensor | None, kinds: Sequence[Kind]
    ) -> Group:
        """Pass a group through one block; capture what was asked and what the next stage needs."""
        needs = set(kinds) | set(self.evidence_before(index + 1))
        ordered = check_kinds([*needs])
        mixed = getattr(self.network, "rope_mixed", False)
        rows = _rope_rows(rope, group.survivors, index, mixed=mixed)
        prefix = len(self.prefix_names)
        with capturing(self.network.blocks, [index], ordered, prefix) as seen:
            x = self.run_block(index, group.x, rows)
        return replace(group, x=x, seen={kind: values[index] for kind, values in seen.items()})

    def evidence_before(self, block: int) -> tuple[Kind, ...]:
        """What the stage before a block has to know of the block before it."""
        if block not in self.plan.stages or self.plan.keep[self.plan.stages.index(block)] == 1:
            return ()
        kinds = evidence(self.plan.scorer, class_token="class" in self.prefix_names)
        return (*kinds, "key") if self.plan.compares_keys else kinds

    def _pruned(self, groups: list[Group], stage: int) -> list[Group]:
        """Shorten the sequences before a stage, counted from 0."""
        share = self.plan.keep[stage]
        if share == 1:
            return groups
        patches = groups[0].survivors.heirs.shape[1]
        if self.plan.budget == "fixed":
            count = self.plan.counts(patches)[stage]
            return [self._shorter(g, self._scores(g, stage), count) for g in groups]
        parts = []
        for group in groups:
            scores = self._scores(group, stage)
            assert scores is not None
            mass = scores.exp() if self.predictors is not None else scores
            counts = needed(mass, share, bucket(patches))
            for count in counts.unique().tolist():
                rows = (counts == count).nonzero()[:, 0]
                parts.append(self._shorter(some(group, rows), scores[rows], count))
        return regrouped(parts)

    def _scores(self, group: Group, stage: int) -> Tensor | None:
        """Scores of the patches, (b, K); None for merging, which needs none."""
        prefix, seen, scorer = len(self.prefix_names), group.seen, self.plan.scorer
        if self.predictors is not None:
            return self.predictors.keep_scores(stage, group.x[:, prefix:])
        if scorer in ("class", "fuse"):
            if "class" in self.prefix_names:
                return class_attention(seen["prefix_attention"], prefix)
            scale = self.network.blocks[self.plan.stages[stage] - 1].attn.scale
            return mean_attention(seen["query"], seen["key"], scale, prefix)
        if scorer in ("key-norm", "value-norm"):
            return lengths(seen["key" if scorer == "key-norm" else "value"], prefix)
        if scorer == "random":
            places = group.survivors.places
            return random_scores(places, group.survivors.heirs.shape[1], seed=stage)
        return None

    def _shorter(self, group: Group, scores: Tensor | None, count: int) -> Group:
        """Reduce the patches of a group to `count`."""
        prefix = len(self.prefix_names)
        patches = group.x[:, prefix:]
        if count == patches.shape[1]:
            return group
        # heads share one similarity, as DINOv2 was measured with
        key = group.seen["key"][:, :, prefix:].mean(1) if "key" in group.seen else None
        choice = self._choice(key, scores, group.survivors.sizes, count)
        shorter, survivors = shortened(
            patches, group.survivors, choice, fill=self.plan.fill, average=self.plan.average
        )
        return Group(group.images, _behind(group.x[:, :prefix], shorter), survivors)

    def _choice(
        self, key: Tensor | None, scores: Tensor | None, sizes: Tensor, count: int
    ) -> Choice:
        if scores is None:
            assert key is not None
            return merged(key, sizes, count)
        if self.plan.average:
            assert key is not None
            return fused(key, sizes, count, scores)
        kept = best(scores, count)
        if key is None or not self.plan.compares_keys:
            return preceding(kept, scores.shape[1])
        return most_similar(key, kept)

    def _full(
        self, groups: list[Group], grid: tuple[int, int], norm: bool, *, final: bool = False
    ) -> Tokens:
        """Tokens on the full grid; a learned fill was learned for the final ones."""
        prefix = len(self.prefix_names)

        def whole(group: Group) -> Tensor:
            if group.survivors.complete:
                return group.x
            survivors, kept = group.survivors, group.x[:, prefix:]
            patches = filled(kept, survivors, self.plan.fill)
            if final and self.learned_fill is not None:
                added = self.learned_fill(patches, left_behind(kept, survivors))
                patches = torch.where(survivors.alone[..., None], patches, added)
            return _behind(group.x[:, :prefix], patches)

        mask = joined(groups, lambda g: g.survivors.mask)
        return replace(self._cut(joined(groups, whole), grid, norm), kept=mask)

    def _restored(self, kind: Kind, group: Group) -> Tensor:
        return restored(group.seen[kind], kind, group.survivors, len(self.prefix_names))

    def _checked_kinds(self, capture: Sequence[str] | str) -> tuple[Kind, ...]:
        kinds = check_kinds(capture)
        if kinds and not self.plan.compares_keys:
            raise ModelError(
                f"with fill='{self.plan.fill}' nobody stands for a dropped patch, so nothing can be"
                " captured on the full grid. Prune with fill='similar', or use pruned.dense."
            )
        return kinds

    def embed_pixels(self, pixels: Tensor) -> Embedded:
        """Turn pixels (B, 3, height, width) into the sequence that enters the first block."""
        return self.dense.embed_pixels(pixels)

    def run_block(self, index: int, x: Tensor, rope: Tensor | None) -> Tensor:
        """Pass (B, T, C) through one block, whatever its length."""
        return self.dense.run_block(index, x, rope)

    def resized(self, size: int | Size) -> Self:
        """Return the same network with another default size, in pixels."""
        other = super().resized(size)
        other.dense = self.dense.resized(size)
        return other

    def to(self, device: str | torch.device) -> Self:
        """Move the weights to a device; returns the backbone itself."""
        for module in self._learned():
            module.to(device)
        return super().to(device)

    def _learned(self) -> list[nn.Module]:
        return [m for m in (self.predictors, self.learned_fill) if m is not None]

    def keeping(self, keep: float | Sequence[float]) -> PrunedBackbone:
        """Return the same model, with what it has learned, that keeps other shares of patches."""
        plan = self.plan
        other = planned(
            self.depth,
            keep=keep,
            stages=plan.stages,
            scorer=plan.scorer,
            fill=plan.fill,
            budget=plan.budget,
            average=plan.average,
        )
        return PrunedBackbone(self.dense, other, self.predictors, self.learned_fill)

    def around(self, network: nn.Module, blueprint: Blueprint | None) -> PrunedBackbone:
        """Return the same pruning around another network, which may have more prefix tokens."""
        dense = self.dense.around(network, blueprint)
        return PrunedBackbone(dense, self.plan, self.predictors, self.learned_fill)

    def save(self, out: str | Path) -> Path:
        """Write the dense model and its pruning to a directory, as `clearvit.save` does."""
        from clearvit.prune.saved import save_pruned  # which loads into this class

        return save_pruned(self, out)

    def _settings(self) -> tuple[object, ...]:
        digest = hashlib.sha256()
        for tensor in (t for m in self._learned() for t in m.state_dict().values()):
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return (*self.dense._settings(), self.plan, digest.hexdigest())


def _behind(prefix: Tensor, patches: Tensor) -> Tensor:
    """Put patches behind the prefix; OpenVINO cannot join what is empty."""
    return torch.cat([prefix, patches], dim=1) if prefix.shape[1] else patches


def _rope_rows(
    rope: Tensor | None, survivors: Survivors, index: int, *, mixed: bool
) -> Tensor | None:
    """Rotary rows of the patches that are left, in the form `run_block` takes them."""
    if rope is None or survivors.complete:
        return rope
    if not mixed:
        return rope[survivors.places][:, None]  # (N, D) -> (b, 1, K, D)
    rows = rope[index][:, survivors.places].movedim(0, 1)  # (heads, N, D) -> (b, heads, K, D)
    return rows.expand(index + 1, *rows.shape)  # looks like one per block, costs no memory


def _check_predictors(backbone: PrunedBackbone) -> None:
    predictors, stages = backbone.predictors, backbone.plan.stages
    if predictors is None:
        return
    if len(predictors) != len(stages) or predictors.width != backbone.width:
        raise ModelError(
            f"{len(predictors)} predictors of {predictors.width} channels do not fit"
            f" '{backbone.dense.name}' with {backbone.width} channels and {len(stages)} stages"
            f" {list(stages)}; give one predictor for each stage."
        )


def _check_fill(backbone: PrunedBackbone) -> None:
    learned, fill = backbone.learned_fill, backbone.plan.fill
    if (learned is not None) != (fill == "learned"):
        raise ModelError(
            "fill='learned' needs a trained LearnedFill, which nothing else needs: pass that of a"
            " trained model, cv.prune(backbone, fill=trained.learned_fill)."
        )
    if learned is not None and learned.width != backbone.width:
        raise ModelError(
            f"a LearnedFill of {learned.width} channels does not fit '{backbone.dense.name}' with"
            f" {backbone.width}."
        )


def _check_attention(backbone: PrunedBackbone) -> None:
    """Say now, not at the first image, when a block has no keys to look at."""
    for stage in backbone.plan.stages:
        kinds = check_kinds(backbone.evidence_before(stage))
        try:
            with capturing(backbone.network.blocks, [stage - 1], kinds, 0):
                pass
        except ModelError as error:
            raise ModelError(
                f"'{backbone.dense.name}' cannot be pruned by scorer='{backbone.plan.scorer}' and"
                f" fill='{backbone.plan.fill}': block {stage - 1} has no plain attention. Put"
                " stages after other blocks, or use scorer='random' or Predictors with fill='mean'."
            ) from error
