"""Hugging Face models, read without transformers and run as timm networks.

Two things differ from transformers on purpose: the patches of CLIP are those after the final
norm, which transformers applies to the class token only, and SigLIP 2 with native aspect ratio
runs at the square size of its position table unless another size is asked for.
"""

from __future__ import annotations

from typing import Any

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.blueprint import build_with
from clearvit.backbones.preprocessing import Preprocessing
from clearvit.backbones.sources.hf.families import blueprint_for, from_hf, recognize_family, to_hf
from clearvit.backbones.sources.hf.hf_config import Config
from clearvit.backbones.sources.hf.hf_files import Files, files_of
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError
from clearvit.options import PositionRule, Size
from clearvit.schema import list_of, number

__all__ = ["from_hf", "load_hf", "to_hf"]

RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers


def load_hf(name: str, positions: PositionRule | None = None) -> Backbone:
    """Load a vision tower saved by transformers.

    Args:
        name: An id of the hub, `facebook/dinov2-base` or `facebook/dinov2-base@REVISION`, or a
            local directory with config.json and safetensors.
        positions: Rule for resizing position embeddings; else the one of the family.
    """
    files = files_of(name)
    config = files.json("config.json")
    if config is None:
        raise ModelError(f"'{name}' has no config.json, so it is no transformers model.")
    try:
        if config.get("model_type") == "cvt":
            from clearvit.backbones.sources.cvt import load_cvt

            return load_cvt(files, cvt_preprocessing(files), name=f"hf:{name}")
        return _load_vit(files, config, name, positions)
    except ModelError as error:
        raise ModelError(f"cannot load 'hf:{name}': {error}") from error


def _load_vit(
    files: Files, config: Config, name: str, positions: PositionRule | None
) -> VitBackbone:
    family, settings = recognize_family(config)  # before the weights: they may be a long download
    state = from_hf(files.weights(), config)
    blueprint = blueprint_for(state, config)
    network = build_with(blueprint, state, name)
    mean, std = family.colors
    default = Preprocessing(settings.image, mean, std, family.interpolation)
    return VitBackbone(
        network,
        _preprocessing(_processor(files), default),
        name=f"hf:{name}",
        positions=positions or family.positions,
        blueprint=blueprint,
    )


def cvt_preprocessing(files: Files) -> Preprocessing:
    """Read the preprocessing of CvT, whose size stands nowhere else."""
    processor = _processor(files)
    size = processor.get("crop_size") or processor.get("size") or 224
    default = Preprocessing(_size(size), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    return _preprocessing(processor, default)


def _processor(files: Files) -> Config:
    """Find the settings of the image processor; transformers 5 nests those of a pair."""
    own = files.json("preprocessor_config.json")
    if own is not None:
        return own
    pair = files.json("processor_config.json") or {}
    inner = pair.get("image_processor")
    return inner if isinstance(inner, dict) else {}


def _preprocessing(processor: Config, default: Preprocessing) -> Preprocessing:
    """Take colors and interpolation from the processor; the size is the network's own."""
    mean, std = default.mean, default.std
    if processor.get("do_normalize") is False:
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    try:
        return Preprocessing(
            size=default.size,
            mean=_colors(processor.get("image_mean"), mean),
            std=_colors(processor.get("image_std"), std),
            interpolation=_interpolation(processor, default),
        )
    except (TypeError, ValueError) as error:
        raise ModelError(f"preprocessor_config.json is malformed: {error}.") from error


def _interpolation(processor: Config, default: Preprocessing) -> str:
    chosen = processor.get("resample", -1)
    return RESAMPLE.get(chosen if isinstance(chosen, int) else -1, default.interpolation)


def _colors(value: Any, default: tuple[float, ...]) -> tuple[float, ...]:
    if value is None:
        return default
    if problem := list_of(number(-10, 10), 3, 3)(value):
        raise ValueError(f"{value!r}; {problem}")
    return tuple(float(v) for v in value)


def _size(value: Any) -> Size:
    if isinstance(value, int):
        return value, value
    if isinstance(value, dict):
        edge = value.get("shortest_edge")
        height, width = value.get("height", edge), value.get("width", edge)
        if isinstance(height, int) and isinstance(width, int):
            return height, width
    raise ModelError(f"preprocessor_config.json is malformed: size {value!r}.")
