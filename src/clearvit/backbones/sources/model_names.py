"""The names that load, found by a pattern."""

from __future__ import annotations

import fnmatch
from typing import Literal

from clearvit.backbones.guarded_timm import timm

PREFIXES = {  # how to write a model, and what it is
    "demo": "DINOv2 ViT-S/14, fetched once; demo-cured is the same with the cure that ships.",
    "timm:NAME": "Pretrained weights of timm; the names are listed with a PATTERN.",
    "timm:ARCH@FILE": "An architecture of timm with your checkpoint file (.safetensors, .pth).",
    "timm:hf-hub:ID": "A timm model of the Hugging Face hub.",
    "timm:local-dir:PATH": "A directory that timm wrote.",
    "hf:ID or hf:PATH": "transformers: ViT, DeiT, DINOv2, DINOv3, CLIP, SigLIP, MAE, CvT.",
    "openclip:ARCH/TAG": "OpenCLIP with its text tower; a .safetensors file in place of the tag.",
    "dir:PATH": "What clearvit saved: a cured or pruned model.",
    "onnx:PATH, openvino:PATH": "What clearvit exported, for inference at one size.",
}
Kind = Literal["blocks", "grid"]
BLOCKS = (
    "vision_transformer",
    "vision_transformer_hybrid",
    "eva",
    "deit",
)  # timm's modules of plain ViTs


def list_names(pattern: str, *, untrained: bool = False) -> dict[str, Kind]:
    """List models of timm and OpenCLIP, and whether tokens of single blocks can be read.

    Args:
        pattern: With wildcards, else any part of the name; a prefix (`timm:`) is allowed.
        untrained: Also architectures without pretrained weights.
    """
    source, colon, rest = pattern.partition(":")
    wanted = rest if colon and source in ("timm", "openclip") else pattern
    if not any(sign in wanted for sign in "*?["):
        wanted = f"*{wanted}*"
    found: dict[str, Kind] = {}
    if not colon or source == "timm":
        names = timm.list_pretrained()
        if untrained:
            trained = {name.partition(".")[0] for name in names}
            names = sorted([*names, *(one for one in timm.list_models() if one not in trained)])
        for name in _matching(names, wanted):
            found[f"timm:{name}"] = _kind(name)
    if not colon or source == "openclip":
        for name in _matching(_openclip_names(), wanted):
            found[f"openclip:{name}"] = "blocks" if name.startswith("ViT") else "grid"
    return found


def _matching(names: list[str], pattern: str) -> list[str]:
    lowered = pattern.lower()
    return [name for name in names if fnmatch.fnmatchcase(name.lower(), lowered)]


def _kind(name: str) -> Kind:
    from timm.models import is_model_in_modules

    return "blocks" if is_model_in_modules(name, BLOCKS) else "grid"


def _openclip_names() -> list[str]:
    try:
        import open_clip
    except ImportError:
        return []
    return sorted("/".join(pair) for pair in open_clip.list_pretrained())
