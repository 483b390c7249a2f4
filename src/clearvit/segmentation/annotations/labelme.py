"""LabelMe's JSON: polygons, rectangles, circles, lines and points of one image."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clearvit.errors import ImageError
from clearvit.options import Size
from clearvit.schema import (
    Rule,
    check_content,
    either,
    list_of,
    nothing,
    number,
    table,
    text,
    whole,
)
from clearvit.segmentation.annotations.drawing import (
    draw_stroke,
    fill_polygon,
    polygon_work,
    stroke_work,
)
from clearvit.segmentation.annotations.labelled import (
    ImageFinder,
    Integers,
    Labelled,
    check_size,
    check_work,
    overlay_regions,
)

SPARSE = ("point", "points", "line", "linestrip")
WIDTH = 6.0  # pixels to each side of a line or point
_SIDE = whole(1, 1 << 17)
_SHAPE = table(
    {
        "label": text,
        "points": list_of(list_of(number(-1e6, 1e6), 2, 2), 1, 100_000),
        "shape_type": either(nothing, text),
    },
    optional=("shape_type",),
    ignore_unknown=True,
)
RULES: dict[str, Rule] = {
    "imagePath": text,
    "imageHeight": _SIDE,
    "imageWidth": _SIDE,
    "shapes": list_of(_SHAPE, 0, 100_000),
}


def is_labelme(content: dict[str, Any]) -> bool:
    """Tell whether a JSON file looks like LabelMe's."""
    return "shapes" in content and "imagePath" in content


def read_labelme(path: Path, content: dict[str, Any], finder: ImageFinder) -> Iterator[Labelled]:
    """Read the shapes of one image; with nothing but lines and points it is sparse."""
    check_content(content, RULES, where=str(path), error=ImageError, ignore_unknown=True)
    shapes: list[dict[str, Any]] = content["shapes"]
    size = check_size((content["imageHeight"], content["imageWidth"]), str(path))
    names = tuple(dict.fromkeys(str(shape["label"]) for shape in shapes))
    kinds = {str(shape.get("shape_type") or "polygon") for shape in shapes}
    sparse = bool(kinds) and kinds <= set(SPARSE)
    check_work(sum(_work(shape, size) for shape in shapes), size, str(path))
    image = finder.find(content["imagePath"], str(path))
    yield Labelled(image, str(path), names, sparse, partial(_draw, shapes, names, size, str(path)))


def _work(shape: dict[str, Any], size: Size) -> int:
    """Tell about how many pixels drawing one shape costs."""
    if (shape.get("shape_type") or "polygon") in SPARSE:
        return stroke_work(shape["points"], WIDTH, size)
    return polygon_work(shape["points"], size)


def _draw(
    shapes: Sequence[dict[str, Any]], names: Sequence[str], size: Size, file: str
) -> Integers:
    regions = ((names.index(str(shape["label"])), _region(shape, size, file)) for shape in shapes)
    return overlay_regions(regions, names, size, file)


def _region(shape: dict[str, Any], size: Size, file: str) -> NDArray[np.bool_]:
    kind, points = shape.get("shape_type") or "polygon", shape["points"]
    if kind in SPARSE:
        return draw_stroke(points, WIDTH, size)
    if kind == "rectangle" and len(points) >= 2:
        (x0, y0), (x1, y1) = points[0], points[1]
        return fill_polygon([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], size)
    if kind == "circle" and len(points) == 2:
        return draw_stroke(points[:1], math.dist(points[0], points[1]), size)
    if kind == "polygon" and len(points) >= 3:
        return fill_polygon(points, size)
    raise ImageError(
        f"'{file}' has a shape of type '{kind}' with {len(points)} points. Polygons of three or"
        " more points, rectangles, circles, lines and points are read."
    )
