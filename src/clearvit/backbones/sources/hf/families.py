"""The Hugging Face families: how a config becomes a timm network and where its tensors go.

Classification heads, poolers, decoders and text towers are dropped on the way in: the vision
network has no place for them. Every other tensor must be accounted for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from clearvit.backbones.blueprint import Blueprint
from clearvit.backbones.sources.hf.hf_config import (
    PAIRS,
    Config,
    Settings,
    exact_ratio,
    settings_of,
    vision_part,
)
from clearvit.backbones.sources.hf.key_tables import (
    clip_rules,
    deit_rules,
    dinov2_registers_rules,
    dinov2_rules,
    dinov3_rules,
    siglip2_rules,
    siglip_rules,
    vit_rules,
)
from clearvit.backbones.sources.hf.renaming import (
    Rule,
    State,
    absolute_name,
    expand_blocks,
    from_source,
    to_source,
)
from clearvit.errors import ModelError, closest
from clearvit.options import PositionRule

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
OPENAI = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
SIZES = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
    "hidden_act": "gelu",
}


@dataclass(frozen=True)
class Family:
    """One kind of vision tower in transformers."""

    defaults: Config  # what transformers leaves out of config.json
    rules: Callable[[Settings], list[Rule]]
    blueprint: Callable[[Settings, State], Blueprint]  # from the settings and our weights
    prefixes: tuple[str, ...]  # where the tower may stand in a checkpoint; first: with a head
    ignored: tuple[str, ...]  # names without a place in the vision network
    positions: PositionRule
    colors: tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation
    interpolation: str = "bicubic"
    bare: bool = True  # a model without a head has no prefix
    check: Callable[[Config], None] = lambda config: None  # refuse what timm cannot hold


def recognize_family(config: Config) -> tuple[Family, Settings]:
    """Find the family of a config and read its settings."""
    kind, inner = vision_part(config)
    if kind not in FAMILIES:
        raise ModelError(
            f"model_type '{kind}' is not supported; supported: {', '.join(SUPPORTED)}."
            f"{closest(kind, SUPPORTED)}"
        )
    family = FAMILIES[kind]
    family.check({**family.defaults, **inner})
    return family, settings_of(inner, family.defaults)


def from_hf(state: State, config: Config) -> dict[str, Tensor]:
    """Translate a transformers checkpoint into the weights of the timm network.

    Args:
        state: Tensors by their names in model.safetensors.
        config: The content of config.json.
    """
    family, settings = recognize_family(config)
    prefix = next((p for p in family.prefixes if _stands_at(p, state)), "")
    ignored = [absolute_name(pattern, prefix.replace(".", r"\.")) for pattern in family.ignored]
    return from_source(
        state, expand_blocks(family.rules(settings), settings.depth, prefix), ignored
    )


def to_hf(state: State, config: Config) -> dict[str, Tensor]:
    """Translate the weights of the timm network into a transformers checkpoint; undoes `from_hf`.

    Names carry the prefix of the class in config["architectures"]. Where the class position was
    folded into the class token, its row of the position table becomes zero.
    """
    family, settings = recognize_family(config)
    architecture = str((config.get("architectures") or [""])[0])
    prefix = "" if family.bare and "For" not in architecture else family.prefixes[0]
    return to_source(state, expand_blocks(family.rules(settings), settings.depth, prefix))


def blueprint_for(state: State, config: Config) -> Blueprint:
    """Describe the timm network for weights that `from_hf` translated."""
    family, settings = recognize_family(config)
    return family.blueprint(settings, state)


def _stands_at(prefix: str, state: State) -> bool:
    return any(name.startswith(f"{prefix}embeddings.") for name in state)


# --- networks -------------------------------------------------------------------------------


def _common(s: Settings) -> dict[str, Any]:
    return {
        "img_size": list(s.image),
        "patch_size": list(s.patch),
        "embed_dim": s.width,
        "depth": s.depth,
        "num_heads": s.heads,
        "mlp_ratio": exact_ratio(s.width, s.hidden),
        "qkv_bias": s.qkv_bias,
        "global_pool": "token",
        "num_classes": 0,
    }


def _plain(architecture: str) -> Callable[[Settings, State], Blueprint]:
    def blueprint(s: Settings, state: State) -> Blueprint:
        return Blueprint(architecture, {**_common(s), "act_layer": s.activation}, s.epsilon)

    return blueprint


def _dinov2(s: Settings, state: State) -> Blueprint:
    arguments = _common(s)
    if s.gated:  # timm keeps gate and value in one matrix and always activates with SiLU
        arguments["mlp_ratio"] = exact_ratio(s.width, 2 * s.hidden)
    else:
        arguments["act_layer"] = s.activation
    return Blueprint(f"vit_{'giant' if s.gated else 'base'}_patch14_dinov2", arguments, s.epsilon)


def _dinov2_registers(s: Settings, state: State) -> Blueprint:
    plain = _dinov2(s, state)
    arguments = {**plain.arguments, "reg_tokens": s.registers, "no_embed_class": True}
    return Blueprint(plain.architecture, arguments, s.epsilon)


def _clip(s: Settings, state: State) -> Blueprint:
    head = state.get("head.weight")
    arguments = {**_common(s), "act_layer": s.activation}
    arguments["num_classes"] = 0 if head is None else len(head)
    return Blueprint("vit_base_patch16_clip_224", arguments, s.epsilon)


def _siglip(s: Settings, state: State) -> Blueprint:
    arguments = {**_common(s), "act_layer": s.activation, "global_pool": "map"}
    if "attn_pool.latent" not in state:
        arguments |= {"global_pool": "avg", "fc_norm": False}
    return Blueprint("vit_base_patch16_siglip_224", arguments, s.epsilon)


def _dinov3(s: Settings, state: State) -> Blueprint:
    arguments = {
        **_common(s),
        "num_reg_tokens": s.registers,
        "rope_temperature": s.theta,
        # Not what transformers calls pos_embed_rescale: that is an augmentation of training.
    }
    if s.gated:
        arguments["swiglu_align_to"] = 1  # separate matrices for gate and value, of any width
    size = "small_plus" if s.gated else "small"
    return Blueprint(f"vit_{size}_patch16_dinov3_qkvb", arguments, s.epsilon)


def _check_dinov3(config: Config) -> None:
    """Refuse what timm's Eva has no switch for."""
    wanted = {
        "key_bias": False,
        "value_bias": config["query_bias"],
        "proj_bias": True,
        "mlp_bias": True,
        "hidden_act": "silu" if config["use_gated_mlp"] else "gelu",
    }
    wrong = [f"{name}={config[name]!r}" for name, value in wanted.items() if config[name] != value]
    if wrong:
        raise ModelError(
            f"timm's DINOv3 cannot hold {', '.join(wrong)}; it needs"
            f" {', '.join(f'{name}={value!r}' for name, value in wanted.items())}."
        )


# --- the families ---------------------------------------------------------------------------

_VIT = {**SIZES, "intermediate_size": 3072, "layer_norm_eps": 1e-12}
_DINOV2 = {**SIZES, "patch_size": 14, "mlp_ratio": 4, "layer_norm_eps": 1e-6}
_SIGLIP = {
    **SIZES,
    "intermediate_size": 3072,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
_CLIP = {
    **SIZES,
    "intermediate_size": 3072,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
_DINOV3 = {
    **SIZES,
    "hidden_size": 384,
    "num_attention_heads": 6,
    "intermediate_size": 1536,
    "layer_norm_eps": 1e-5,
    "query_bias": True,
    "key_bias": False,
    "value_bias": True,
    "proj_bias": True,
    "mlp_bias": True,
    "use_gated_mlp": False,
}
_CLASSIFIERS = (r"/classifier\.",)
_PAIR = (  # the other half of a CLIP-like model; position_ids were saved by old versions
    r"/text_model\.",
    r"/text_projection\.",
    r"/logit_scale$",
    r"/logit_bias$",
    r"embeddings\.position_ids$",
    *_CLASSIFIERS,
)
_POOLER, _MASK, _DECODER = r"pooler\.", r"embeddings\.mask_token$", r"/decoder\."

_SIGLIP_FAMILY = Family(
    defaults=_SIGLIP,
    rules=siglip_rules,
    blueprint=_siglip,
    prefixes=("vision_model.", ""),
    ignored=_PAIR,
    positions="bicubic",
    colors=HALF,
    bare=False,
)
_DINOV2_FAMILY = Family(
    defaults=_DINOV2,
    rules=dinov2_rules,
    blueprint=_dinov2,
    prefixes=("dinov2.", ""),
    ignored=_CLASSIFIERS,
    positions="bicubic",
    colors=IMAGENET,
)

FAMILIES: dict[str, Family] = {
    "vit": Family(
        defaults=_VIT,
        rules=vit_rules,
        blueprint=_plain("vit_base_patch16_224"),
        prefixes=("vit.", ""),
        ignored=(*_CLASSIFIERS, _POOLER, _MASK, _DECODER),
        positions="bicubic",
        colors=HALF,
        interpolation="bilinear",
    ),
    "deit": Family(
        defaults=_VIT,
        rules=deit_rules,
        blueprint=_plain("deit_base_distilled_patch16_224"),
        prefixes=("deit.", ""),
        ignored=(r"/(cls_|distillation_)?classifier\.", _POOLER, _MASK, _DECODER),
        positions="bicubic",
        colors=IMAGENET,
    ),
    "vit_mae": Family(  # the encoder, which sees every patch; norm_pix_loss concerns the decoder
        defaults=_VIT,
        rules=vit_rules,
        blueprint=_plain("vit_base_patch16_224"),
        prefixes=("vit.", ""),
        ignored=(_DECODER,),
        positions="bicubic",
        colors=IMAGENET,
    ),
    "dinov2": _DINOV2_FAMILY,
    "dinov2_with_registers": replace(
        _DINOV2_FAMILY,
        defaults={**_DINOV2, "patch_size": 16, "num_register_tokens": 4},
        rules=dinov2_registers_rules,
        blueprint=_dinov2_registers,
        prefixes=("dinov2_with_registers.", ""),
        positions="bicubic-antialias",
    ),
    "dinov3_vit": Family(
        defaults=_DINOV3,
        rules=dinov3_rules,
        blueprint=_dinov3,
        prefixes=("",),
        ignored=(),
        positions="bicubic",  # rotary: no table to resize
        colors=IMAGENET,
        interpolation="bilinear",
        check=_check_dinov3,
    ),
    "clip_vision_model": Family(
        defaults=_CLIP,
        rules=clip_rules,
        blueprint=_clip,
        prefixes=("vision_model.", ""),
        ignored=_PAIR,
        positions="bicubic",
        colors=OPENAI,
        bare=False,
    ),
    "siglip_vision_model": _SIGLIP_FAMILY,
    "siglip2_vision_model": replace(
        _SIGLIP_FAMILY,
        defaults={**_SIGLIP, "num_patches": 256},
        rules=siglip2_rules,
        positions="bilinear-antialias",
        interpolation="bilinear",
    ),
}
SUPPORTED = (*FAMILIES, *PAIRS, "cvt")
