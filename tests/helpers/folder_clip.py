"""A tiny random CLIP, and its folder as OpenCLIP saves one."""

import json

import torch
from safetensors.torch import save_file

CONFIG = {
    "embed_dim": 24,
    "vision_cfg": {
        **{"image_size": 32, "patch_size": 8, "width": 48, "layers": 2, "head_width": 12},
        "mlp_ratio": 2.0,
    },
    "text_cfg": {"context_length": 20, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}
LOOK = {"mean": [0.5] * 3, "std": [0.25] * 3, "interpolation": "bicubic", "resize_mode": "shortest"}
FEW = {"prompts": ("a photo of a {}.", "a drawing of a {}")}


def random_clip(seed=0):
    import open_clip

    torch.manual_seed(seed)
    model = open_clip.CLIP(**json.loads(json.dumps(CONFIG))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def write_model(model, folder, config=CONFIG):
    folder.mkdir(parents=True, exist_ok=True)
    state = {key: t.contiguous() for key, t in model.state_dict().items()}
    save_file(state, folder / "open_clip_model.safetensors")
    content = {"model_cfg": config, "preprocess_cfg": LOOK}
    (folder / "open_clip_config.json").write_text(json.dumps(content))
    return folder
