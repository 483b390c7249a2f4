"""Reference outputs of the official LV-ViT with DynamicViT pruning, random weights and input.

github.com/raoyongming/DynamicViT at commit 1322e62 (MIT): `LVViTDiffPruning`, `LVViT_Teacher` and
`DistillDiffPruningLoss_dynamic` as they are, 24 channels, 8 blocks, 3 heads, 112 px (7 x 7
patches), 5 classes, stages before blocks 2, 4, 6, keep 0.7, 0.49, 0.343. Weights are exact in
float16, pixels in multiples of 1/32. `step_*` is one training step with the given Gumbel noise and
batch norms on batch statistics; `step_loss` is the total, then the raw parts: labels, ratio (summed
over stages), logits, patches.
"""

import numpy as np
import torch
from safetensors.torch import save_file

from tests.helpers import GOLDEN

KEEP = [0.7, 0.7**2, 0.7**3]
STAGES = (2, 4, 6)
PREDICTORS = "score_predictor."


def official_outputs():
    """All arrays but the weights, as tensors."""
    arrays = np.load(GOLDEN / "lvvit.npz")
    found = {k: torch.from_numpy(arrays[k]) for k in arrays.files if not k.startswith("weights.")}
    found["input"] = found["input"].float() / 32
    return found


def official_weights(*, predictors=True):
    """The weights under their official names."""
    arrays = np.load(GOLDEN / "lvvit.npz")
    named = {k.removeprefix("weights."): arrays[k] for k in arrays.files if "weights." in k}
    return {
        key: torch.from_numpy(array).float() if array.dtype == np.float16 else torch.tensor(array)
        for key, array in named.items()
        if predictors or not key.startswith(PREDICTORS)
    }


def save_checkpoint(path, *, predictors=True):
    """Write the weights, pruned or plain, as a safetensors file."""
    save_file(official_weights(predictors=predictors), path)
    return path
