"""A pruned backbone on disk: the dense model, its plan, and the modules trained beside it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from clearvit.backbones.blueprint import load_exactly
from clearvit.backbones.saved import load_saved, save
from clearvit.errors import ModelError, StoreError
from clearvit.files import read_json, write_json, written_whole
from clearvit.options import PositionRule
from clearvit.pruning.modules import LearnedFill, Predictors
from clearvit.pruning.pruned import PrunedBackbone
from clearvit.pruning.pruning_plan import make_plan

MARKER, PREDICTORS, FILL = "pruned.json", "predictors.safetensors", "fill.safetensors"
FORMAT = 2
OPTIONS = ("keep", "stages", "scorer", "fill", "merge")


def save_pruned(pruned: PrunedBackbone, out: str | Path) -> Path:
    """Write a pruned backbone to a directory; `clearvit.load("dir:OUT")` restores it exactly.

    `timm.create_model("local-dir:OUT", pretrained=True)` loads the network without its pruning.
    """
    folder = save(pruned.dense, out)  # removes the marker of an older model
    _save(pruned.predictors, folder / PREDICTORS)
    _save(pruned.learned_fill, folder / FILL)
    write_json(folder / MARKER, {"format": FORMAT, **dataclasses.asdict(pruned.plan)})
    return folder


def load_pruned(path: str | Path, positions: PositionRule | None = None) -> PrunedBackbone:
    """Load what `save_pruned` wrote."""
    folder = Path(path)
    try:
        content = read_json(folder / MARKER)
    except StoreError as error:
        raise ModelError(f"'{folder}' holds no pruned model: {error}") from error
    if content.get("format") != FORMAT:
        raise ModelError(f"'{folder}' was saved by another version of clearvit; update clearvit.")
    dense = load_saved(folder, positions)
    try:
        options = {key: content[key] for key in OPTIONS}
    except KeyError as error:
        raise ModelError(
            f"'{folder / MARKER}' does not say {error}; save the model again."
        ) from error
    plan = make_plan(dense.depth, **options)
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
    try:
        load_exactly(module, load_file(path), str(path))
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read '{path}': {error}") from error
