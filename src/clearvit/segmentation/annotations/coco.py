"""COCO's JSON: objects of many images as polygons or run lengths, read and written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clearvit.errors import ImageError
from clearvit.files import MADE_BY, check_replaceable, written_whole
from clearvit.options import Size
from clearvit.schema import Rule, check_content, either, list_of, number, table, text, whole
from clearvit.segmentation.annotations.drawing import (
    decode_runs,
    encode_runs,
    fill_polygon,
    pack_runs,
    polygon_work,
    unpack_runs,
)
from clearvit.segmentation.annotations.labelled import (
    ImageFinder,
    Integers,
    Labelled,
    check_size,
    check_work,
    overlay_regions,
)

LONGEST_RUNS = 1 << 24  # characters of packed run lengths
_ID = whole(0, (1 << 63) - 1)
_SIDE = whole(1, 1 << 17)


def _packed(value: Any) -> str:
    right = isinstance(value, str) and len(value) <= LONGEST_RUNS
    return "" if right else "polygons or run lengths were expected"


_POLYGON = list_of(number(-1e6, 1e6), 6, 200_000)
_RUNS = table(
    {
        "size": list_of(_SIDE, 2, 2),
        "counts": either(list_of(whole(0, 1 << 34), 1, LONGEST_RUNS), _packed),
    }
)
IMAGE_RULES: dict[str, Rule] = {"id": _ID, "file_name": text, "width": _SIDE, "height": _SIDE}
ANNOTATION_RULES: dict[str, Rule] = {
    "image_id": _ID,
    "category_id": _ID,
    "segmentation": either(list_of(_POLYGON, 1, 100_000), _RUNS),
}
CATEGORY_RULES: dict[str, Rule] = {"id": _ID, "name": text}
RULES: dict[str, Rule] = {
    "images": list_of(table(IMAGE_RULES, ignore_unknown=True), 1, 1_000_000),
    "annotations": list_of(table(ANNOTATION_RULES, ignore_unknown=True), 1, 10_000_000),
    "categories": list_of(table(CATEGORY_RULES, ignore_unknown=True), 1, 254),
}


def is_coco(content: dict[str, Any]) -> bool:
    """Tell whether a JSON file looks like COCO's."""
    return all(key in content for key in ("images", "annotations"))


def read_coco(path: Path, content: dict[str, Any], finder: ImageFinder) -> Iterator[Labelled]:
    """Read the labelled images of a file; images without an annotation are left out."""
    check_content(content, RULES, where=str(path), error=ImageError, ignore_unknown=True)
    categories = {row["id"]: row["name"] for row in content["categories"]}
    names = tuple(dict.fromkeys(categories.values()))
    images = {row["id"]: row for row in content["images"]}
    objects: dict[int, list[dict[str, Any]]] = {}
    for row in content["annotations"]:
        if row["category_id"] not in categories:
            raise ImageError(
                f"'{path}' has an annotation of category {row['category_id']}, which is none of its"
                f" categories: {', '.join(f'{k} {v}' for k, v in list(categories.items())[:10])}."
            )
        if row["image_id"] not in images:
            raise ImageError(
                f"'{path}' has an annotation of image {row['image_id']}, which it does not list."
            )
        objects.setdefault(row["image_id"], []).append(row)
    for key, rows in objects.items():
        found = images[key]
        size = check_size((found["height"], found["width"]), str(path))
        numbers = [names.index(categories[row["category_id"]]) for row in rows]
        shapes = [(n, row["segmentation"]) for n, row in zip(numbers, rows, strict=True)]
        check_work(sum(_work(shape, size) for _, shape in shapes), size, str(path))
        draw = partial(_draw, shapes, names, size, str(path))
        yield Labelled(finder.find(found["file_name"], str(path)), str(path), names, False, draw)


def _work(shape: Any, size: Size) -> int:
    """Tell about how many pixels drawing one object costs."""
    if not isinstance(shape, list):
        return size[0] * size[1]
    return sum(polygon_work(polygon[::2], size) for polygon in shape)


def _draw(
    shapes: Sequence[tuple[int, Any]], names: Sequence[str], size: Size, file: str
) -> Integers:
    regions = ((number, _region(shape, size, file)) for number, shape in shapes)
    return overlay_regions(regions, names, size, file)


def _region(shape: Any, size: Size, file: str) -> NDArray[np.bool_]:
    if isinstance(shape, list):
        mask = np.zeros(size, dtype=bool)
        for polygon in shape:
            mask |= fill_polygon(list(zip(polygon[::2], polygon[1::2], strict=False)), size)
        return mask
    try:
        if (shape["size"][0], shape["size"][1]) != size:
            raise ValueError(f"its size is {shape['size']}, that of the image {list(size)}")
        counts = shape["counts"]
        return decode_runs(unpack_runs(counts) if isinstance(counts, str) else counts, size)
    except ValueError as error:
        raise ImageError(f"'{file}' has an annotation that cannot be used: {error}.") from error


def write_coco(
    path: Path, classes: Mapping[int, str], masks: Iterable[tuple[str, Integers]]
) -> Path:
    """Write masks as COCO's JSON, one annotation per image and class, as packed run lengths.

    Args:
        path: The .json file.
        classes: Names by number; the categories, without number 0 if it is the background.
        masks: File name and class numbers (height, width) of each image; only one is held at a
            time.
    """
    objects = {k: v for k, v in classes.items() if v != "background"}
    check_replaceable(path)
    listed: list[str] = []
    count = 0
    with written_whole(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        categories = [{"id": k, "name": v} for k, v in objects.items()]
        file.write(f'{{"made_by": "{MADE_BY}",\n"categories": {json.dumps(categories)},\n')
        file.write('"annotations": [')
        for number, (name, mask) in enumerate(masks, 1):
            height, width = mask.shape
            row = {"id": number, "file_name": name, "width": width, "height": height}
            listed.append(json.dumps(row))
            for kind in (k for k in np.unique(mask).tolist() if k in objects):
                count += 1
                content = {"id": count, "image_id": number, "category_id": kind}
                line = json.dumps({**content, **_describe(mask == kind)})
                file.write(f"{',' if count > 1 else ''}\n{line}")
        file.write('],\n"images": [\n' + ",\n".join(listed) + "]}\n")
    return path


def _describe(region: NDArray[np.bool_]) -> dict[str, Any]:
    """Give area, box and run lengths of one region as COCO has them."""
    rows, columns = np.flatnonzero(region.any(1)), np.flatnonzero(region.any(0))
    box = [columns[0], rows[0], columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1]
    return {
        "area": int(region.sum()),
        "bbox": [int(side) for side in box],
        "iscrowd": 0,
        "segmentation": {"size": list(region.shape), "counts": pack_runs(encode_runs(region))},
    }
