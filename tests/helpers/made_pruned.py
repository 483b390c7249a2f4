"""Tiny backbones of many kinds, and pruned ones with predictors and fills of random weights."""

import timm
import torch

from clearvit.backbones.load import load
from clearvit.pruning.modules import LearnedFill, Predictors
from clearvit.pruning.pruned import PrunedBackbone
from clearvit.pruning.pruning_plan import make_plan
from tests.conftest import randomised, tiny_network


def tiny_eva(name="vit_small_patch16_dinov3_qkvb"):
    torch.manual_seed(0)
    small = {"img_size": 64, "patch_size": 8, "embed_dim": 48, "depth": 4, "num_heads": 3}
    network = timm.create_model(name, **(small | {"num_classes": 0, "dynamic_img_size": True}))
    return load(randomised(network))


BACKBONES = {
    "plain": lambda: load(tiny_network(depth=4)),
    "registers, layer scale, q/k norm": lambda: load(
        tiny_network(depth=4, reg_tokens=3, no_embed_class=True, init_values=0.3, qk_norm=True)
    ),
    "no class token": lambda: load(tiny_network(depth=4, class_token=False, global_pool="avg")),
    "rotary, registers": tiny_eva,
    "rotary, one per block": lambda: tiny_eva("vit_small_patch16_rope_mixed_224"),
    "rotary, SwiGLU": lambda: tiny_eva("eva02_tiny_patch14_224"),
}


def prune_with(backbone, predictors=None, fill="similar", **options):
    """Prune by predictors, or by a scorer, with any fill."""
    learned = fill if isinstance(fill, LearnedFill) else None
    if predictors is not None:
        options["scorer"] = None
    named = "learned" if learned is not None else fill
    plan = make_plan(backbone.depth, fill=named, **options)
    return PrunedBackbone(backbone, plan, predictors, learned)


def random_predictors(width, stages):
    """Predictors whose scores are well apart; fresh ones score all patches alike."""
    predictors = Predictors(width, stages)
    with torch.no_grad():
        for parameter in predictors.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return predictors


def fill_of(name, width):
    """A fill by its name; a learned one has random weights."""
    if name != "learned":
        return name
    torch.manual_seed(5)
    fill = LearnedFill(width)
    torch.nn.init.normal_(fill.outer.weight, std=0.1)
    return fill.requires_grad_(False)
