"""What a cure leaves behind: a report, and a model that its own library loads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clearvit.backbones.saved import WEIGHTS, load_saved, save
from clearvit.backbones.vit import VitBackbone
from clearvit.cures.config import CureConfig
from clearvit.errors import ModelError, StoreError
from clearvit.files import hash_file, read_json, write_json
from clearvit.images import Skipped
from clearvit.training.state import State

RESULT = "cure.json"
FILES = (RESULT, "cure.html", "README.md")  # beside those of the model


@dataclass(frozen=True)
class EpochResult:
    """Held-out images after an epoch; epoch 0 is before the first step, registers added."""

    epoch: int
    distance: float | None  # mean cosine distance of patches to clean ones
    class_cosine: float | None  # of the class token to the original's
    agreement: float | None = None  # fraction for which a classifier predicts the same class


@dataclass(frozen=True)
class CureReport:
    """What a training brought, measured on held-out images.

    Distances are mean cosine distances of patch tokens, in one forward pass, to the average over
    the teacher's views; both are of the student's kind of features. They are None where no image
    was held out.
    """

    before: float | None  # the model as it was, without registers
    after: float | None
    class_cosine: float | None  # of the class token to the original's
    best_epoch: int  # whose weights are the result
    epochs: tuple[EpochResult, ...]
    registers: int  # added
    images: int  # used, held-out ones included
    skipped: tuple[Skipped, ...]  # files that could not be used
    agreement: float | None = None  # held-out images of the same class by the model's own head

    def __str__(self) -> str:
        registers = f"{self.registers} registers, epoch {self.best_epoch}"
        if self.before is None or self.after is None:
            return f"trained on {self.images} images, none held out; {registers}"
        change = 100 * (1 - self.after / self.before) if self.before else 0.0
        return (
            f"held-out distance to clean tokens: {self.before:.4f} before, {self.after:.4f} after"
            f" ({change:.0f} % less); class token: cosine {self.class_cosine:.4f} to the original;"
            f" {self._head()}{registers}"
        )

    def _head(self) -> str:
        if self.agreement is None:
            return ""
        return f"the head predicts the same class for {100 * self.agreement:.0f} % of them; "

    def to_json(self) -> dict[str, Any]:
        """Give all numbers as JSON can hold them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> CureReport:
        """Read what `to_json` gave."""
        epochs = tuple(EpochResult(**row) for row in content["epochs"])
        skipped = tuple(Skipped(**bad) for bad in content["skipped"])
        return cls(**{**content, "epochs": epochs, "skipped": skipped})


def report_training(
    config: CureConfig,
    before: Mapping[str, float],
    state: State,
    images: int,
    skipped: Sequence[Skipped],
) -> CureReport:
    """Sum up a training from its scores, which are cosines."""
    epochs = [_result(int(row["epoch"]), row) for row in state.history]
    best = next(row for row in epochs if row.epoch == state.best_epoch)
    return CureReport(
        before=_result(0, before).distance,
        after=best.distance,
        class_cosine=best.class_cosine,
        best_epoch=state.best_epoch,
        epochs=tuple(epochs),
        registers=config.registers or 0,
        images=images,
        skipped=tuple(skipped),
        agreement=best.agreement,
    )


def _result(epoch: int, scores: Mapping[str, float]) -> EpochResult:
    distance = 1 - scores["score"] if "score" in scores else None
    return EpochResult(epoch, distance, scores.get("class"), scores.get("agreement"))


def write_result(
    folder: Path, cured: VitBackbone, original: str, config: CureConfig, plan: Mapping[str, Any]
) -> None:
    """Save the model, its card and its page; the JSON that marks the end comes last."""
    from clearvit.cures.results.card import write_card
    from clearvit.cures.results.cure_page import write_cure_page

    save(cured, folder, kind="cure")
    write_card(folder, cured, original, config)
    write_cure_page(folder, cured, original, config)
    content = {"plan": dict(plan), "report": cured.report.to_json()}
    write_json(folder / RESULT, {**content, "weights": hash_file(folder / WEIGHTS)})


def load_result(
    student: VitBackbone, folder: Path, plan: Mapping[str, Any]
) -> tuple[VitBackbone, CureReport] | None:
    """Give the model and the report of a finished run of the same plan, or None."""
    if not (folder / RESULT).exists():
        return None
    content = read_json(folder / RESULT)
    if content.get("plan") != plan:
        return None
    if (folder / WEIGHTS).is_file() and hash_file(folder / WEIGHTS) != content.get("weights"):
        raise StoreError(
            f"'{folder / WEIGHTS}' is not the model that this cure wrote. Move it elsewhere, and"
            " the same command writes its own again; or choose another --out."
        )
    try:
        saved = load_saved(folder)
    except ModelError:  # a file of the result was removed: write it again from the training
        return None
    network = saved.network.to(student.device, student.dtype)
    return student.around(network, saved.blueprint), CureReport.from_json(content["report"])
