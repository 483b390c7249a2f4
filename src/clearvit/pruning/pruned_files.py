"""A pruned backbone on disk: the dense model, its plan, and the modules trained beside it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from safetensors.torch import save_file
from torch import nn

from clearvit.backbones.blueprint import check_finite, load_exactly
from clearvit.backbones.saved import load_saved, save
from clearvit.errors import ModelError
from clearvit.files import read_tensors, write_json, written_whole
from clearvit.options import PositionRule
from clearvit.pruning.config import FILLS, SCORERS
from clearvit.pruning.modules import LearnedFill, Predictors
from clearvit.pruning.pruned import PrunedBackbone
from clearvit.pruning.pruning_plan import make_plan
from clearvit.runs import claim_files
from clearvit.schema import (
    Rule,
    either,
    flag,
    list_of,
    nothing,
    number,
    one_of,
    read_checked,
    whole,
)

MARKER, PREDICTORS, FILL = "pruned.json", "predictors.safetensors", "fill.safetensors"
FORMAT = 2
OPTIONS = ("keep", "stages", "scorer", "fill", "merge")
PROPORTIONAL = "proportional"  # models from before that do without
RULES: dict[str, Rule] = {  # of MARKER; make_plan looks closer
    "format": one_of(FORMAT),
    "keep": list_of(number(0, 1), 1, 512),
    "stages": list_of(whole(0, 511), 1, 512),
    "scorer": either(nothing, one_of(*SCORERS)),
    "fill": one_of(*FILLS, "learned"),
    "merge": flag,
    PROPORTIONAL: flag,
}


def save_pruned(pruned: PrunedBackbone, out: str | Path, *, kind: str = "model") -> Path:
    """Write a pruned backbone to a directory; `clearvit.load("dir:OUT")` restores it exactly.

    `timm.create_model("local-dir:OUT", pretrained=True)` loads the network without its pruning.
    """
    claim_files(Path(out), (PREDICTORS, FILL), kind=kind, strict=False)
    folder = save(pruned.dense, out, kind=kind)  # removes the marker of an older model
    _save(pruned.predictors, folder / PREDICTORS)
    _save(pruned.learned_fill, folder / FILL)
    write_json(folder / MARKER, {"format": FORMAT, **dataclasses.asdict(pruned.plan)})
    return folder


def load_pruned(path: str | Path, positions: PositionRule | None = None) -> PrunedBackbone:
    """Load what `save_pruned` wrote."""
    folder = Path(path)
    content = read_checked(
        folder / MARKER, RULES, error=ModelError, version="format", optional=(PROPORTIONAL,)
    )
    dense = load_saved(folder, positions)
    plan = make_plan(dense.depth, **{key: content[key] for key in OPTIONS})
    plan = dataclasses.replace(plan, proportional=content.get(PROPORTIONAL, False))
    predictors = Predictors(dense.width, len(plan.stages)) if plan.scorer is None else None
    fill = LearnedFill(dense.width) if plan.fill == "learned" else None
    _load(predictors, folder / PREDICTORS)
    _load(fill, folder / FILL)
    return PrunedBackbone(dense, plan, predictors, fill)


def _save(module: nn.Module | None, path: Path) -> None:
    """Write a trained module, or remove that of an older model."""
    if module is None:
        path.unlink(missing_ok=True)
        return
    plain = {key: t.detach().cpu().contiguous() for key, t in module.state_dict().items()}
    with written_whole(path) as temporary:
        save_file(plain, temporary, metadata={"format": "pt"})


def _load(module: nn.Module | None, path: Path) -> None:
    if module is None:
        return
    load_exactly(module, read_tensors(path, ModelError), str(path))
    check_finite(module, str(path))
