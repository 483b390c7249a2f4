"""CvT, which timm does not have: transformers runs it, clearvit takes its last stage as a grid."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from clearvit.backbones.grid import GridBackbone
from clearvit.backbones.preprocessing import Preprocessing
from clearvit.backbones.sources.hf.hf_files import Files
from clearvit.backbones.sources.staged_attention import cvt_reader
from clearvit.errors import ModelError, missing_extra


def load_cvt(files: Files, preprocessing: Preprocessing, *, name: str) -> GridBackbone:
    """Load CvT; its tokens are the map of the last stage and the class token, if there is one.

    They are not normed: transformers norms them only inside its classifier.
    """
    try:
        from transformers import CvtModel
    except ImportError as error:
        raise missing_extra("transformers", "hf", "CvT") from error
    files.weights()  # says what is wrong with the files in our words, and refuses pickles
    try:
        network, info = CvtModel.from_pretrained(
            files.folder or files.name,
            revision=files.revision or "main",
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelError(f"transformers could not load it: {error}") from error
    _check(info)
    stages = network.config

    def features(pixels: Tensor) -> tuple[Tensor, Tensor]:
        output = network(pixels)
        grid, token = output.last_hidden_state, output.cls_token_value
        if token is None:
            token = grid.new_empty(len(grid), 0, grid.shape[1])
        return grid, token

    return GridBackbone(
        network.to(torch.float32),
        preprocessing,
        name=name,
        features=features,
        stride=math.prod(stages.patch_stride),
        width=stages.embed_dim[-1],
        reader=cvt_reader(network),
    )


def _check(info: Any) -> None:
    """Refuse a checkpoint that leaves part of the network random; a classifier may be dropped."""
    dropped = ("classifier.", "layernorm.")
    missing = sorted(map(str, info["missing_keys"]))
    unexpected = sorted(k for k in map(str, info["unexpected_keys"]) if not k.startswith(dropped))
    problems = [f"missing {key}" for key in missing] + [f"unexpected {key}" for key in unexpected]
    if problems:
        raise ModelError("the weights do not fit the configuration:\n  " + "\n  ".join(problems))
