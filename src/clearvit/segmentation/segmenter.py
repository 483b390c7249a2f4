"""The model that makes masks: a classifier of patches, and how their tokens are made."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.errors import ModelError
from clearvit.files import read_tensors, write_json, written_whole
from clearvit.options import Size, choices_of
from clearvit.probes.features import use_whole_image
from clearvit.schema import (
    Rule,
    either,
    flag,
    list_of,
    nothing,
    number,
    one_of,
    read_checked,
    table,
    text,
    whole,
)
from clearvit.segmentation.class_maps import enlarge, map_classes, measure_confidence, sharpen
from clearvit.segmentation.config import Method
from clearvit.segmentation.method_choice import Candidate, Choice
from clearvit.segmentation.patch_classifiers import PatchClassifier, classifier_from
from clearvit.views.denoised import with_views
from clearvit.views.guidance import denormalize

CONFIG, TENSORS = "segmenter.json", "segmenter.safetensors"
FORMAT = 1
_PERCENT = either(nothing, number(0, 100))
_CANDIDATE: dict[str, Rule] = {
    "method": one_of(*choices_of(Method)),
    "scale": whole(1, 16),
    "refine": flag,
    "miou": _PERCENT,
    "low": _PERCENT,
    "high": _PERCENT,
}
RULES: dict[str, Rule] = {
    "format": one_of(FORMAT),
    "key": text,
    "model": text,
    "fingerprint": text,
    "width": whole(1, 1 << 16),
    "classes": list_of(text, 2, 255),
    "numbers": list_of(whole(0, 254), 2, 255),
    "size": list_of(whole(1, 1 << 16), 2, 2),
    "views": either(nothing, whole(1, 1 << 16)),
    "chosen": table(_CANDIDATE),
    "candidates": list_of(table(_CANDIDATE), 0, 1000),
    "held_out": text,
}


@dataclass(frozen=True)
class Segmenter:
    """A classifier of patches that was fitted to examples, with all that it needs to be used.

    Attributes:
        classes: Names of the K classes.
        numbers: Their numbers in masks, ascending.
        classifier: Maps tokens to class probabilities.
        choice: The method, how fine, sharpened or not, and the estimates behind it.
        size: (height, width) in pixels that enter the network.
        views: Views per image; None is as many as the scale needs.
        model: Name of the backbone it was fitted to.
        fingerprint: Of that backbone at this size.
        key: Tells whether masks were made by the same examples, options and backbone.
    """

    classes: tuple[str, ...]
    numbers: tuple[int, ...]
    classifier: PatchClassifier
    choice: Choice
    size: Size
    views: int | None
    model: str
    fingerprint: str
    key: str

    def prepare(self, backbone: Backbone) -> Backbone:
        """Give the backbone as it makes the tokens, and check that it is the right one."""
        plain = plain_at(backbone, self.size)
        if plain.fingerprint() != self.fingerprint:
            raise ModelError(
                f"the classifier was fitted to tokens of '{self.model}', not to those of"
                f" '{backbone.name}' or of other weights. Use that model, or fit again with"
                " examples."
            )
        return fine_backbone(plain, self.choice.chosen.scale, self.views)

    def map_classes(self, tokens: Tensor, grid: Size, pixels: Tensor, backbone: Backbone) -> Tensor:
        """Give the class probabilities of one image, (K, rows, columns).

        Args:
            tokens: Its patch tokens, (N, C).
            grid: (H, W).
            pixels: What entered the network, (3, height, width).
            backbone: Knows the colors behind the pixels.
        """
        maps = map_classes(self.classifier, tokens.float().cpu(), grid)
        if self.choice.chosen.refine:
            image = denormalize(pixels[None].float().cpu(), backbone.preprocessing)[0]
            maps = sharpen(maps, image)
        return maps

    def make_mask(self, maps: Tensor, size: Size) -> tuple[NDArray[np.uint8], float]:
        """Give class numbers at the size of the image, (height, width), and the confidence."""
        numbers = np.array(self.numbers, dtype=np.uint8)
        return numbers[enlarge(maps, size)], measure_confidence(maps)

    def save(self, folder: str | Path) -> Path:
        """Write segmenter.json and segmenter.safetensors to a directory; the JSON comes last."""
        target = Path(folder)
        (target / CONFIG).unlink(missing_ok=True)  # of another one; both files belong together
        tensors = {k: t.contiguous() for k, t in sorted(self.classifier.tensors.items())}
        with written_whole(target / TENSORS) as temporary:
            save_file(tensors, temporary)
        write_json(target / CONFIG, self._description())
        return target / CONFIG

    def _description(self) -> dict[str, Any]:
        content = {
            name: getattr(self, name)
            for name in ("key", "model", "fingerprint", "classes", "numbers", "size", "views")
        }
        choice = {
            "chosen": _candidate_to_json(self.choice.chosen),
            "candidates": [_candidate_to_json(one) for one in self.choice.candidates],
            "held_out": self.choice.held_out,
        }
        tensors = self.classifier.tensors
        width = tensors["weight" if "weight" in tensors else "bank"].shape[1]
        return {"format": FORMAT, **content, "width": width, **choice}


def plain_at(backbone: Backbone, size: int | Size | None) -> Backbone:
    """Give the backbone that sees whole images at one size."""
    return use_whole_image(backbone).resized(backbone.fitting_size(size))


def fine_backbone(backbone: Backbone, scale: int, views: int | None) -> Backbone:
    """Give the backbone whose tokens are so fine; one with a fine grid already stays as it is."""
    return with_views(backbone, views, scale)


def load_segmenter(path: str | Path) -> Segmenter:
    """Load what a run of `cv.segment` or `Segmenter.save` wrote.

    Args:
        path: segmenter.json, or the directory that holds it.

    Raises:
        ModelError: It is none, or damaged.
    """
    file = Path(path)
    file = file / CONFIG if file.is_dir() else file.with_suffix(".json")
    content = read_checked(file, RULES, error=ModelError, version="format")
    classes, numbers = tuple(content["classes"]), tuple(content["numbers"])
    if len(classes) != len(numbers) or list(numbers) != sorted(set(numbers)):
        raise ModelError(f"'{file}' cannot be used: its classes and numbers do not fit together.")
    chosen = _candidate_from_json(content["chosen"])
    tensors = read_tensors(file.with_suffix(".safetensors"), ModelError)
    where = str(file.with_suffix(".safetensors"))
    return Segmenter(
        classes=classes,
        numbers=numbers,
        classifier=classifier_from(chosen.method, len(classes), content["width"], tensors, where),
        choice=Choice(
            chosen,
            tuple(_candidate_from_json(one) for one in content["candidates"]),
            content["held_out"],
        ),
        size=(content["size"][0], content["size"][1]),
        views=content["views"],
        model=content["model"],
        fingerprint=content["fingerprint"],
        key=content["key"],
    )


def make_key(*facts: str) -> str:
    """Hash all that decides the masks."""
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:32]


def _candidate_to_json(one: Candidate) -> dict[str, Any]:
    content = dataclasses.asdict(one)
    return {k: None if isinstance(v, float) and np.isnan(v) else v for k, v in content.items()}


def _candidate_from_json(content: dict[str, Any]) -> Candidate:
    values: dict[str, Any] = {k: float("nan") if v is None else v for k, v in content.items()}
    return Candidate(**values)
