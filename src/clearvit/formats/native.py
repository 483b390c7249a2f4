"""Back to the libraries models come from: timm and Hugging Face transformers."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearvit.backbones.guarded_timm import timm
from clearvit.backbones.preprocessing import round_to_patches
from clearvit.backbones.saved import save
from clearvit.backbones.sources.hf.export_hf import kind_of, save_hf, table_size
from clearvit.backbones.sources.hf.families import FAMILIES
from clearvit.backbones.sources.hf.load_hf import load_hf
from clearvit.backbones.sources.snippets import runnable_here, timm_code, transformers_code
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError
from clearvit.formats.parity import Run, Written
from clearvit.options import PositionRule, Size

TIMM_RULE: PositionRule = "bicubic-antialias"
RESIZES_UNASKED = ("dinov2", "dinov2_with_registers", "dinov3_vit")


def write_timm(backbone: VitBackbone, out: Path) -> Written:
    """Write a directory for `timm.create_model("local-dir:…")`."""
    _refuse_more_than_weights(backbone)
    if backbone.blueprint is not None and not backbone.blueprint.in_timm:
        raise ModelError(
            f"timm has no {backbone.blueprint.architecture}. Use cv.save, which `dir:` loads, or"
            " format='onnx' or 'openvino'."
        )
    folder = save(backbone, out, kind="export")
    network = timm.create_model(f"local-dir:{folder}", pretrained=True, dynamic_img_size=True)
    network.eval().to(backbone.device, backbone.dtype)
    size = round_to_patches(tuple(backbone.network.patch_embed.img_size), backbone.patch)
    agree = _rules_agree(backbone, TIMM_RULE)
    notes = () if agree else (_rule_note(backbone, "timm", TIMM_RULE, size),)
    loading = runnable_here(timm_code(out, backbone))
    return Written(folder, loading, "timm", network.forward_features, size, agree, notes)


def write_hf(backbone: VitBackbone, out: Path) -> Written:
    """Write a directory for `transformers.AutoModel.from_pretrained`."""
    _refuse_more_than_weights(backbone)
    kind = kind_of(backbone)
    rule, table = FAMILIES[kind].positions, table_size(backbone, kind)
    folder = save_hf(backbone, out)
    agree = _rules_agree(backbone, rule)
    size = round_to_patches(table, backbone.patch)
    notes = [] if agree else [_rule_note(backbone, "transformers", rule, size)]
    if backbone.embedding:
        notes.append("the trained projection is not in it; format='timm', 'onnx' have it")
    if importlib.util.find_spec("transformers") is None:
        notes.append("transformers is not installed, so the copy was checked with clearvit alone")
        reader, run = "clearvit", _own_run(folder, backbone)
    else:
        reader, run = "transformers", _transformers_run(folder, kind, backbone)
    loading = runnable_here(transformers_code(out, backbone, kind, size))
    return Written(folder, loading, reader, run, size, agree, tuple(notes))


def _refuse_more_than_weights(backbone: VitBackbone) -> None:
    if backbone.fine is not None:
        raise ModelError(
            f"'{backbone.name}' has a head for fine tokens, which these libraries do not run."
            " Export it to onnx or openvino; plain timm loads what clearvit.save wrote, without it."
        )
    if type(backbone) is not VitBackbone:
        raise ModelError(
            f"'{backbone.name}' is a {type(backbone).__name__}: what it does beside its network,"
            " other libraries do not do. Keep it with clearvit.save, or export the backbone it was"
            " made from."
        )


def _rules_agree(backbone: VitBackbone, rule: PositionRule) -> bool:
    return backbone.network.pos_embed is None or backbone.positions == rule


def _rule_note(backbone: VitBackbone, library: str, rule: str, size: Size) -> str:
    return (
        f"this backbone resizes positions by the rule '{backbone.positions}', {library} by"
        f" '{rule}', so the copy gives the same tokens at {size[0]}x{size[1]} px only"
    )


def _own_run(folder: Path, backbone: VitBackbone) -> Run:
    again = load_hf(str(folder))
    again.network.to(backbone.device, backbone.dtype)

    def run(pixels: Tensor) -> Tensor:
        tokens = again.forward(pixels)
        return torch.cat([tokens.prefix, tokens.patches], dim=1)

    return run


def _transformers_run(folder: Path, kind: str, backbone: VitBackbone) -> Run:
    from transformers import AutoModel

    init = {"add_pooling_layer": False} if kind in ("vit", "deit") else {}
    with _quiet_transformers():
        model: Any = AutoModel.from_pretrained(folder, **init)
    model.eval().to(backbone.device, backbone.dtype)
    options = {} if kind in RESIZES_UNASKED else {"interpolate_pos_encoding": True}

    def run(pixels: Tensor) -> Tensor:
        hidden: Tensor = model(pixel_values=pixels, **options).last_hidden_state
        if kind != "clip_vision_model":
            return hidden
        tower = getattr(model, "vision_model", model)  # transformers 4 nests it
        return tower.post_layernorm(hidden)  # type: ignore[no-any-return]

    return run


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Keep its progress bars and its remarks on unused weights off the console for a while."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
