"""Pictures and a page that say why an image was found."""

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
from clearvit.report.chart import AMBER, BLUE, GREEN, ORANGE, PURPLE, SKY
from clearvit.report.elements import Facts, Notice, Paragraph, Picture, Section, Table
from clearvit.report.figure import INK, SHARE, Array, Panel, draw_panels, shared_limits
from clearvit.report.page import write_page
from clearvit.retrieval.explanation import Explanation, Match
from clearvit.retrieval.hits import Hit, Hits

COLOURS = (ORANGE, SKY, AMBER, GREEN, PURPLE, BLUE)
LARGEST = 900  # pixels of the longer side of a photo
SHADE = 0.62  # darkness of what found no counterpart
HEADER = ("query", "hit", "mass", "cosine", "gives")


def draw_explanation(hit: Hit) -> Figure:
    """Draw query and hit: lines between matched patches, importance, and the table of the score."""
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


def explain_page(hits: Hits, path: str | Path, *, pictures: int = 10) -> Path:
    """Write one HTML page about a result list.

    Args:
        hits: What a search by image returned.
        path: The .html file.
        pictures: For how many of the first hits to draw why.
    """
    listed = tuple(
        (hit.rank, hit.name, hit.score, hit.global_similarity, hit.structural) for hit in hits
    )
    header = ("rank", "image", "score", "global", "structural")
    top = Section(
        "Hits",
        (
            Notice("How the ranking came about", hits.note, "good"),
            Table(header, listed, "score = global + weight x structural similarity"),
        ),
    )
    sections = [top, *(_section(hit) for hit in hits[:pictures])]
    return write_page(Path(path), f"Images like {_short(hits.query.name)}", sections)


def contribution_rows(
    explanation: Explanation, matches: Sequence[Match] | None = None
) -> list[tuple[str, str, float | None, float | None, float]]:
    """List what the score is made of; the last column sums to the score.

    Where structure has no part in the score, it sums to the structural similarity instead, and
    the global similarity is left out.
    """
    matches = explanation.strongest() if matches is None else matches
    scale = explanation.weight or 1.0
    rows: list[tuple[str, str, float | None, float | None, float]] = [
        (_cell(m.query), _cell(m.hit), m.mass, m.similarity, scale * m.contribution)
        for m in matches
    ]
    listed = sum(m.contribution for m in matches)
    mass = float(explanation.mass.sum()) - sum(m.mass for m in matches)
    rows.append(("all other", "matches", mass, None, scale * (explanation.structural - listed)))
    if explanation.weight:
        rows.append(("global", "similarity", None, None, explanation.global_similarity))
    return rows


def _section(hit: Hit) -> Section:
    explanation = hit.explanation()
    rows = contribution_rows(explanation)
    total = sum(row[-1] for row in rows)
    name = "score" if explanation.weight else "structural similarity"
    facts = (
        ("score", f"{hit.score:.4f}"),
        ("global similarity", f"{explanation.global_similarity:.4f}"),
        ("structural similarity", f"{explanation.structural:.4f}"),
        ("weight of structure", f"{explanation.weight:.3g}"),
    )
    try:
        picture: Picture | Paragraph = Picture(
            draw_explanation(hit),
            alt=f"Patches of {hit.query.name} matched with patches of {hit.name}",
        )
    except ImageError as error:  # the numbers are in the index, the photo may be gone
        picture = Paragraph(f"No picture: {error}", faint=True)
    table = Table(
        HEADER,
        (*rows, ("sum", name, None, None, total)),
        "Patches as row, column from the top left.",
    )
    return Section(f"{hit.rank}. {hit.name}", (Facts(facts), picture, table))


def _panels(hit: Hit, explanation: Explanation) -> list[list[Panel]]:
    """Both photos, and below them both importance maps and room for the table."""
    query = _photo(hit.query.source, hit.query.name, hit)
    found = _photo(hit.path or None, hit.name, hit)
    weights = (
        _on_grid(explanation.query_weights, explanation),
        _on_grid(explanation.hit_weights, explanation),
    )
    limits = shared_limits(weights, low=0.0)
    names = f"query: {_short(hit.query.name)}", f"hit: {_short(hit.name)}"
    notes = [f"{_unmatched_share(mask)} without a counterpart" for mask in _masks(explanation)]
    used = explanation.weight > 0
    table_title = "what the score is made of" if used else "matches, not part of the score"
    return [
        [
            Panel(name, picture=photo, note=note)
            for name, photo, note in zip(names, (query, found), notes, strict=True)
        ],
        [
            Panel(title, photo, values, limits=limits, colours=SHARE, label="share of the weight")
            for title, photo, values in zip(
                ("what counts in the query", "what counts in the hit"),
                (query, found),
                weights,
                strict=True,
            )
        ]
        + [Panel(table_title, aspect=0.92)],
    ]


def _photo(source: str | Path | Image.Image | None, name: str, hit: Hit) -> Array:
    """Read the part of a photo that the model sees, (height, width, 3)."""
    if source is None:
        raise ImageError(f"'{name}' was indexed from memory, so there is no photo to draw.")
    try:
        image = read_image(source)
    except ImageError as error:
        raise ImageError(
            f"the photo of '{name}' cannot be drawn: {error}. If the folder has moved, refresh the"
            " index."
        ) from error
    if hit.index.backbone.preprocessing.fit == "crop":
        aspect = hit.index.recipe.size[0] / hit.index.recipe.size[1]
        across = min(image.width, image.height / aspect)
        left, upper = (image.width - across) / 2, (image.height - across * aspect) / 2
        box = (left, upper, left + across, upper + across * aspect)
        image = image.crop(tuple(round(side) for side in box))  # type: ignore[arg-type]
    image.thumbnail((LARGEST, LARGEST))
    # Enlarged, so that a tiny picture is not drawn as a map of cells.
    grown = max(1, -(-160 // max(image.size)))
    return np.asarray(image.resize((image.width * grown, image.height * grown)))


def _draw_lines(
    figure: Figure, left: Axes, right: Axes, matches: Sequence[Match], explanation: Explanation
) -> None:
    """Join the centres of matched patches; the stronger, the thicker."""
    strongest = max((m.contribution for m in matches), default=1.0)
    for place, match in enumerate(matches):
        colour = COLOURS[place % len(COLOURS)]
        width = 0.8 + 2.7 * match.contribution / strongest
        ends = _centre(match.query, explanation), _centre(match.hit, explanation)
        line = ConnectionPatch(
            ends[0], ends[1], "data", "data", axesA=left, axesB=right, color=colour, linewidth=width
        )
        line.set_path_effects(
            [Stroke(linewidth=width + 1.6, foreground="white"), Stroke(linewidth=width)]
        )
        figure.add_artist(line)
        for axes, (x, y) in zip((left, right), ends, strict=True):
            radius = 0.008 + 0.006 * match.contribution / strongest
            axes.add_patch(Circle((x, y), radius, facecolor=colour, edgecolor="white", zorder=5))


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
    name = "score" if explanation.weight else "structural"
    lines = [HEADER, *((q, h, _number(m), _number(s), f"{c:.4f}") for q, h, m, s, c in rows)]
    lines.append(("sum", f"= {name}", "", "", f"{total:.4f}"))
    step = 1 / max(14, len(lines))
    places = (0.0, 0.3, 0.62, 0.8, 1.0)
    for number, line in enumerate(lines):
        bold = number in (0, len(lines) - 1)
        weight = "bold" if bold else "normal"
        for column, (x, text) in enumerate(zip(places, line, strict=True)):
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
            colour = COLOURS[(number - 1) % len(COLOURS)]
            axes.plot([-0.045, -0.015], [1 - step * (number + 0.5)] * 2, color=colour, linewidth=3)
    axes.set_xlim(-0.05, 1)
    axes.set_ylim(0, 1)


def _title(hit: Hit, explanation: Explanation) -> str:
    if explanation.weight:
        parts = f"{explanation.global_similarity:.4f} global + {explanation.weight:.3g} x"
        return f"score {explanation.score:.4f} = {parts} {explanation.structural:.4f} structural"
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


def _unmatched_share(mask: Array) -> str:
    return f"{mask.mean():.0%} of the patches" if mask.any() else "no patch"


def _on_grid(weights: torch.Tensor, explanation: Explanation) -> Array:
    return weights.reshape(explanation.grid).numpy()


def _centre(cell: tuple[int, int], explanation: Explanation) -> tuple[float, float]:
    return (cell[1] + 0.5) / explanation.grid[1], (cell[0] + 0.5) / explanation.grid[0]


def _cell(cell: tuple[int, int]) -> str:
    return f"{cell[0] + 1}, {cell[1] + 1}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _short(name: str) -> str:
    last = PurePosixPath(name.replace("\\", "/")).name or name
    return last if len(last) <= 40 else f"{last[:18]}…{last[-20:]}"
