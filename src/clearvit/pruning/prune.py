"""`cv.prune`: a Backbone that removes patches as it goes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.saved import save
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError, OptionError
from clearvit.options import with_options
from clearvit.progress import Progress
from clearvit.pruning.config import PruneConfig
from clearvit.pruning.pruned import PrunedBackbone
from clearvit.pruning.pruning_plan import make_plan
from clearvit.pruning.speed import find_keep
from clearvit.runs import claim_files
from clearvit.views.denoised import DenoisedBackbone

LEAST = 0.34  # of the patches after the last stage, as keep=0.7 leaves with three stages
UNTRAINED_NOTE = (
    "note: with so few patches and no training, the class token of each of three models fell below"
    " a cosine of 0.9 to the dense one. Give images to train on, or keep 0.7 or more; clearvit"
    " bench MODEL --keep ... --images DIR measures it on yours"
)


@with_options(PruneConfig)
def prune(
    backbone: Backbone,
    images: str | Path | Iterable[object] | None = None,
    *,
    out: str | Path | None = None,
    config: PruneConfig,
    progress: Progress | None = None,
) -> PrunedBackbone:
    """Remove patches before some blocks; with images, train predictors that choose them.

    Prefix tokens (class, distillation, registers) are never removed, at least one patch is kept,
    and the tokens that come out lie on the full grid; `tokens.kept` tells which are real.

    Without images nothing is trained: `scorer` chooses, and the result shares the weights of the
    argument. With images, predictors are trained as in DynamicViT (Rao et al., NeurIPS 2021), with
    the dense model as teacher; with a classifier and labels its cross-entropy is used too. The
    argument stays as it was either way.

    Args:
        backbone: A ViT. Of a pruned one, the model it was made of.
        images: A folder, a file, a pattern or a list of these to train on. A folder with one folder
            for each class of the model's classifier has labels.
        out: Directory for the result, which `clearvit.load("dir:OUT")` loads. An interrupted
            training continues when called again with the same arguments.
        config: All options at once, instead of keywords.
        progress: Called with the stage, the steps done and all steps; a bar by default.

    Returns:
        The pruned model. `.report` tells how a training went, `.speed` what `keep="2x"` found.
    """
    dense = check_prunable(backbone)
    if config.size is not None:
        dense = dense.resized(config.size)
    if out is not None:
        _check_savable(dense)
    if images is None:
        if out is not None:
            claim_files(Path(out), (), kind="prune")  # refuse before the work
        pruned = prune_untrained(dense, config)
        if progress and pruned.plan.keep[-1] < LEAST:
            progress("prune", 0, 0, UNTRAINED_NOTE)
        if out is not None:
            save(pruned, out, kind="prune")
        return pruned
    from clearvit.pruning.training.train import train_pruned  # which prunes too, as a baseline

    _check_trainable(config)
    return train_pruned(dense, images, out, config, progress)


def _check_savable(dense: VitBackbone) -> None:
    if dense.blueprint is None:
        raise ModelError(
            f"'{dense.name}' cannot be saved: its architecture is not known to timm. Prune it"
            " without out."
        )


def prune_untrained(dense: VitBackbone, config: PruneConfig) -> PrunedBackbone:
    """Prune by a scorer; `keep="2x"` is found by timing."""
    useless = config.training_options()
    if useless:
        raise OptionError(
            f"{useless[0]} is an option of training, and nothing is trained without images. Give"
            " images to train on.",
            useless[0],
        )

    def pruned(keep: float | tuple[float, ...]) -> PrunedBackbone:
        plan = make_plan(
            dense.depth,
            keep=keep,
            stages=config.stages,
            scorer=config.untrained_scorer,
            fill=config.fill,
            merge=config.merge,
        )
        return PrunedBackbone(dense, plan)

    if not isinstance(config.keep, str):
        return pruned(config.keep)
    stages = len(pruned(1.0).plan.stages)
    speed = find_keep(dense, config.keep, pruned, stages=stages)
    found = pruned(speed.keep)
    found.speed = speed
    return found


def _check_trainable(config: PruneConfig) -> None:
    if config.scorer is not None:
        raise OptionError(
            f"scorer='{config.scorer}' needs no training; leave the images out, or the scorer.",
            "scorer",
        )


def check_prunable(backbone: Backbone) -> VitBackbone:
    """Give the dense ViT to prune, or refuse what has no blocks to prune between."""
    if isinstance(backbone, PrunedBackbone):
        return backbone.dense
    if isinstance(backbone, DenoisedBackbone):
        raise ModelError(f"'{backbone.name}' averages views. Prune '{backbone.inner.name}' itself.")
    if not isinstance(backbone, VitBackbone):
        raise ModelError(
            f"'{backbone.name}' ({type(backbone.network).__name__}) is a grid-only backbone: it has"
            " no sequence of tokens to prune. Prune a ViT: timm's VisionTransformer or Eva."
        )
    if backbone.fine is not None:
        raise ModelError(
            f"'{backbone.name}' has a head for fine tokens, which was trained on all patches. Prune"
            " the model it was made of."
        )
    kind = type(backbone)
    plain = (VitBackbone.forward, VitBackbone.after_block)
    if (kind.forward, kind.after_block) != plain:
        raise ModelError(
            f"'{backbone.name}' is a {kind.__name__}, which changes tokens between or after blocks"
            " by their position on the full grid. Prune the model it was made of."
        )
    return backbone
