"""`cv.prune`: a Backbone that drops patches as it goes."""

from __future__ import annotations

from collections.abc import Sequence

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError
from clearvit.prune.budgets import Budget, planned
from clearvit.prune.learned_fill import LearnedFill
from clearvit.prune.predictor import Predictors
from clearvit.prune.pruned import PrunedBackbone
from clearvit.prune.scores import Scorer
from clearvit.prune.speed import share_for_speed
from clearvit.prune.survivors import Fill


def prune(
    backbone: Backbone,
    *,
    keep: float | Sequence[float] | str = 0.7,
    stages: Sequence[int] | None = None,
    scorer: Scorer | Predictors = "class",
    fill: Fill | LearnedFill = "similar",
    average: bool | None = None,
    budget: Budget = "fixed",
) -> PrunedBackbone:
    """Drop patches before some blocks; the argument stays as it was and shares its weights.

    Prefix tokens (class, distillation, registers) are never dropped, at least one patch is kept,
    and the tokens that come out lie on the full grid, with `tokens.kept` telling who is real.

    Args:
        backbone: A ViT. Of a pruned one, the model it was made of.
        keep: A share rho in (0, 1]: after the first stage rho of the patches are left, then
            rho^2, rho^3. Or a list, one share of the original patches for each stage. Or a speed
            such as "2x": the largest rho that is twice as fast as the dense model here and now, by
            timing both at the backbone's size; `pruned.speed` says what was found.
        stages: Blocks before which patches leave, from 1; 3, 6, 9 of 12 by default.
        scorer: "class", "fuse", "merge", "key-norm", "value-norm", "random", or trained
            `Predictors`. Without a class token, "class" takes the mean query of the patches.
        fill: What a dropped patch shows: "similar", "delta", "last", "mean", or a trained
            `LearnedFill`.
        average: Whether similar patches are averaged in pairs, those with low scores first, instead
            of dropping some; None leaves it to the scorer: "fuse" and "merge" do, others do not.
        budget: "fixed", the same count for every image, or "adaptive", as many patches as hold the
            share `keep` of the score at each stage.
    """
    dense = backbone.dense if isinstance(backbone, PrunedBackbone) else checked(backbone)
    learned = scorer if isinstance(scorer, Predictors) else None
    named = None if isinstance(scorer, Predictors) else scorer
    filler = fill if isinstance(fill, LearnedFill) else None
    shown: Fill = "learned" if isinstance(fill, LearnedFill) else fill
    if scorer in (None, "predictor"):
        raise ModelError(
            "a predictor is learned: pass trained clearvit.prune.predictor.Predictors as scorer, or"
            " load an official checkpoint with clearvit.prune.import_dynamicvit."
        )

    def pruned(share: float | Sequence[float]) -> PrunedBackbone:
        plan = planned(
            dense.depth,
            keep=share,
            stages=stages,
            scorer=named,
            fill=shown,
            budget=budget,
            average=average,
        )
        return PrunedBackbone(dense, plan, learned, filler)

    if not isinstance(keep, str):
        return pruned(keep)
    if budget != "fixed":
        raise ModelError(f"keep='{keep}' needs budget='fixed': other budgets differ by image.")
    count = len(pruned(1.0).plan.stages)
    speed = share_for_speed(dense, keep, pruned, stages=count)
    found = pruned(speed.keep)
    found.speed = speed
    return found


def checked(backbone: Backbone) -> VitBackbone:
    """Refuse what has no blocks to prune between."""
    if not isinstance(backbone, VitBackbone):
        raise ModelError(
            f"'{backbone.name}' ({type(backbone.network).__name__}) is a grid-only backbone: it has"
            " no sequence of tokens to drop some of. Prune a ViT: timm's VisionTransformer or Eva."
        )
    kind = type(backbone)
    plain = (VitBackbone.forward, VitBackbone.after_block)
    if (kind.forward, kind.after_block) != plain:
        raise ModelError(
            f"'{backbone.name}' is a {kind.__name__}, which changes tokens between or after blocks"
            " by their place on the full grid. Prune the model it was made of."
        )
    return backbone
