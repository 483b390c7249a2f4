"""The structure of every model's patches, with pictures of their self-similarity."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from clearvit.artifacts.report.series import shorten_name
from clearvit.artifacts.structure import Structure, measure_structure
from clearvit.backbones.preprocessing import Preprocessing
from clearvit.comparison.rows import reference_patches
from clearvit.comparison.study import EvalImages, Study
from clearvit.datasets.splits import VOID, read_gray
from clearvit.errors import ImageError
from clearvit.report.elements import Element, ImageElement, Paragraph, Section, Table
from clearvit.report.figure import Panel, draw_panels
from clearvit.report.pca import foreground

SHOWN = 2  # images whose self-similarity is drawn
MATRIX = 256  # rows of a drawn matrix of cosines, at most
UNLABELLED = 255
HEADER = ("model", "smoothness", "separation", "by masks", "corners", "background")


@dataclass(frozen=True)
class Structures:
    """What was measured, one per model, and what to draw of a few images."""

    models: tuple[str, ...]
    measured: tuple[Structure, ...]
    maps: tuple[tuple[Tensor, ...], ...]  # by image, then model: (C, H, W)
    photos: tuple[NDArray[np.uint8], ...]  # of these images, (height, width, 3)
    note: str = ""  # why a measure is missing that was asked for


def compare_structures(
    studies: Sequence[Study],
    data: EvalImages,
    photos: Mapping[str, NDArray[np.uint8]],
    masks: str | Path | None,
) -> Structures:
    """Measure the structure of every model on the images of the reference.

    Args:
        studies: One per model.
        data: The images.
        photos: Some images of the reference as the models see them, by name; the first are drawn.
        masks: Folder of masks with the names of the images, or None.
    """
    maps = [
        reference_patches(one, data).transpose(1, 2).unflatten(2, one.tokens.grid)
        for one in studies
    ]
    names = [image.name for image in data.reference]
    measured = []
    for one, own in zip(studies, maps, strict=True):
        labels = [_read_labels(Path(masks), name, one) for name in names] if masks else ()
        measured.append(measure_structure(own, labels))
    note = ""
    if masks and all(one.label_separation is None for one in measured):
        note = (
            f"The masks in '{masks}' separate nothing: none has the name of an image that was"
            " measured and two classes, such as an object and background, so 'by masks' is missing."
        )
        warnings.warn(note, stacklevel=2)
    shown = list(photos)[:SHOWN]
    return Structures(
        models=tuple(one.name for one in studies),
        measured=tuple(measured),
        maps=tuple(tuple(own[names.index(name)] for own in maps) for name in shown),
        photos=tuple(photos[name] for name in shown),
        note=note,
    )


def structure_section(found: Structures) -> Section:
    """Give the table and the figure as a section of the page."""
    rows = [
        (name, *(None if value is None else f"{value:.2f}" for value in vars(one).values()))
        for name, one in zip(found.models, found.measured, strict=True)
    ]
    known = [i for i in range(len(HEADER)) if any(row[i] is not None for row in rows)]
    elements: list[Element] = [
        Table(
            tuple(HEADER[i] for i in known),
            tuple(tuple(row[i] for i in known) for row in rows),
            caption="Smoothness: cosine to the four neighbors. Separation: AUROC with which the"
            " cosine of two patches tells whether both lie in foreground or background (0.5 is"
            " chance); by masks: whether both have one class. Corners: what images share at the"
            " corners beyond what they share elsewhere. Background: how much plain parts vary.",
        )
    ]
    if found.note:
        elements.append(Paragraph(found.note))
    if found.maps:
        elements.append(
            ImageElement(
                draw_structures(found),
                alt="Cosine of one patch to all others, and of all patches to each other, by"
                " model.",
                caption="Cosine of the marked patch to all patches, and below of all patches to"
                " all (row by row). One scale for all models.",
            )
        )
    return Section("Structure of the patches", tuple(elements))


def draw_structures(found: Structures) -> Figure:
    """Draw self-similarity maps of one patch and the N x N matrix, models side by side."""
    rows = []
    for photo, maps in zip(found.photos, found.maps, strict=True):
        place = choose_patch(maps[0])
        panels, matrices = [Panel("image", image=_mark(photo, place))], [Panel("all pairs")]
        for name, map_ in zip(found.models, maps, strict=True):
            cosine, matrix = self_similarity(map_, place)
            look: dict[str, Any] = {"limits": (0.0, 1.0), "label": "cosine"}
            aspect = photo.shape[0] / photo.shape[1]
            title = shorten_name(name)
            panels.append(Panel(title, values=cosine.numpy(), aspect=aspect, **look))
            matrices.append(Panel(title, values=matrix.numpy(), **look))
        rows += [panels, matrices]
    return draw_panels(rows)


def choose_patch(map_: Tensor) -> tuple[float, float]:
    """Choose the foreground patch nearest to the middle of the foreground, (y, x) in 0..1."""
    cells = foreground(map_).nonzero().double()
    nearest = cells[(cells - cells.mean(0)).square().sum(1).argmin()]
    height, width = map_.shape[1:]
    return float((nearest[0] + 0.5) / height), float((nearest[1] + 0.5) / width)


def self_similarity(map_: Tensor, place: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Compute the cosine of the patch at (y, x) in 0..1 to all, (H, W), and of all pairs, (N, N).

    A grid of more than 256 patches is pooled for the matrix.
    """
    unit = F.normalize(map_, dim=0)
    height, width = map_.shape[1:]
    patch = unit[:, int(place[0] * height), int(place[1] * width)]
    cosine = torch.einsum("c,chw->hw", patch, unit)
    factor = max(1.0, (height * width / MATRIX) ** 0.5)
    smaller = (max(1, int(height / factor)), max(1, int(width / factor)))
    few = F.normalize(F.adaptive_avg_pool2d(map_, smaller).flatten(1), dim=0)
    return cosine, few.T @ few


def _read_labels(folder: Path, name: str, study: Study) -> Tensor | None:
    """Read the class of every cell, (H, W); None where the image has no mask."""
    path = (folder / name).with_suffix(".png")
    path = path if path.is_file() else folder / f"{Path(name).stem}.png"
    if not path.is_file():
        return None
    preprocessing: Preprocessing = study.backbone.preprocessing
    if preprocessing.fit != "squash":
        raise ImageError(
            f"masks cannot be laid over the grid of '{study.name}', whose images are cropped; load"
            " it with Preprocessing(fit='squash')."
        )
    values = read_gray(path, "a mask holds one class number per pixel").astype(np.int32)
    height, width = study.tokens.grid
    small = np.array(Image.fromarray(values).resize((width, height), Image.Resampling.NEAREST))
    labels = torch.from_numpy(small.astype(np.int64))
    return labels.where(labels != UNLABELLED, VOID)


def _mark(photo: NDArray[np.uint8], place: tuple[float, float]) -> NDArray[np.uint8]:
    """Mark a place (y, x) in 0..1 with a white and black square."""
    marked = photo.copy()
    height, width = photo.shape[:2]
    for half, color in ((max(6, height // 28), 0), (max(4, height // 40), 255)):
        y, x = int(place[0] * height), int(place[1] * width)
        marked[max(0, y - half) : y + half, max(0, x - half) : x + half] = color
    y, x, inner = int(place[0] * height), int(place[1] * width), max(2, height // 60)
    box = (slice(max(0, y - inner), y + inner), slice(max(0, x - inner), x + inner))
    marked[box] = photo[box]
    return marked
