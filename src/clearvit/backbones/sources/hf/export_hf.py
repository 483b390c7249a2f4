"""The way back to Hugging Face: a network as config.json and the weights of transformers.

What decides is what the network computes; the name of its architecture only has to agree. ViT-MAE
and DeiT without distillation compute what ViT does, so they go back as ViT.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from clearvit.backbones.positions import resample_positions
from clearvit.backbones.preprocessing import RESAMPLING, Preprocessing
from clearvit.backbones.sources.hf.families import FAMILIES, to_hf
from clearvit.backbones.sources.hf.hf_config import settings_of
from clearvit.backbones.sources.hf.hf_files import WEIGHTS
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError
from clearvit.files import write_json, written_whole
from clearvit.options import Size
from clearvit.runs import claim_files

ACTIVATIONS = {
    "GELU": "gelu",
    "GELUTanh": "gelu_pytorch_tanh",
    "QuickGELU": "quick_gelu",
    "SiLU": "silu",
    "ReLU": "relu",
}
"""Classes of activations in timm and their names in transformers."""

CLASSES = {
    "vit": "ViTModel",
    "deit": "DeiTModel",
    "dinov2": "Dinov2Model",
    "dinov2_with_registers": "Dinov2WithRegistersModel",
    "dinov3_vit": "DINOv3ViTModel",
    "clip_vision_model": "CLIPVisionModel",
    "siglip_vision_model": "SiglipVisionModel",
}
HOLD_REGISTERS = ("dinov2_with_registers", "dinov3_vit")
PLAIN = r"(vit|deit)_(tiny|small|base|large|huge|giant|gigantic)_patch\d+_\d+"


def kind_of(backbone: VitBackbone) -> str:
    """Name the model type of transformers that computes what this backbone does.

    Raises:
        ModelError: There is none, or it has no place for registers.
    """
    kind = _find_kind(backbone)
    if kind is None:
        raise ModelError(
            f"'{backbone.name}' is no network that a Hugging Face class is known to hold. Those of"
            f" the families {', '.join(CLASSES)} can be exported; for others use format='timm'."
        )
    if "register" in backbone.prefix_names and kind not in HOLD_REGISTERS:
        raise ModelError(
            f"no Hugging Face class of this family ({kind}) can hold registers; use format='timm',"
            " or cure the model with registers=0."
        )
    if not isinstance(backbone.network.norm, nn.LayerNorm):
        raise ModelError(
            f"'{backbone.name}' norms its tokens only after pooling, which no Hugging Face class"
            " does; use format='timm'."
        )
    return kind


def has_class(backbone: VitBackbone) -> bool:
    """Tell whether Hugging Face has a class for this network as it is."""
    return _find_kind(backbone) is not None


def takes_registers(backbone: VitBackbone) -> bool:
    """Tell whether Hugging Face has a class for this network with registers."""
    return _find_kind(backbone) in ("dinov2", *HOLD_REGISTERS)


def config_of(backbone: VitBackbone) -> dict[str, Any]:
    """Write the config.json of a backbone."""
    kind = kind_of(backbone)
    block = backbone.network.blocks[0]
    size = table_size(backbone, kind)
    if len(set(size)) > 1 or len(set(backbone.patch)) > 1:
        raise ModelError(
            f"transformers wants a square table of positions, and that of '{backbone.name}' is for"
            f" {size[0]}x{size[1]} px; use format='timm'."
        )
    config: dict[str, Any] = {
        "architectures": [_class_name(backbone, kind)],
        "model_type": kind,
        "hidden_size": backbone.width,
        "num_hidden_layers": backbone.depth,
        "num_attention_heads": block.attn.num_heads,
        "hidden_act": _activation(block.mlp),
        "layer_norm_eps": backbone.network.norm.eps,
        "image_size": size[0],
        "patch_size": backbone.patch[0],
        "num_channels": 3,
        "torch_dtype": str(backbone.dtype).removeprefix("torch."),
    }
    config |= SPECIAL.get(kind, _plain)(backbone)
    hidden = settings_of(config, FAMILIES[kind].defaults).hidden
    if hidden != block.mlp.fc2.in_features:
        raise ModelError(
            f"the MLP of '{backbone.name}' is {block.mlp.fc2.in_features} wide, which the config"
            " of its Hugging Face class cannot express; use format='timm'."
        )
    return config


def table_size(backbone: VitBackbone, kind: str) -> Size:
    """Choose the size in pixels that the exported table of positions is for.

    It is the network's own, so that no number changes, unless the backbone resizes by another rule
    than the class of transformers and works at another size: then the table is resized here, and
    that size is the one at which both agree.
    """
    native: Size = tuple(backbone.network.patch_embed.img_size)
    if backbone.network.pos_embed is None or backbone.positions == FAMILIES[kind].positions:
        return native
    wanted = backbone.fitting_size()
    return native if _grid(wanted, backbone) == _grid(native, backbone) else wanted


def save_hf(backbone: VitBackbone, out: str | Path) -> Path:
    """Write config.json, model.safetensors and preprocessor_config.json for transformers."""
    config = config_of(backbone)
    state = {key: t.contiguous() for key, t in to_hf(_state(backbone, config), config).items()}
    folder = Path(out)
    files = (WEIGHTS, "config.json", "preprocessor_config.json")
    claim_files(folder, files, kind="export", strict=False)
    with written_whole(folder / WEIGHTS) as temporary:
        save_file(state, temporary, metadata={"format": "pt"})
    write_json(folder / "preprocessor_config.json", _processor(backbone.preprocessing))
    write_json(folder / "config.json", config)
    return folder


# --- weights --------------------------------------------------------------------------------


def _state(backbone: VitBackbone, config: dict[str, Any]) -> dict[str, Tensor]:
    """Give the weights of timm that the class has a place for, with the table of its size."""
    network, kind = backbone.network, config["model_type"]
    state = {key: t.detach().cpu().clone() for key, t in network.state_dict().items()}
    if kind != "clip_vision_model" or not _projects(backbone):
        state = {key: t for key, t in state.items() if not key.startswith(("head.", "head_dist."))}
    if network.pos_embed is None:
        return state
    prefix = 0 if network.no_embed_class else len(backbone.prefix_names)
    state["pos_embed"] = resample_positions(
        state["pos_embed"],
        tuple(network.patch_embed.grid_size),
        _grid((config["image_size"],) * 2, backbone),
        backbone.positions,
        prefix=prefix,
    )
    if kind == "dinov2_with_registers" and prefix:
        rows = state["pos_embed"][:, :prefix]
        state["cls_token"] = state["cls_token"] + rows[:, :1]
        state["reg_token"] = state["reg_token"] + rows[:, 1:]
        state["pos_embed"] = state["pos_embed"][:, prefix:]
    return state


def _projects(backbone: VitBackbone) -> bool:
    """Tell a projection to the text space, which has no bias, from a classifier."""
    head = backbone.network.head
    return isinstance(head, nn.Linear) and (head.bias is None or not head.bias.any())


def _grid(size: Size, backbone: VitBackbone) -> tuple[int, int]:
    return size[0] // backbone.patch[0], size[1] // backbone.patch[1]


# --- config.json ----------------------------------------------------------------------------


def _find_kind(backbone: VitBackbone) -> str | None:
    if backbone.blueprint is None or not hasattr(backbone.network.patch_embed, "proj"):
        return None
    name, network = backbone.blueprint.architecture, backbone.network
    block, prefix = network.blocks[0], backbone.prefix_names
    if getattr(network, "rope", None) is not None:
        return "dinov3_vit" if "dinov3" in name else None
    scaled = not isinstance(getattr(block, "ls1", nn.Identity()), nn.Identity)
    pre_norm = not isinstance(network.norm_pre, nn.Identity)
    if "dinov2" in name and scaled and "class" in prefix and not pre_norm:
        unlike = "register" in prefix or network.no_embed_class
        return "dinov2_with_registers" if unlike else "dinov2"
    if scaled or (network.no_embed_class and "register" not in prefix):
        return None
    if "siglip" in name and "class" not in prefix and not pre_norm:
        return "siglip_vision_model"
    if "class" not in prefix:
        return None
    if pre_norm:
        return "clip_vision_model" if re.match(r"vit_.*clip", name) else None
    if "distillation" in prefix:
        return "deit"
    return "vit" if re.fullmatch(PLAIN, name) else None


def _class_name(backbone: VitBackbone, kind: str) -> str:
    projected = kind == "clip_vision_model" and _projects(backbone)
    return CLASSES[kind] + ("WithProjection" if projected else "")


def _activation(mlp: Any) -> str:
    module = mlp.act
    name = type(module).__name__
    if getattr(module, "approximate", "none") == "tanh":
        name = "GELUTanh"
    if name not in ACTIVATIONS:
        raise ModelError(f"transformers has no activation like {name}; use format='timm'.")
    return ACTIVATIONS[name]


def _plain(backbone: VitBackbone) -> dict[str, Any]:
    block = backbone.network.blocks[0]
    return {
        "intermediate_size": block.mlp.fc2.in_features,
        "qkv_bias": block.attn.qkv.bias is not None,
    }


def _dinov2(backbone: VitBackbone) -> dict[str, Any]:
    block = backbone.network.blocks[0]
    gated = block.mlp.fc1.out_features == 2 * block.mlp.fc2.in_features
    # With a gate, transformers makes the MLP two thirds as wide as the ratio says.
    ratio = block.mlp.fc2.in_features / backbone.width * (1.5 if gated else 1.0)
    config: dict[str, Any] = {
        "mlp_ratio": int(ratio) if ratio == int(ratio) else ratio,
        "use_swiglu_ffn": gated,
        "qkv_bias": block.attn.qkv.bias is not None,
    }
    if gated:
        config["hidden_act"] = "gelu"  # unused: the gate is always SiLU
    return config


def _dinov2_registers(backbone: VitBackbone) -> dict[str, Any]:
    count = backbone.prefix_names.count("register")
    return {**_dinov2(backbone), "num_register_tokens": count}


def _dinov3(backbone: VitBackbone) -> dict[str, Any]:
    network = backbone.network
    block, biased = network.blocks[0], network.blocks[0].attn.q_bias is not None
    return {
        "intermediate_size": block.mlp.fc2.in_features,
        "query_bias": biased,
        "key_bias": False,
        "value_bias": biased,
        "use_gated_mlp": hasattr(block.mlp, "fc1_g"),
        "rope_theta": float(network.rope.temperature),
        "num_register_tokens": backbone.prefix_names.count("register"),
    }


def _clip(backbone: VitBackbone) -> dict[str, Any]:
    config = {"intermediate_size": backbone.network.blocks[0].mlp.fc2.in_features}
    if _projects(backbone):
        config["projection_dim"] = backbone.network.head.out_features
    return config


def _siglip(backbone: VitBackbone) -> dict[str, Any]:
    width = backbone.network.blocks[0].mlp.fc2.in_features
    pooled = getattr(backbone.network, "attn_pool", None) is not None
    return {"intermediate_size": width, "vision_use_head": pooled}


SPECIAL: dict[str, Callable[[VitBackbone], dict[str, Any]]] = {
    "dinov2": _dinov2,
    "dinov2_with_registers": _dinov2_registers,
    "dinov3_vit": _dinov3,
    "clip_vision_model": _clip,
    "siglip_vision_model": _siglip,
}


def _processor(preprocessing: Preprocessing) -> dict[str, Any]:
    """Say in the words of transformers how an image becomes pixels."""
    height, width = preprocessing.size
    crop = preprocessing.fit == "crop"
    whole = {"height": height, "width": width}
    return {
        "image_processor_type": "CLIPImageProcessor" if crop else "ViTImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": min(height, width)} if crop else whole,
        "resample": int(RESAMPLING[preprocessing.interpolation]),
        "do_center_crop": crop,
        **({"crop_size": whole} if crop else {}),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
    }
