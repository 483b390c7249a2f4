"""What a cure leaves behind: a model that its own library loads, and how it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clearvit.backbones.saved import load_saved, save_backbone
from clearvit.backbones.vit import VitBackbone
from clearvit.cure.card import Row, Treatment, loading_code, write_card
from clearvit.cure.delta import save_delta
from clearvit.cure.distill import Distilled
from clearvit.cure.features import whole
from clearvit.cure.page import write_cure_page
from clearvit.errors import ModelError
from clearvit.files import write_json
from clearvit.images import Skipped
from clearvit.shards.plan import read_json

RESULT, DELTA = "cure.json", "delta.safetensors"


def write_result(
    folder: Path,
    original: VitBackbone,
    distilled: Distilled,
    plan: Mapping[str, Any],
    skipped: Sequence[Skipped],
) -> None:
    """Save the model, its delta and its card; the JSON that marks the end comes last."""
    cured = whole(distilled.backbone)
    save_backbone(cured, folder)
    if type(cured) is VitBackbone:
        save_delta(original, cured, folder / DELTA)
    treatment = Treatment(
        base=original.name,
        registers=plan["registers"],
        unlock=[part for part in plan["unlock"] if part != "registers"],
        images=plan["images"],
        size=tuple(plan["size"]),
        views=plan["views"],
        epochs=distilled.state.best_epoch,
    )
    before, after = distilled.before, distilled.after
    rows = _rows(before, after)
    write_card(folder, cured, treatment, results=rows)
    code = loading_code(folder, cured)
    write_cure_page(folder, plan, distilled.state.history, rows, code)
    write_json(
        folder / RESULT,
        {
            "plan": dict(plan),
            "before": before,
            "after": after,
            "best_epoch": distilled.state.best_epoch,
            "epochs": distilled.state.history,
            "skipped": [{"name": bad.name, "reason": bad.reason} for bad in skipped],
        },
    )


def restored(student: VitBackbone, folder: Path, plan: Mapping[str, Any]) -> VitBackbone | None:
    """Give the model of a finished run, or None if there is none."""
    if not (folder / RESULT).exists() or read_json(folder / RESULT).get("plan") != plan:
        return None
    try:
        saved = load_saved(folder)
    except ModelError:  # a file of the result was removed: write it again from the training
        return None
    network = saved.network.to(student.device, student.dtype)
    return whole(student.around(network, saved.blueprint))


def _rows(before: Mapping[str, float], after: Mapping[str, float]) -> list[Row]:
    left, right = 1 - before["score"], 1 - after["score"]
    names = (
        ("cosine distance to the average of the views, held-out images", left, right),
        ("cosine of the class token to that of the original", 1.0, after["class"]),
    )
    return [Row(name, f"{b:.4f}", f"{a:.4f}") for name, b, a in names]
