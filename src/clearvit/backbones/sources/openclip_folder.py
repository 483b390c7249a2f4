"""What a folder saved by open_clip may say before open_clip builds anything from it.

Its configuration can name other repositories, and keywords go on to timm and transformers, so every
key is in the lists below. Text towers of transformers are not: they are fetched by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clearvit.backbones.guarded_timm import timm
from clearvit.errors import ModelError
from clearvit.files import check_regular, read_json
from clearvit.schema import (
    Rule,
    check_content,
    either,
    flag,
    list_of,
    mapping_of,
    nothing,
    number,
    one_of,
    shorten,
    table,
    text,
    whole,
)

FOLDER_CONFIG = "open_clip_config.json"
FOLDER_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors")

_KEYWORDS = mapping_of(either(nothing, flag, number(-1e9, 1e9), text), 16)  # of norms, activations
_TOKENIZER: dict[str, Rule] = {"clean": text, "strip_sep_token": flag}
_SIDES = either(whole(1, 65536), list_of(whole(1, 65536), 2, 2))
_TOWER: dict[str, Rule] = {  # in both towers
    **dict.fromkeys(("width", "head_width", "context_length"), whole(1, 65536)),
    **dict.fromkeys(("heads", "layers"), either(whole(1, 512), list_of(whole(1, 512), 1, 16))),
    **dict.fromkeys(("vocab_size", "attn_pooler_queries", "attn_pooler_heads"), whole(1, 1 << 24)),
    **dict.fromkeys(("pad_id", "eos_id"), whole(-(1 << 24), 1 << 24)),
    **dict.fromkeys(("mlp_ratio", "ls_init_value", "patch_dropout", "timm_drop"), number(0, 1024)),
    **dict.fromkeys(("act_kwargs", "norm_kwargs"), either(nothing, _KEYWORDS)),
    **dict.fromkeys(("image_size", "patch_size"), _SIDES),
    **dict.fromkeys(("timm_pool", "timm_proj", "pool_type", "proj_type", "block_type"), text),
    **dict.fromkeys(("pos_embed_type", "timm_model_name", "tokenizer_mode"), text),
    **dict.fromkeys(("input_patchnorm", "global_average_pool", "no_ln_pre"), flag),
    **dict.fromkeys(("final_ln_after_pool", "output_tokens", "timm_proj_bias"), flag),
    **dict.fromkeys(("embed_cls", "no_causal_mask", "proj_bias", "qk_norm"), flag),
    **dict.fromkeys(("scaled_cosine_attn", "scale_heads", "scale_attn", "scale_fc"), flag),
    **dict.fromkeys(("scale_attn_inner", "attentional_pool"), either(flag, text)),
    **dict.fromkeys(("timm_model_pretrained", "hf_model_pretrained"), one_of(False)),
    "timm_drop_path": either(nothing, number(0, 1)),
    "hf_tokenizer_name": text,  # its files are taken from the folder itself
    "tokenizer_kwargs": table(_TOKENIZER, optional=_TOKENIZER),
}
_OPTIONAL_TOWER = table({k: either(nothing, rule) for k, rule in _TOWER.items()}, optional=_TOWER)
_MODEL: dict[str, Rule] = {
    "embed_dim": whole(1, 65536),
    "vision_cfg": _OPTIONAL_TOWER,
    "text_cfg": _OPTIONAL_TOWER,
    "quick_gelu": flag,
    "custom_text": flag,
    "init_logit_scale": number(-100, 100),
    "init_logit_bias": either(nothing, number(-100, 100)),
    "nonscalar_logit_scale": flag,
    "output_dict": flag,
}
FOLDER_RULES: dict[str, Rule] = {
    "model_cfg": table(_MODEL, optional=[k for k in _MODEL if not k.endswith(("_dim", "_cfg"))]),
    "preprocess_cfg": mapping_of(
        either(nothing, text, number(-1e6, 1e6), list_of(number(-1e6, 1e6), 0, 4)), 16
    ),
}


def check_folder(folder: Path) -> None:
    """Refuse a configuration that names other files or repositories, or does not fit the weights.

    Raises:
        ModelError: The folder must not be loaded.
    """
    path = folder / FOLDER_CONFIG
    content = read_json(path, ModelError)
    check_content(  # open_clip looks at these two keys only
        content,
        FOLDER_RULES,
        where=str(path),
        error=ModelError,
        optional=("preprocess_cfg",),
        ignore_unknown=True,
    )
    towers = [content["model_cfg"][key] for key in ("vision_cfg", "text_cfg")]
    trunk = towers[0].get("timm_model_name")
    if trunk and not (trunk.partition(".")[0].isidentifier() and timm.is_model(trunk)):
        raise ModelError(f"'{path}' names {shorten(trunk)}, which is no architecture of timm.")
    for weights in (folder / name for name in FOLDER_WEIGHTS):
        if weights.exists():
            try:
                check_regular(weights)
            except OSError as error:
                raise ModelError(f"cannot read '{weights}': {error}") from error
            if sum(map(_least_parameters, towers)) > weights.stat().st_size:
                raise ModelError(f"'{path}' describes a larger network than '{weights}' can hold.")


def _least_parameters(tower: Mapping[str, Any]) -> int:
    """Count the parameters that a plain transformer of this size has at least; a byte each."""
    layers, width = tower.get("layers") or 0, tower.get("width") or 0
    words = (tower.get("vocab_size") or 0) * width
    return words + (4 * layers * width * width if isinstance(layers, int) else 0)
