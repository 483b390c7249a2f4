"""Strokes and clicks: the sparse labels that people draw in a minute.

The format is described in docs/segment.md; the microscope writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from clearvit.errors import ImageError
from clearvit.files import replace_json
from clearvit.options import LARGEST_SIDE, Size
from clearvit.schema import Rule, check_content, list_of, number, one_of, table, text, whole
from clearvit.segmentation.annotations.drawing import draw_stroke, stroke_work
from clearvit.segmentation.annotations.labelled import (
    UNLABELLED,
    ImageFinder,
    Integers,
    Labelled,
    check_size,
    check_work,
)

FORMAT, VERSION = "clearvit-strokes", 1
MOST_CLASSES = 254
RADIUS = 6.0  # pixels, of strokes that name none
_COORDINATE = number(-1e5, 1e5)
_SIDE = whole(1, 1 << 17)
_STROKE: Rule = table(
    {
        "class": text,
        "points": list_of(list_of(_COORDINATE, 2, 2), 1, 100_000),
        "radius": number(0, LARGEST_SIDE),
    },
    optional=("radius",),
)
RULES: dict[str, Rule] = {
    "made_by": text,
    "format": one_of(FORMAT),
    "version": one_of(VERSION),
    "classes": list_of(text, 1, MOST_CLASSES),
    "images": list_of(
        table(
            {
                "image": text,
                "width": _SIDE,
                "height": _SIDE,
                "strokes": list_of(_STROKE, 0, 100_000),
            }
        ),
        1,
        100_000,
    ),
}


def is_strokes(content: dict[str, Any]) -> bool:
    """Tell whether a JSON file says that it holds strokes."""
    return content.get("format") == FORMAT


def read_strokes(path: Path, content: dict[str, Any], finder: ImageFinder) -> Iterator[Labelled]:
    """Read strokes; images without any are left out."""
    check_content(content, RULES, where=str(path), error=ImageError, optional=("made_by",))
    names = tuple(content["classes"])
    if len(set(names)) < len(names):
        raise ImageError(f"'{path}' lists a class twice.")
    for row in content["images"]:
        for stroke in row["strokes"]:
            if stroke["class"] not in names:
                raise ImageError(
                    f"'{path}' has a stroke of class '{stroke['class']}', which is none of its"
                    f" classes: {', '.join(names)}."
                )
        if row["strokes"]:
            size = check_size((row["height"], row["width"]), str(path))
            strokes = row["strokes"]
            work = (stroke_work(s["points"], s.get("radius", RADIUS), size) for s in strokes)
            check_work(sum(work), size, str(path))
            draw = partial(_draw, strokes, names, size)
            image = finder.find(row["image"], str(path))
            yield Labelled(image, str(path), names, True, draw)


def _draw(strokes: Sequence[dict[str, Any]], names: Sequence[str], size: Size) -> Integers:
    """Draw strokes in their order; where two cross, the later one counts."""
    mask = np.full(size, UNLABELLED, dtype=np.int64)
    for stroke in strokes:
        region = draw_stroke(stroke["points"], stroke.get("radius", RADIUS), size)
        mask[region] = names.index(stroke["class"])
    return mask


def write_strokes(
    path: str | Path, classes: Sequence[str], images: Sequence[dict[str, Any]]
) -> Path:
    """Write strokes as a file that `cv.segment` takes as examples.

    Args:
        path: The .json file.
        classes: Names of the classes; "background" is the name of what belongs to none.
        images: One per image: {"image": file name, "width": pixels, "height": pixels, "strokes":
            [{"class": name, "points": [[x, y], …], "radius": pixels}]}, x to the right, y down.
    """
    target = Path(path)
    content = {
        "format": FORMAT,
        "version": VERSION,
        "classes": list(classes),
        "images": [dict(row) for row in images],
    }
    check_content(content, RULES, where=str(target), error=ImageError, optional=("made_by",))
    replace_json(target, content)
    return target
