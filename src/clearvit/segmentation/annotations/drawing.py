"""Regions as arrays: polygons, strokes and run lengths to pixels, and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from clearvit.options import Size

Bools = NDArray[np.bool_]
Point = Sequence[float]  # x to the right, y down, in pixels


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
    canvas = Image.new("1", (size[1], size[0]))
    draw = ImageDraw.Draw(canvas)
    centers = [(float(x) - 0.5, float(y) - 0.5) for x, y in points]
    if len(centers) > 1:
        draw.line(centers, fill=1, width=max(1, round(2 * radius)))
    for x, y in centers if radius >= 1 else ():
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=1)
    marked = np.array(canvas)
    for px, py in points:
        if 0 <= px < size[1] and 0 <= py < size[0]:
            marked[int(py), int(px)] = True
    return marked


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
