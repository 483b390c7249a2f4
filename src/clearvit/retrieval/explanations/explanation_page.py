"""A contact sheet of the hits of a query; each hit opens why it was found."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from clearvit.errors import ImageError
from clearvit.report.elements import (
    Cell,
    ContactSheet,
    Details,
    Element,
    Facts,
    ImageElement,
    Paragraph,
    Section,
    Table,
    Thumbnail,
)
from clearvit.report.page import write_page
from clearvit.retrieval.explanations.explanation import NOT_FOUND
from clearvit.retrieval.explanations.explanation_figure import (
    HEADER,
    contribution_rows,
    draw_explanation,
    short_name,
)
from clearvit.retrieval.explanations.seen_image import crop_seen, read_seen
from clearvit.retrieval.index.hits import Hit, Hits

THUMBNAIL = 200  # pixels of the longer side


def explain_page(hits: Hits, path: str | Path, *, figures: int = 10) -> Path:
    """Write one HTML page about a result list: a contact sheet whose hits open on click.

    Args:
        hits: What a search by image returned.
        path: The .html file.
        figures: For how many of the first hits to draw why; the others are listed with numbers.
    """
    sheet = ContactSheet(
        "Click a hit to see why it was found.",
        tuple(_thumbnail(hit, explained=number < figures) for number, hit in enumerate(hits)),
    )
    query: tuple[Element, ...] = ()
    try:
        query = (ImageElement(_png(read_seen(hits.query.source, hits.query.name)), "The query"),)
    except ImageError as error:
        query = (Paragraph(f"No image of the query: {error}", faint=True),)
    sections = [
        Section("Query", query),
        Section("Hits", (Paragraph(hits.note), sheet)),
    ]
    return write_page(Path(path), f"Images like {short_name(hits.query.name)}", sections)


def _thumbnail(hit: Hit, *, explained: bool) -> Thumbnail:
    try:
        content: bytes | None = _png(crop_seen(hit.read(), hit.query.aspect))
    except ImageError:  # the features are in the index, the file may be gone
        content = None
    shown = _explain(hit) if explained else (_facts(hit),)
    return Thumbnail(f"{hit.rank}. {short_name(hit.name)}", f"{hit.score:.4f}", content, shown)


def _explain(hit: Hit) -> tuple[Element, ...]:
    explanation = hit.explanation()
    figure: ImageElement | Paragraph
    try:
        alt = f"Parts that {hit.query.name} and {hit.name} share"
        figure = ImageElement(draw_explanation(hit, explanation), alt=alt)
    except ImageError as error:
        figure = Paragraph(f"No figure: {error}", faint=True)
    rows: list[tuple[Cell, ...]] = [*contribution_rows(explanation)]
    total = sum(row[-1] for row in contribution_rows(explanation))
    name = "score" if explanation.weight else "patch similarity"
    rows.append((f"sum = {name}", None, None, None, None, total))
    caption = "query and hit: fraction of the image that the part covers"
    table = Table(HEADER, tuple(rows), caption)
    if not explanation.found:
        return (Paragraph(NOT_FOUND), figure, _facts(hit))
    return (figure, _facts(hit), Details("The table of the figure", (table,)))


def _facts(hit: Hit) -> Facts:
    close = hit.patch_similarity
    return Facts(
        (
            ("score", f"{hit.score:.4f}"),
            ("global similarity", f"{hit.global_similarity:.4f}"),
            ("patch similarity", "not compared" if close is None else f"{close:.4f}"),
            ("weight of the patch similarity", f"{hit.weight:.3g}"),
        )
    )


def _png(image: Image.Image) -> bytes:
    image = image.convert("RGB")
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()
