"""`clearvit models`: which names load."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

import typer

from clearvit.cli.app import app
from clearvit.cli.console import next_step, note, show
from clearvit.cli.generate import command
from clearvit.options import Options, option

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
Pattern = Annotated[
    str | None,
    typer.Argument(
        metavar="[PATTERN]",
        help='Part of a name, or a quoted pattern with wildcards such as "vit_*dinov2*".',
        show_default=False,
    ),
]


@dataclass(frozen=True)
class ModelsConfig(Options):
    """Which names are listed."""

    untrained: bool = option(
        False, "List architectures too that timm has no weights for.", panel="Models"
    )
    json: bool = option(False, "Print the result as JSON on standard output.", panel="Models")


@command(app, "models")
def models(config: ModelsConfig, pattern: Pattern = None) -> None:
    """List what loads: how each kind of model is written, and the names that match a pattern.

    Names marked "grid only" give a map of features without blocks or attention; tokens, look,
    index and evaluate take them, diagnose, cure and prune do not.

    Example: `clearvit models`

    Example: `clearvit models "vit_*dinov2*"`
    """
    if pattern is None:
        if config.json:
            print(json.dumps({"prefixes": PREFIXES}))
            return
        width = max(map(len, PREFIXES))
        show("\n".join(f"{name:{width}}  {meaning}" for name, meaning in PREFIXES.items()))
        next_step("clearvit", "models", "vit_*dinov2*")
        return
    from clearvit.backbones.sources.model_names import list_names

    found = list_names(pattern, untrained=config.untrained)
    if config.json:
        print(json.dumps({"models": [{"name": n, "tokens": kind} for n, kind in found.items()]}))
        return
    for name, kind in found.items():
        show(name if kind == "blocks" else f"{name}  (grid only)")
    if not found:
        note(f"no name matches '{pattern}'. Use wildcards: clearvit models \"*dinov2*\"")
        raise typer.Exit(1)
    note(f"{len(found)} names")
    next_step("clearvit", "look", next(iter(found)), "IMAGE.jpg")
