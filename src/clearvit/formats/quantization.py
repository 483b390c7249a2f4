"""Graphs in 8 bits: by ONNX Runtime as activations come, by NNCF calibrated on images."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearvit.backbones.sources.runtime import FILES, PIXELS, GraphFacts, RuntimeFormat
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ImageError, OptionError, missing_extra
from clearvit.formats.config import Quantize
from clearvit.formats.graph import quiet
from clearvit.images import find_images

CALIBRATION = 128  # images at most; more change little and cost time
HELD_OUT = 4  # of so many images, one takes no part in the calibration and judges the result
# The layers whose inputs have outliers; in int8 they cost the class token of a pruned DeiT-Ti
# 0.018 of its cosine to the float graph, 0.972 instead of 0.990.
SENSITIVE = (".*/mlp/fc2/.*", ".*/mlp/w3/.*")


def check_quantize(
    format: RuntimeFormat, quantize: Quantize | None, calibration: str | None
) -> None:
    """Refuse what does not fit together, before any work."""
    if calibration is not None and (quantize, format) != ("int8", "openvino"):
        raise OptionError(
            "calibration images are for quantize='int8' with format='openvino'; omit them.",
            "calibration",
        )
    if quantize == "bf16" and format == "onnx":
        raise OptionError(
            "ONNX Runtime has no bfloat16 on a CPU; use format='openvino' for quantize='bf16'.",
            "quantize",
        )
    if quantize != "int8" or format != "openvino":
        return
    if calibration is None:
        raise OptionError(
            "int8 for OpenVINO is calibrated on images like yours; give some hundred:"
            " calibration='photos/' (--calibration photos/).",
            "calibration",
        )
    if importlib.util.find_spec("nncf") is None:
        raise missing_extra("nncf", "int8", "int8 for OpenVINO")


def read_calibration(backbone: VitBackbone, images: str) -> tuple[Tensor, Tensor]:
    """Read images that calibrate, and others that judge the result, both (B, 3, height, width)."""
    found = find_images(images)
    chosen = found[:: max(1, len(found) // CALIBRATION)][:CALIBRATION]
    if len(chosen) < HELD_OUT:
        raise ImageError(
            f"'{images}' has {len(chosen)} images; calibration needs {HELD_OUT} or more."
        )
    pixels = torch.cat(list(backbone.pixels([one.source for one in chosen])))
    judging = torch.arange(len(pixels)) % HELD_OUT == HELD_OUT - 1
    return pixels[~judging], pixels[judging]


def quantize_onnx(path: Path) -> None:
    """Store the weights of matrix products as int8; activations are quantized as they come."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    whole = path.with_name("float.onnx")
    path.rename(whole)
    with quiet():
        # Unsigned, since sums of signed products overflow on x86 without VNNI. Nearest to the
        # original on the demo model: cosine 0.990; signed 0.986, signed with 7 bits 0.975.
        quantize_dynamic(whole, path, weight_type=QuantType.QUInt8, per_channel=True)
    whole.unlink()


def quantize_openvino(folder: Path, facts: GraphFacts, pixels: Tensor) -> None:
    """Store weights and activations as int8, with ranges seen on `pixels`; some layers stay float.

    Scores, top-k and gathers of a pruned model are no matrix products of weights and stay float.
    """
    import nncf
    import openvino

    path = folder / FILES["openvino"]
    with quiet():
        quantized = nncf.quantize(
            openvino.Core().read_model(path),
            nncf.Dataset(list(_inputs(pixels, facts))),
            model_type=nncf.ModelType.TRANSFORMER,
            preset=nncf.QuantizationPreset.MIXED,
            subset_size=len(pixels),
            ignored_scope=nncf.IgnoredScope(patterns=list(SENSITIVE), validate=False),
        )
        renamed = path.with_name("int8.xml")
        openvino.save_model(quantized, renamed, compress_to_fp16=False)
    for suffix in (".bin", ".xml"):
        renamed.with_suffix(suffix).replace(path.with_suffix(suffix))


def _inputs(pixels: Tensor, facts: GraphFacts) -> Iterator[dict[str, NDArray[Any]]]:
    """Batches that the graph takes; the last one is filled up with the first images."""
    size = facts.batch or 1
    missing = -len(pixels) % size
    whole = torch.cat([pixels, pixels[torch.arange(missing) % len(pixels)]])
    for part in whole.split(size):
        yield {PIXELS: np.ascontiguousarray(part.numpy())}
