"""What a notebook shows of a result: a small card of HTML that needs no other file."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clearvit.report.elements import Cell, Tone
from clearvit.report.text_table import is_numeric, show_cell

COLORS: dict[Tone, str] = {"good": "#1a7f4b", "warn": "#b7791f", "bad": "#c2410c"}
MOST_IMAGES, MOST_ROWS = 8, 30  # that one card shows
THUMBNAIL = 112  # pixels of the longer side
_FOLDERS = re.compile(r"(?<![^ ])/\S.*/")  # of a path in a caption; the title of the image has them
NamedImage = tuple[bytes, str]  # a PNG file and its caption


def card(
    title: str,
    *,
    text: str = "",
    tone: Tone | None = None,
    images: Sequence[NamedImage] = (),
    table: tuple[Sequence[str], Sequence[Sequence[Cell]]] | None = None,
    code: str = "",
) -> str:
    """Make the HTML of one result; every text is escaped, so names may hold anything.

    Args:
        title: The result in a few words.
        text: A sentence or two below it; line breaks are kept.
        tone: Color of the left edge.
        images: PNG files with captions; the first eight are shown.
        table: Header and rows; the first thirty are shown.
        code: What to run next.
    """
    color = COLORS[tone] if tone else "#8a93a3"
    parts = [f'<div style="font-weight:600">{html.escape(title)}</div>']
    if text:
        parts.append(f'<div style="white-space:pre-line">{html.escape(text)}</div>')
    if images:
        shown = "".join(map(_figure, images[:MOST_IMAGES]))
        parts.append(f'<div style="display:flex;flex-wrap:wrap;gap:8px">{shown}</div>')
    if table is not None:
        parts.append(_table(*table))
    left = [f"{len(images) - MOST_IMAGES} more images"] if len(images) > MOST_IMAGES else []
    left += (
        [f"{len(table[1]) - MOST_ROWS} more rows"] if table and len(table[1]) > MOST_ROWS else []
    )
    if left:
        parts.append(f"<div>… and {' and '.join(left)}</div>")
    if code:
        parts.append(f"<div>next: <code>{html.escape(code)}</code></div>")
    edge = f"border-left:4px solid {color};padding:2px 0 2px 12px;margin:4px 0;max-width:64rem"
    return f'<div style="{edge};display:grid;gap:6px">{"".join(parts)}</div>'


def png_of(pixels: NDArray[np.float64] | Image.Image, side: int = THUMBNAIL) -> bytes:
    """Make a thumbnail: a photo is made smaller, a grid (H, W, 3) of 0..1 larger without blur."""
    if isinstance(pixels, Image.Image):
        image = pixels.convert("RGB")
        image.thumbnail((side, side))
    else:
        codes = (np.nan_to_num(pixels).clip(0, 1) * 255).round().astype(np.uint8)
        image = Image.fromarray(codes)
        factor = max(1, side // max(image.size))
        larger = (image.width * factor, image.height * factor)
        image = image.resize(larger, Image.Resampling.NEAREST)
    file = io.BytesIO()
    image.save(file, "png")
    return file.getvalue()


def heat(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Color a grid of numbers (H, W), low to high, as (H, W, 3) in 0..1."""
    from matplotlib import colormaps

    low, high = float(values.min()), float(values.max())
    scaled = (values - low) / (high - low) if high > low else np.zeros_like(values)
    colors: NDArray[np.float64] = np.asarray(colormaps["magma"](scaled))[..., :3]
    return colors


def _figure(named_image: NamedImage) -> str:
    content, caption = named_image
    source = base64.b64encode(content).decode("ascii")
    words = html.escape(caption, quote=True)
    short = html.escape(_FOLDERS.sub("", caption))
    return (
        f'<figure style="margin:0;max-width:{THUMBNAIL + 16}px">'
        f'<img src="data:image/png;base64,{source}" alt="{words}" title="{words}">'
        '<figcaption style="font-size:85%;overflow-wrap:anywhere">'
        f"{short}</figcaption></figure>"
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    sides = [
        "right" if is_numeric([row[i] for row in rows]) else "left" for i in range(len(header))
    ]

    def line(cells: Sequence[Cell], tag: str) -> str:
        return "".join(
            f'<{tag} style="text-align:{side};padding:2px 10px 2px 0">'
            f"{html.escape(show_cell(cell))}</{tag}>"
            for cell, side in zip(cells, sides, strict=True)
        )

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows[:MOST_ROWS])
    head = f"<thead><tr>{line(header, 'th')}</tr></thead>"
    return f'<table style="justify-self:start">{head}<tbody>{body}</tbody></table>'
