"""What a faster model still gives: its tokens beside those of the first model, and its accuracy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.guarded_timm import timm
from clearvit.backbones.tokens import Tokens
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ImageError
from clearvit.images import find_images
from clearvit.options import Size

MOST = 512  # images, evenly spread; more would take longer than the timing
BATCH = 8
NEAR = 0.9  # cosine of the class token below which a warning says so
WORDNET = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class Quality:
    """Means over images; cosines are to the first model, None where tokens cannot be compared."""

    images: int
    cls: float | None  # cosine of the class token
    map: float | None  # cosine of patch tokens at the same positions
    top1: float | None  # percent that the classifier gets right; None without labels of its classes
    nearest: float | None  # percent whose nearest other image has its class, by class token


def measure_quality(
    backbones: Sequence[Backbone], images: str, size: Size, *, batch: int = BATCH
) -> list[Quality]:
    """Run all models on images; folders of classes are their labels.

    Args:
        backbones: The first one is what the others are compared with.
        images: Folder, file or glob pattern.
        size: (height, width) in pixels.
        batch: Images per forward pass.
    """
    found = find_images(images)
    chosen = found[:: -(-len(found) // MOST)]
    folders = [Path(str(one.source)).parent.name for one in chosen]
    sources = [one.source for one in chosen]
    seen = [_Outputs(one, backbones[0]) for one in backbones]
    with torch.inference_mode():
        for start in range(0, len(sources), batch):
            reference: Tokens | None = None
            for one in seen:
                tokens = one.add(sources[start : start + batch], size, reference)
                reference = reference or tokens
    return [one.quality(folders) for one in seen]


class _Outputs:
    """What one model makes of the images."""

    def __init__(self, backbone: Backbone, first: Backbone) -> None:
        self.backbone = backbone
        # a graph has no classifier of its own; that of the first model reads the same tokens
        self.head = _classifier(backbone) or _classifier(first)
        self.cls: list[Tensor] = []
        self.cosines: list[tuple[Tensor | None, Tensor | None]] = []
        self.scores: list[Tensor] = []

    def add(self, sources: Sequence[Any], size: Size, reference: Tokens | None) -> Tokens:
        tokens = self.backbone.tokens(sources, size=self.backbone.fitting_size(size))
        self.cosines.append(compare_tokens(tokens, tokens if reference is None else reference))
        if tokens.cls is not None:
            self.cls.append(tokens.cls.float().cpu())
        if self.head is not None and tokens.patches.shape[-1] == self.head.embed_dim:
            whole = torch.cat([tokens.prefix, tokens.patches], 1)
            weight = self.head.head.weight
            scores = self.head.forward_head(whole.to(weight.device, weight.dtype))
            self.scores.append(scores.float().cpu())
        return tokens

    def quality(self, folders: Sequence[str]) -> Quality:
        parts = zip(*self.cosines, strict=True)
        cls, maps = (None if part[0] is None else _mean(part) for part in parts)
        return Quality(
            images=len(folders),
            cls=cls,
            map=maps,
            top1=_top1(self.scores, folders),
            nearest=_nearest(self.cls, folders),
        )


def compare_tokens(own: Tokens, other: Tokens) -> tuple[Tensor | None, Tensor | None]:
    """Cosines of class tokens and, mean over positions, of patches, (B,) each."""
    if own.patches.shape[-1] != other.patches.shape[-1]:
        return None, None
    cls = maps = None
    if own.cls is not None and other.cls is not None:
        cls = F.cosine_similarity(own.cls.float().cpu(), other.cls.float().cpu())
    if own.grid == other.grid:
        pair = (own.patches.float().cpu(), other.patches.float().cpu())
        maps = F.cosine_similarity(*pair, dim=-1).mean(1)
    return cls, maps


def class_numbers(folders: Sequence[str], classes: int) -> list[int] | None:
    """Number the classes that folders are named after, as a classifier of `classes` does.

    Known are numbers from 0, WordNet ids of ImageNet, and as many folders as there are classes, in
    the order of their names.
    """
    names = sorted(set(folders))
    if all(name.isdecimal() and int(name) < classes for name in names):
        return [int(name) for name in folders]
    if classes == 1000 and all(WORDNET.fullmatch(name) for name in names):
        known = {name: number for number, name in enumerate(timm.data.ImageNetInfo().label_names())}
        if all(name in known for name in names):
            return [known[name] for name in folders]
    if len(names) == classes:
        order = {name: number for number, name in enumerate(names)}
        return [order[name] for name in folders]
    return None


def _classifier(backbone: Backbone) -> Any | None:
    """The network of a model with a linear classifier; CLIP's head is a projection."""
    if not isinstance(backbone, VitBackbone) or backbone.text is not None:
        return None
    network = backbone.network
    return network if isinstance(getattr(network, "head", None), nn.Linear) else None


def _mean(part: Sequence[Tensor | None]) -> float:
    return float(torch.cat([one for one in part if one is not None]).mean())


def _top1(scores: Sequence[Tensor], folders: Sequence[str]) -> float | None:
    if not scores:
        return None
    joined = torch.cat(list(scores))
    numbers = class_numbers(folders, joined.shape[1])
    if numbers is None:
        return None
    return 100 * float((joined.argmax(1) == torch.tensor(numbers)).float().mean())


def _nearest(cls: Sequence[Tensor], folders: Sequence[str]) -> float | None:
    """Leave-one-out 1-NN, of images whose class has another one."""
    counts = {name: folders.count(name) for name in set(folders)}
    judged = [index for index, name in enumerate(folders) if counts[name] > 1]
    if len(counts) < 2 or not judged or not cls:
        return None
    unit = F.normalize(torch.cat(list(cls)), dim=1)
    nearest = (unit @ unit.T).fill_diagonal_(-2).argmax(1).tolist()
    right = [folders[int(nearest[i])] == folders[i] for i in judged]
    return 100 * sum(right) / len(right)


def check_images(images: str) -> None:
    """Say before the timing that there is nothing to compare on."""
    if not find_images(images):
        raise ImageError(f"'{images}' holds no images to compare the models on.")
