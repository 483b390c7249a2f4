"""Figures and a page that say why an image was found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, ConnectionPatch
from matplotlib.patheffects import Stroke
from PIL import Image

from clearvit.errors import ImageError
from clearvit.images import read_image
from clearvit.images.remote import is_url, store_of
from clearvit.report.chart import AMBER, BLUE, GREEN, ORANGE, PURPLE, SKY
from clearvit.report.elements import Facts, ImageElement, Notice, Paragraph, Section, Table
from clearvit.report.figure import ATTENTION_CMAP, INK, Array, Panel, draw_panels, shared_limits
from clearvit.report.page import write_page
from clearvit.retrieval.explanation import Explanation, Match
from clearvit.retrieval.index.hits import Hit, Hits

COLORS = (ORANGE, SKY, AMBER, GREEN, PURPLE, BLUE)
LARGEST = 900  # pixels of the longer side of an image
SHADE = 0.62  # darkness of what found no counterpart
HEADER = ("query", "hit", "mass", "cosine", "adds")


def draw_explanation(hit: Hit) -> Figure:
    """Draw query and hit: lines between matches, patch weights, and the table of the score."""
    explanation = hit.explanation()
    rows = _panels(hit, explanation)
    figure = draw_panels(rows, _title(hit, explanation), _caption(explanation))
    left, right, table = figure.axes[0], figure.axes[1], figure.axes[-1]
    for axes, mask in zip((left, right), _masks(explanation), strict=True):
        _shade(axes, mask)
    matches = explanation.strongest()
    _draw_lines(figure, left, right, matches, explanation)
    _draw_table(table, explanation, matches)
    return figure


def explain_page(hits: Hits, path: str | Path, *, figures: int = 10) -> Path:
    """Write one HTML page about a result list.

    Args:
        hits: What a search by image returned.
        path: The .html file.
        figures: For how many of the first hits to draw why.
    """
    listed = tuple(
        (hit.rank, hit.name, hit.score, hit.global_similarity, hit.patch_similarity) for hit in hits
    )
    header = ("rank", "image", "score", "global", "patches")
    top = Section(
        "Hits",
        (
            Notice("How the ranking came about", hits.note, "good"),
            Table(header, listed, "score = global + weight x patch similarity"),
        ),
    )
    sections = [top, *(_section(hit) for hit in hits[:figures])]
    return write_page(Path(path), f"Images like {_short(hits.query.name)}", sections)


def contribution_rows(
    explanation: Explanation, matches: Sequence[Match] | None = None
) -> list[tuple[str, str, float | None, float | None, float]]:
    """List what the score is made of; the last column sums to the score.

    Where patches have no part in the score, it sums to the patch similarity instead, and the
    global similarity is left out.
    """
    matches = explanation.strongest() if matches is None else matches
    scale = explanation.weight or 1.0
    rows: list[tuple[str, str, float | None, float | None, float]] = [
        (_cell(m.query), _cell(m.hit), m.mass, m.similarity, scale * m.contribution)
        for m in matches
    ]
    listed = sum(m.contribution for m in matches)
    mass = float(explanation.mass.sum()) - sum(m.mass for m in matches)
    rows.append(
        ("all other", "matches", mass, None, scale * (explanation.patch_similarity - listed))
    )
    if explanation.weight:
        rows.append(("global", "similarity", None, None, explanation.global_similarity))
    return rows


def _section(hit: Hit) -> Section:
    explanation = hit.explanation()
    rows = contribution_rows(explanation)
    total = sum(row[-1] for row in rows)
    name = "score" if explanation.weight else "patch similarity"
    facts = (
        ("score", f"{hit.score:.4f}"),
        ("global similarity", f"{explanation.global_similarity:.4f}"),
        ("patch similarity", f"{explanation.patch_similarity:.4f}"),
        ("weight of the patch similarity", f"{explanation.weight:.3g}"),
    )
    try:
        figure: ImageElement | Paragraph = ImageElement(
            draw_explanation(hit),
            alt=f"Patches of {hit.query.name} matched with patches of {hit.name}",
        )
    except ImageError as error:  # the features are in the index, the file may be gone
        figure = Paragraph(f"No figure: {error}", faint=True)
    table = Table(
        HEADER,
        (*rows, ("sum", name, None, None, total)),
        "Patches as row, column from the top left.",
    )
    return Section(f"{hit.rank}. {hit.name}", (Facts(facts), figure, table))


def _panels(hit: Hit, explanation: Explanation) -> list[list[Panel]]:
    """Both images, and below them both weight maps and room for the table."""
    query = _seen_image(hit.query.source, hit.query.name, hit.query.aspect)
    _check_store(hit)
    found = _seen_image(hit.path or None, hit.name, hit.query.aspect)
    weights = (
        _on_grid(explanation.query_weights, explanation),
        _on_grid(explanation.hit_weights, explanation),
    )
    limits = shared_limits(weights, low=0.0)
    names = f"query: {_short(hit.query.name)}", f"hit: {_short(hit.name)}"
    notes = [f"{_unmatched_fraction(mask)} without a counterpart" for mask in _masks(explanation)]
    used = explanation.weight > 0
    table_title = "what the score is made of" if used else "matches, not part of the score"
    return [
        [
            Panel(name, image=image, note=note)
            for name, image, note in zip(names, (query, found), notes, strict=True)
        ],
        [
            Panel(
                title,
                image,
                values,
                limits=limits,
                cmap=ATTENTION_CMAP,
                label="fraction of the weight",
            )
            for title, image, values in zip(
                ("patch weights of the query", "patch weights of the hit"),
                (query, found),
                weights,
                strict=True,
            )
        ]
        + [Panel(table_title, aspect=0.92)],
    ]


def _check_store(hit: Hit) -> None:
    """Refuse to ask a server that only the index names: it may be a stranger's."""
    named = {store_of(str(place)) for place in (hit.store.location, hit.query.source)}
    if is_url(hit.path) and store_of(hit.path) not in named:
        raise ImageError(
            f"'{hit.name}' is at '{hit.path}'; an image at a URL is drawn only if the index or the"
            " query is in the same bucket."
        )


def _seen_image(source: str | Path | Image.Image | None, name: str, aspect: float | None) -> Array:
    """Read the part of an image that the model sees, (height, width, 3)."""
    if source is None:
        raise ImageError(f"'{name}' was indexed from memory, so there is no file to draw.")
    try:
        image = read_image(source)
    except ImageError as error:
        raise ImageError(
            f"the file of '{name}' cannot be drawn: {error}. If the folder has moved, refresh the"
            " index."
        ) from error
    if aspect is not None:
        across = min(image.width, image.height / aspect)
        left, upper = (image.width - across) / 2, (image.height - across * aspect) / 2
        box = (left, upper, left + across, upper + across * aspect)
        image = image.crop(tuple(round(side) for side in box))  # type: ignore[arg-type]
    image.thumbnail((LARGEST, LARGEST))
    # Enlarged, so that a tiny image is not drawn as a map of cells.
    grown = max(1, -(-160 // max(image.size)))
    return np.asarray(image.resize((image.width * grown, image.height * grown)))


def _draw_lines(
    figure: Figure, left: Axes, right: Axes, matches: Sequence[Match], explanation: Explanation
) -> None:
    """Join the centers of matched patches; the stronger, the thicker."""
    strongest = max((m.contribution for m in matches), default=1.0)
    for number, match in enumerate(matches):
        color = COLORS[number % len(COLORS)]
        width = 0.8 + 2.7 * match.contribution / strongest
        ends = _center(match.query, explanation), _center(match.hit, explanation)
        line = ConnectionPatch(
            ends[0], ends[1], "data", "data", axesA=left, axesB=right, color=color, linewidth=width
        )
        line.set_path_effects(
            [Stroke(linewidth=width + 1.6, foreground="white"), Stroke(linewidth=width)]
        )
        figure.add_artist(line)
        for axes, (x, y) in zip((left, right), ends, strict=True):
            radius = 0.008 + 0.006 * match.contribution / strongest
            axes.add_patch(Circle((x, y), radius, facecolor=color, edgecolor="white", zorder=5))


def _shade(axes: Axes, mask: Array) -> None:
    """Darken the patches (H, W) that found no counterpart."""
    dark = np.zeros((*mask.shape, 4))
    dark[mask, 3] = SHADE
    axes.imshow(dark, interpolation="nearest", aspect="auto", extent=(0, 1, 1, 0))
    axes.set_xlim(0, 1)
    axes.set_ylim(1, 0)


def _draw_table(axes: Axes, explanation: Explanation, matches: Sequence[Match]) -> None:
    rows = contribution_rows(explanation, matches)
    total = sum(row[-1] for row in rows)
    name = "score" if explanation.weight else "patches"
    lines = [HEADER, *((q, h, _number(m), _number(s), f"{c:.4f}") for q, h, m, s, c in rows)]
    lines.append(("sum", f"= {name}", "", "", f"{total:.4f}"))
    step = 1 / max(14, len(lines))
    columns = (0.0, 0.3, 0.62, 0.8, 1.0)
    for number, line in enumerate(lines):
        bold = number in (0, len(lines) - 1)
        weight = "bold" if bold else "normal"
        for column, (x, text) in enumerate(zip(columns, line, strict=True)):
            side = "left" if column < 2 else "right"
            axes.text(
                x,
                1 - step * (number + 0.5),
                text,
                size=9.5,
                ha=side,
                va="center",
                color=INK,
                weight=weight,
            )
        if 0 < number <= len(matches):
            color = COLORS[(number - 1) % len(COLORS)]
            axes.plot([-0.045, -0.015], [1 - step * (number + 0.5)] * 2, color=color, linewidth=3)
    axes.set_xlim(-0.05, 1)
    axes.set_ylim(0, 1)


def _title(hit: Hit, explanation: Explanation) -> str:
    if explanation.weight:
        parts = f"{explanation.global_similarity:.4f} global + {explanation.weight:.3g} x"
        return f"score {explanation.score:.4f} = {parts} {explanation.patch_similarity:.4f} patches"
    return f"score {hit.score:.4f}, by the similarity of descriptors alone"


def _caption(explanation: Explanation) -> str:
    height, width = explanation.grid
    moved = f"{float(explanation.mass.sum()):.0%} of the weight is matched"
    return (
        f"{height} x {width} patches, named row, column from the top left; matched by"
        f" {explanation.matching.method}, {moved}. Lines: the strongest matches, each patch once."
    )


def _masks(explanation: Explanation) -> tuple[Array, Array]:
    return explanation.query_unmatched.numpy(), explanation.hit_unmatched.numpy()


def _unmatched_fraction(mask: Array) -> str:
    return f"{mask.mean():.0%} of the patches" if mask.any() else "no patch"


def _on_grid(weights: torch.Tensor, explanation: Explanation) -> Array:
    return weights.reshape(explanation.grid).numpy()


def _center(cell: tuple[int, int], explanation: Explanation) -> tuple[float, float]:
    return (cell[1] + 0.5) / explanation.grid[1], (cell[0] + 0.5) / explanation.grid[0]


def _cell(cell: tuple[int, int]) -> str:
    return f"{cell[0] + 1}, {cell[1] + 1}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _short(name: str) -> str:
    last = PurePosixPath(name.replace("\\", "/")).name or name
    return last if len(last) <= 40 else f"{last[:18]}…{last[-20:]}"
