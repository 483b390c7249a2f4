"""Regions as arrays: polygons, strokes and run lengths to pixels, and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from clearvit.options import Size

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Point = Sequence[float]  # x to the right, y down, in pixels
BAND = 1 << 22  # pixels that are compared with a line at once


def fill_polygon(points: Sequence[Point], size: Size) -> Bools:
    """Mark the pixels of a polygon, (height, width) bool; pixel (i, j) covers j..j+1, i..i+1."""
    canvas = Image.new("1", (size[1], size[0]))
    # Pillow's coordinates are those of pixel centers, annotations count from the corner.
    corners = [(float(x) - 0.5, float(y) - 0.5) for x, y in points]
    ImageDraw.Draw(canvas).polygon(corners, fill=1)
    return np.array(canvas)


def draw_stroke(points: Sequence[Point], radius: float, size: Size) -> Bools:
    """Mark the pixels within `radius` of a line through points; of one point, a disc.

    The pixels under the points themselves are marked whatever the radius.
    """
    marked = np.zeros(size, dtype=bool)
    for start, end in zip(points, [*points[1:], *points[-1:]], strict=True):
        _mark_near(marked, np.asarray(start, float), np.asarray(end, float), radius)
    for px, py in points:
        if 0 <= px < size[1] and 0 <= py < size[0]:
            marked[int(py), int(px)] = True
    return marked


def polygon_work(points: Sequence[Point], size: Size) -> int:
    """Tell about how many pixels `fill_polygon` works on."""
    return size[0] * (size[1] + len(points))


def stroke_work(points: Sequence[Point], radius: float, size: Size) -> int:
    """Tell how many pixels `draw_stroke` works on."""
    place = np.asarray(points, float)
    ends = np.concatenate([place[1:], place[-1:]])
    limits = (size[1], size[0])
    low = np.clip(np.minimum(place, ends) - radius, 0, limits)
    high = np.clip(np.maximum(place, ends) + radius, 0, limits)
    return size[0] * size[1] + int((high - low).prod(1).sum())


def _mark_near(marked: Bools, start: Floats, end: Floats, radius: float) -> None:
    """Mark the pixels whose centers lie within `radius` of the line between two points (x, y)."""
    limits = (marked.shape[1], marked.shape[0])
    low = np.clip(np.floor(np.minimum(start, end) - radius), 0, limits).astype(int)
    high = np.clip(np.ceil(np.maximum(start, end) + radius) + 1, 0, limits).astype(int)
    along = end - start
    length = float(along @ along) or 1.0
    rows = max(1, BAND // max(1, int(high[0] - low[0])))
    for top in range(low[1], high[1], rows):  # in bands, since a stroke may cover a large image
        bottom = min(top + rows, high[1])
        x, y = np.meshgrid(np.arange(low[0], high[0]) + 0.5, np.arange(top, bottom) + 0.5)
        part = np.clip(((x - start[0]) * along[0] + (y - start[1]) * along[1]) / length, 0, 1)
        squared = (x - start[0] - part * along[0]) ** 2 + (y - start[1] - part * along[1]) ** 2
        marked[top:bottom, low[0] : high[0]] |= squared <= radius**2


def decode_runs(counts: Sequence[int], size: Size) -> Bools:
    """Turn COCO's run lengths into a mask, (height, width) bool.

    Runs of 0 and 1 alternate, 0 first, down the columns.

    Raises:
        ValueError: The runs do not cover the mask exactly.
    """
    runs = np.asarray(counts, dtype=np.int64)
    if (runs < 0).any() or int(runs.sum()) != size[0] * size[1]:
        raise ValueError(f"its run lengths do not fill {size[0]} x {size[1]} pixels")
    values = np.arange(len(runs)) % 2 == 1
    return np.repeat(values, runs).reshape(size[1], size[0]).T


def encode_runs(mask: Bools) -> list[int]:
    """Give COCO's run lengths of a mask (height, width)."""
    flat = mask.T.ravel()
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    edges = np.concatenate([[0], changes, [flat.size]])
    runs = np.diff(edges).tolist()
    return [0, *runs] if flat.size and flat[0] else runs


def unpack_runs(text: str) -> list[int]:
    """Read the run lengths that COCO packs into text.

    A number is written in pieces of five bits, lowest first, each as the character 48 + piece; the
    sixth bit says that another piece follows, the fifth of the last one is the sign. From the
    fourth number on, the difference to the number two before is written.

    Raises:
        ValueError: The text is cut off or holds other characters.
    """
    runs: list[int] = []
    value = shift = 0
    for character in text:
        piece = ord(character) - 48
        if not 0 <= piece < 64 or shift > 60:
            raise ValueError("its packed run lengths are damaged")
        value |= (piece & 31) << shift
        shift += 5
        if piece & 32:
            continue
        if piece & 16:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    if shift:
        raise ValueError("its packed run lengths are cut off")
    return runs


def pack_runs(runs: Sequence[int]) -> str:
    """Write run lengths as COCO's text, see `unpack_runs`."""
    characters = []
    for i, run in enumerate(runs):
        value = run - (runs[i - 2] if i > 2 else 0)
        while True:
            piece = value & 31
            value >>= 5
            more = value != (-1 if piece & 16 else 0)
            characters.append(chr(48 + (piece | 32 if more else piece)))
            if not more:
                break
    return "".join(characters)
