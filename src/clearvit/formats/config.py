"""Options of `cv.export` and `clearvit export`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clearvit.options import LARGEST_SIDE, Options, Size, option

Format = Literal["timm", "hf", "onnx", "openvino"]
Quantize = Literal["int8", "bf16"]


@dataclass(frozen=True)
class ExportConfig(Options):
    """For which library to write a model, and how to check the copy."""

    format: Format = option(
        "timm",
        "Library to write for: timm (a local-dir), hf (transformers' AutoModel), or onnx and"
        " openvino, graphs of one image size.",
        panel="Output",
    )
    size: int | Size | None = option(
        None,
        "Image size of the exported model in pixels, 518 or 448x672.",
        panel="Output",
        minimum=1,
        maximum=LARGEST_SIDE,
        shown="the model's own",
    )
    batch: int | None = option(
        None,
        "Fixed number of images per run of an onnx or openvino graph, which can be faster.",
        panel="Output",
        minimum=1,
        shown="any number",
    )
    quantize: Quantize | None = option(
        None,
        "Compute in fewer bits and report the difference: int8 for onnx and openvino graphs, bf16"
        " for openvino.",
        panel="Output",
        shown="no",
    )
    segmenter: str | None = option(
        None,
        "File segmenter.json of a run of segment; a graph (onnx, openvino) gives its class maps.",
        panel="Output",
        shown="none",
    )
    calibration: str | None = option(
        None,
        "Folder, file or glob pattern of images like yours, on which int8 for openvino is"
        " calibrated and, with others of them, judged.",
        panel="Output",
    )
    check: int | Size | None = option(
        None,
        "Second image size at which a timm or hf copy is compared, in pixels.",
        panel="Check",
        minimum=1,
        maximum=LARGEST_SIDE,
        shown="about half the native size",
    )
