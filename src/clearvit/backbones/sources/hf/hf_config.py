"""What a Hugging Face `config.json` says about a vision tower, with the defaults it leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clearvit.errors import ModelError, closest
from clearvit.options import Size
from clearvit.schema import Rule, check_content, either, list_of, number, text, whole

Config = Mapping[str, Any]

PAIRS = ("clip", "siglip", "siglip2")  # an image and a text tower in one checkpoint

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "quick_gelu": "quick_gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",  # the same formula, written out
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
}
"""Names of activations in transformers and in timm."""

_SIDES = either(whole(1, 65536), list_of(whole(1, 65536), 2, 2))
RULES: dict[str, Rule] = {  # of what is read here; other keys are never looked at
    "hidden_size": whole(1, 65536),
    "num_hidden_layers": whole(1, 512),
    "num_attention_heads": whole(1, 1024),
    "intermediate_size": whole(1, 1 << 20),
    "mlp_ratio": number(1e-3, 1024),
    "image_size": _SIDES,
    "patch_size": _SIDES,
    "num_patches": whole(1, 1 << 20),
    "hidden_act": text,
    "layer_norm_eps": number(0, 1),
    "num_register_tokens": whole(0, 4096),
    "rope_theta": number(1e-6, 1e12),
}


@dataclass(frozen=True)
class Settings:
    """A vision tower in numbers; sizes are (height, width) in pixels."""

    width: int
    depth: int
    heads: int
    hidden: int  # width inside the MLP
    image: Size
    patch: Size
    activation: str  # timm's name
    epsilon: float
    qkv_bias: bool = True
    registers: int = 0
    gated: bool = False
    theta: float = 100.0  # base period of rotary positions


def exact_ratio(width: int, hidden: int) -> float:
    """Find a ratio with int(width * ratio) = hidden, also where the division rounds down."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else (hidden + 0.5) / width


def vision_part(config: Config) -> tuple[str, Config]:
    """Give the model type and the settings of the vision tower, also of a CLIP-like pair."""
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise ModelError("config.json names no model_type, so it is no transformers model.")
    if kind not in PAIRS:
        return kind, config
    inner = config.get("vision_config") or {}
    if not isinstance(inner, Mapping):
        raise ModelError("config.json is malformed: vision_config is no object.")
    return f"{kind}_vision_model", inner


def settings_of(config: Config, defaults: Config) -> Settings:
    """Read the settings, taking from `defaults` what config.json does not say."""
    full = {**defaults, **{key: value for key, value in config.items() if value is not None}}
    if full.get("num_channels", 3) != 3:
        raise ModelError(f"the model wants {full['num_channels']} channels; clearvit reads RGB.")
    check_content(
        full, RULES, where="config.json", error=ModelError, optional=RULES, ignore_unknown=True
    )
    try:
        width = int(full["hidden_size"])
        patch = _pair(full["patch_size"])
        gated = bool(full.get("use_swiglu_ffn") or full.get("use_gated_mlp"))
        return Settings(
            width=width,
            depth=int(full["num_hidden_layers"]),
            heads=int(full["num_attention_heads"]),
            hidden=_hidden(full, width),
            image=_image(full, patch),
            patch=patch,
            activation=_activation(str(full["hidden_act"])),
            epsilon=float(full["layer_norm_eps"]),
            qkv_bias=bool(full.get("qkv_bias", full.get("query_bias", True))),
            registers=int(full.get("num_register_tokens", 0)),
            gated=gated,
            theta=float(full.get("rope_theta", 100.0)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"config.json is malformed: {type(error).__name__}: {error}.") from error


def _hidden(config: Config, width: int) -> int:
    if "mlp_ratio" not in config:
        return int(config["intermediate_size"])
    hidden = int(width * config["mlp_ratio"])  # the DINOv2 families
    # A gate needs a third matrix, so two thirds of the width, rounded up to a multiple of 8.
    return (int(hidden * 2 / 3) + 7) // 8 * 8 if config.get("use_swiglu_ffn") else hidden


def _image(config: Config, patch: Size) -> Size:
    if "num_patches" not in config:
        return _pair(config["image_size"])
    side = int(config["num_patches"] ** 0.5)  # SigLIP 2 with native aspect ratio: a square table
    return side * patch[0], side * patch[1]


def _pair(value: Any) -> Size:
    if isinstance(value, int):
        return value, value
    height, width = value
    return int(height), int(width)


def _activation(name: str) -> str:
    if name not in ACTIVATIONS:
        raise ModelError(
            f"the activation '{name}' (hidden_act) cannot be held by timm's ViT; supported:"
            f" {', '.join(ACTIVATIONS)}.{closest(name, ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]
