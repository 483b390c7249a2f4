"""Reference outputs of the official DynamicViT code, made with random weights and input.

github.com/raoyongming/DynamicViT at commit 1322e62 (MIT): 48 channels, 8 blocks, 3 heads, patches
of 4 pixels on a 14 x 14 grid, stages before blocks 2, 4, 6, keep 0.7, 0.49, 0.343, 10 classes.
Weights are exact in float16, pixels in multiples of 1/64. Gumbel noise and decisions are given.
`step_loss` is the total, then the raw parts: labels, ratio (summed over stages), logits, tokens.
"""

import numpy as np
import torch
from safetensors.torch import save_file

from tests.helpers import GOLDEN

KEEP = [0.7, 0.49, 0.343]
STAGES = (2, 4, 6)


def official_outputs():
    """All arrays but the weights as tensors; `loss_cases` stays an array of words."""
    arrays = dict(np.load(GOLDEN / "dynamicvit.npz"))
    found = {
        key: torch.from_numpy(array)
        for key, array in arrays.items()
        if key != "loss_cases" and not key.startswith("weights.")
    }
    found["input"] = found["input"].float() / 64
    return {key: t.float() if t.dtype == torch.float16 else t for key, t in found.items()} | {
        "loss_cases": arrays["loss_cases"]
    }


def save_checkpoint(path):
    """Write the weights under their official names."""
    arrays = np.load(GOLDEN / "dynamicvit.npz")
    state = {
        key.removeprefix("weights."): torch.from_numpy(arrays[key]).float()
        for key in arrays.files
        if key.startswith("weights.")
    }
    save_file(state, path)
    return path
