"""A few strokes on one photo, to segment the others by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from clearvit.segmentation.annotations.strokes import write_strokes

Line = Sequence[tuple[float, float]]  # points (x, y) in 0..1 of width and height


class Strokes(NamedTuple):
    """Lines on one photo: through the object, and through what is not the object."""

    name: str  # of the object
    inside: Sequence[Line]
    outside: Sequence[Line]


PERSON = Strokes(  # on the packaged photo of an astronaut
    "person",
    (
        ((0.44, 0.08), (0.45, 0.27)),
        ((0.19, 0.57), (0.35, 0.53), (0.61, 0.51)),
        ((0.22, 0.86), (0.45, 0.7)),
    ),
    (
        ((0.2, 0.06), (0.2, 0.25)),
        ((0.64, 0.15), (0.66, 0.35)),
        ((0.03, 0.2), (0.04, 0.6)),
        ((0.79, 0.15), (0.8, 0.48)),
        ((0.88, 0.6), (0.95, 0.66)),
    ),
)
MIDDLE = Strokes(  # on any photo, of which nothing is known
    "object",
    (((0.4, 0.5), (0.6, 0.5)), ((0.5, 0.4), (0.5, 0.6))),
    (((0.04, 0.04), (0.96, 0.04)), ((0.04, 0.04), (0.04, 0.6)), ((0.96, 0.04), (0.96, 0.6))),
)


ABSENT = Strokes(  # on photos that show none
    "person",
    (),
    (((0.1, 0.15), (0.9, 0.85)), ((0.1, 0.85), (0.5, 0.5), (0.9, 0.15)), ((0.3, 0.3), (0.7, 0.3))),
)


def write_examples(drawn: Mapping[Path, Strokes], out: Path) -> Path:
    """Write strokes on images that lie beside the file, unless they are there already."""
    if out.exists():
        return out
    names = {strokes.name for strokes in drawn.values()}
    examples = [_example(image, strokes) for image, strokes in drawn.items()]
    write_strokes(out, ["background", *sorted(names)], examples)
    return out


def _example(image: Path, strokes: Strokes) -> dict[str, Any]:
    with Image.open(image) as opened:
        width, height = opened.size
    radius = max(2, round(min(width, height) / 60))
    lines = [(strokes.name, line) for line in strokes.inside]
    lines += [("background", line) for line in strokes.outside]
    drawn = [
        {"class": name, "points": [[x * width, y * height] for x, y in line], "radius": radius}
        for name, line in lines
    ]
    return {"image": image.name, "width": width, "height": height, "strokes": drawn}
