"""Tiny models of OpenCLIP that its own registry knows while tests run."""

import json
from contextlib import contextmanager

import torch
from safetensors.torch import save_file

TEXT = {"context_length": 20, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
VIT = {"image_size": 32, "patch_size": 8, "width": 48, "layers": 3, "head_width": 12}
VIT |= {"mlp_ratio": 2.3}


def timm_tower(model, **options):
    return {"image_size": 160, "timm_model_name": model, "timm_proj": "linear", **options}


VITS = {
    "plain": {"vision_cfg": VIT},
    "quick": {"vision_cfg": {**VIT, "ls_init_value": 0.3}, "quick_gelu": True},
    "tanh": {"vision_cfg": {**VIT, "act_kwargs": {"approximate": "tanh"}}},
    "oblong": {"vision_cfg": {**VIT, "image_size": [32, 48], "norm_kwargs": {"eps": 1e-3}}},
    "no-pre-norm": {"vision_cfg": {**VIT, "no_ln_pre": True, "pool_type": "avg"}},
    "norm-after-average": {"vision_cfg": {**VIT, "pool_type": "avg", "final_ln_after_pool": True}},
    "norm-after-token": {"vision_cfg": {**VIT, "final_ln_after_pool": True}},
    "custom-text": {"vision_cfg": VIT, "custom_text": True, "init_logit_bias": -10},
}
TIMM = {
    "timm-token": {"vision_cfg": timm_tower("test_vit", timm_pool="token")},
    "timm-average": {"vision_cfg": timm_tower("test_vit", timm_pool="avg", timm_proj_bias=True)},
    "timm-map": {  # like SigLIP
        "vision_cfg": timm_tower("test_vit3", timm_pool="map", timm_proj="none"),
        "embed_dim": 96,
        "custom_text": True,
        "init_logit_bias": -10,
    },
    "timm-own-head": {"vision_cfg": timm_tower("test_vit", timm_pool="token", timm_proj="")},
}
OTHERS = {
    "timm-grid": {"vision_cfg": timm_tower("test_convnext", timm_pool="avg")},
    "timm-mlp": {"vision_cfg": timm_tower("test_vit", timm_pool="token", timm_proj="mlp")},
    "coca": {"vision_cfg": {**VIT, "attentional_pool": True, "attn_pooler_heads": 2}},
    "resnet": {"vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8}},
    "cosine": {"vision_cfg": {**VIT, "scaled_cosine_attn": True}},
}


@contextmanager
def known_models(folder):
    """Make the tiny architectures known to open_clip, as `tiny-NAME`; gives the folder."""
    import open_clip

    for name, config in {**VITS, **TIMM, **OTHERS}.items():
        full = {"embed_dim": 24, "text_cfg": TEXT, **config}
        (folder / f"tiny-{name}.json").write_text(json.dumps(full))
    open_clip.add_model_config(folder)
    yield folder
    open_clip.factory._MODEL_CONFIG_PATHS.remove(folder)
    for name in [key for key in open_clip.factory._MODEL_CONFIGS if key.startswith("tiny-")]:
        del open_clip.factory._MODEL_CONFIGS[name]


def saved_model(name, folder):
    """Give a model with clearly random weights and the name under which we load it."""
    import open_clip

    torch.manual_seed(0)
    model = open_clip.create_model(f"tiny-{name}").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    path = folder / f"{name}.safetensors"
    save_file({key: t.contiguous() for key, t in model.state_dict().items()}, path)
    return model, f"openclip:tiny-{name}/{path}"
