"""The figure that says why an image was found: shared parts in color, strong matches as lines."""

from __future__ import annotations

from pathlib import PurePosixPath

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Circle, ConnectionPatch, Rectangle
from matplotlib.patheffects import Stroke
from PIL import Image
from torch import Tensor

from clearvit.report.chart import AMBER, BLUE, GREEN, ORANGE, PURPLE, SKY
from clearvit.report.figure import INK, Array, Panel, draw_panels
from clearvit.retrieval.explanations.explanation import NOT_FOUND, Explanation
from clearvit.retrieval.explanations.seen_image import crop_seen, read_seen
from clearvit.retrieval.index.hits import Hit

COLORS = (ORANGE, SKY, AMBER, GREEN, PURPLE, BLUE)
LARGEST, SMALLEST = 900, 320  # pixels of the longer side of an image
DIMMED = 0.3  # brightness of what has no counterpart
TINT = 0.45  # strength of the color of a part
ROW = 0.058  # height of a row of the table over the width of the table
LOWEST = 0.64  # height of the table over its width, at least: room for all rows
TITLED = 26  # letters of a name above an image
HEADER = ("part", "query", "hit", "matches", "cosine", "adds")
Row = tuple[str, float | None, float | None, int | None, float | None, float]


def draw_explanation(hit: Hit, explanation: Explanation | None = None) -> Figure:
    """Draw query and hit with the parts they share, lines between them, and the score as a table.

    Args:
        hit: With an image that can be read.
        explanation: Of this hit; made if None.
    """
    read = (read_seen(hit.query.source, hit.query.name), hit.read())
    images = [_sized(crop_seen(image, hit.query.aspect)) for image in read]
    explanation = hit.explanation() if explanation is None else explanation
    parts = explanation.parts
    assert parts is not None
    maps = (parts.query_parts, parts.hit_parts), (parts.query_matched, parts.hit_matched)
    names = [
        f"{role}: {short_name(name, most=TITLED)}"
        for role, name in (("query", hit.query.name), ("hit", hit.name))
    ]
    panels = [
        Panel(
            name,
            image=tint_parts(image, labels.numpy(), matched.numpy()),
            note=_area(matched.double().mean()),
        )
        for name, image, labels, matched in zip(names, images, *maps, strict=True)
    ]
    aspect = max(panels[0].shape, LOWEST)  # the images may be far wider than high
    panels.append(Panel(_table_title(explanation), aspect=aspect))
    figure = draw_panels([panels], _title(hit, explanation), _caption(explanation))
    left, right, table = figure.axes
    _draw_lines(figure, left, right, explanation)
    _draw_table(table, explanation, ROW / aspect)
    return figure


def contribution_rows(explanation: Explanation) -> list[Row]:
    """List what the score is made of: part, its areas, matches, cosine, what it adds.

    The last column sums to the score. Where patches have no part in the score, it sums to the
    patch similarity instead, and the global similarity is left out.
    """
    scale = explanation.weight or 1.0
    rows: list[Row] = []
    listed = 0.0
    for part in explanation.list_parts():
        listed += part.contribution
        areas = (part.query_area, part.hit_area)
        added = scale * part.contribution
        rows.append((f"part {part.number}", *areas, part.matches, part.strength, added))
    rest = scale * (explanation.patch_similarity - listed)
    rows.append(("outside or between parts", None, None, None, None, rest))
    if explanation.weight:
        rows.append(("global similarity", None, None, None, None, explanation.global_similarity))
    return rows


def tint_parts(image: Array, parts: Array, matched: Array) -> Array:
    """Color the parts (H, W) of an image (height, width, 3) and dim what has no counterpart."""
    shape = image.shape[:2]
    labels, seen = _enlarge(parts, shape), _enlarge(matched, shape)
    drawn = image.astype(np.float64) / 255
    drawn[~seen & (labels < 0)] *= DIMMED
    for number in range(int(labels.max()) + 1):
        inside = labels == number
        color = np.array(to_rgb(COLORS[number]))
        drawn[inside] = (1 - TINT) * drawn[inside] + TINT * color
        drawn[_edge(inside, max(1, max(shape) // 300))] = color
    return drawn


def short_name(name: str, most: int = 40) -> str:
    """Give the last part of a name, cut in the middle if it has more than so many letters."""
    last = PurePosixPath(name.replace("\\", "/")).name or name
    half = most // 2
    return last if len(last) <= most else f"{last[: half - 1]}…{last[-half:]}"


def _sized(image: Image.Image) -> Array:
    """Bring an image to a size at which lines and edges can be drawn."""
    longest = max(image.size)
    factor = min(1.0, LARGEST / longest) * max(1.0, SMALLEST / longest)
    size = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
    return np.asarray(image.convert("RGB").resize(size))


def _enlarge(cells: Array, shape: tuple[int, ...]) -> Array:
    """Repeat cells (H, W) for pixels (height, width)."""
    rows = np.arange(shape[0]) * cells.shape[0] // shape[0]
    columns = np.arange(shape[1]) * cells.shape[1] // shape[1]
    enlarged: Array = cells[rows][:, columns]
    return enlarged


def _edge(mask: Array, width: int) -> Array:
    """Mark the rim of a mask (height, width), inside it."""
    inner = np.pad(mask, width, constant_values=True)
    for axis in (0, 1):
        inner = inner & np.roll(inner, width, axis) & np.roll(inner, -width, axis)
    rim: Array = mask & ~inner[width:-width, width:-width]
    return rim


def _draw_lines(figure: Figure, left: Axes, right: Axes, explanation: Explanation) -> None:
    """Join the strongest matches, in the color of their part."""
    for match in explanation.list_lines():
        color = COLORS[match.part - 1]
        line = ConnectionPatch(
            match.query,
            match.hit,
            "data",
            "data",
            axesA=left,
            axesB=right,
            color=color,
            linewidth=1.6,
        )
        line.set_path_effects([Stroke(linewidth=3.2, foreground="white"), Stroke(linewidth=1.6)])
        figure.add_artist(line)
        for axes, center in ((left, match.query), (right, match.hit)):
            axes.add_patch(Circle(center, 0.012, facecolor=color, edgecolor="white", zorder=5))


def _draw_table(axes: Axes, explanation: Explanation, step: float) -> None:
    """Write the contributions, each in a row that is `step` of the height of the axes."""
    rows = contribution_rows(explanation)
    total = sum(row[-1] for row in rows)
    name = "sum = score" if explanation.weight else "sum = patch similarity"
    lines = [HEADER, *(_shown(row) for row in rows), (name, "", "", "", "", f"{total:.4f}")]
    columns = (0.06, 0.34, 0.45, 0.67, 0.84, 1.0)
    for number, line in enumerate(lines):
        style = "bold" if number in (0, len(lines) - 1) else "normal"
        height = 1 - step * (number + 0.5)
        for column, (x, text) in enumerate(zip(columns, line, strict=True)):
            side = "right" if column else "left"
            axes.text(x, height, text, size=9, ha=side, va="center", color=INK, weight=style)
        if 0 < number <= len(rows) and line[0].startswith("part "):
            box = (0, height - 0.35 * step), 0.04, 0.7 * step
            axes.add_patch(Rectangle(*box, facecolor=COLORS[number - 1], edgecolor="none"))
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)


def _shown(row: Row) -> tuple[str, ...]:
    name, *areas, matches, strength, added = row
    shown = ["" if area is None else f"{area:.0%}" for area in areas]
    count, cosine = "" if matches is None else str(matches), strength
    return name, *shown, count, "" if cosine is None else f"{cosine:.2f}", f"{added:.4f}"


def _area(fraction: Tensor) -> str:
    return f"{float(fraction):.0%} has a counterpart"


def _table_title(explanation: Explanation) -> str:
    if not explanation.found:
        return "no shared part"
    return "what the score is made of" if explanation.weight else "parts, not used for the score"


def _title(hit: Hit, explanation: Explanation) -> str:
    if not explanation.found:
        return f"{NOT_FOUND[:-1]}; score {hit.score:.4f}"
    if explanation.weight:
        parts = f"{explanation.global_similarity:.4f} global + {explanation.weight:.3g} x"
        return f"score {explanation.score:.4f} = {parts} {explanation.patch_similarity:.4f} patches"
    return f"score {hit.score:.4f}, by the similarity of descriptors alone"


def _caption(explanation: Explanation) -> str:
    assert explanation.parts is not None
    (height, width), (rows, columns) = explanation.parts.grids[0], explanation.grid
    return (
        f"Same color: the same part, found on {height} x {width} patches; dark: no counterpart;"
        f" lines: the strongest mutual nearest neighbors. The score compares {rows} x {columns}"
        f" patches by {explanation.matching.method}."
    )
