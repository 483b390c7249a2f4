"""One HTML file made of sections: it needs no network, no script and no other file.

Everything that a user or a file name brings is escaped. The same input gives the same bytes.
"""

from __future__ import annotations

import base64
import io
import math
import re
import struct
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from clearvit.errors import StoreError
from clearvit.files import written_whole
from clearvit.report.css import CSS

Tone = Literal["good", "warn", "bad"]
Cell = str | int | float | None

SHARPNESS = 150  # pixels per inch of embedded figures
INCH = 78.0  # pixels of the page per inch of a figure; smaller than SHARPNESS, for fine screens
NUMERIC = re.compile(r"[-+\N{MINUS SIGN}<>≈]?\s?\d")
UNKNOWN = "\N{EN DASH}"
UNIT = re.compile(r"(\d) (%|\N{MULTIPLICATION SIGN}|px\b)")
SHORT = 30  # letters of a cell that stays on one line
NUMBER = ' class="number"'
PNG = b"\x89PNG\r\n\x1a\n"
MARKS: dict[Tone, str] = {"good": "✓", "warn": "!", "bad": "✗"}
# Even a forgotten link could load nothing.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Paragraph:
    """A few sentences."""

    text: str
    faint: bool = False  # small print


@dataclass(frozen=True)
class Facts:
    """Numbers that one should see first, each with its name."""

    items: tuple[tuple[str, str], ...]  # (name, value)


@dataclass(frozen=True)
class Table:
    """Rows of cells; columns of numbers are aligned on the right, unknown numbers are a dash."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""


@dataclass(frozen=True)
class Picture:
    """A picture with the words for those who cannot see it."""

    content: Figure | bytes  # bytes of a PNG file
    alt: str
    caption: str = ""
    command: str = ""  # what makes it again


@dataclass(frozen=True)
class Command:
    """Code to copy; one click selects all of it."""

    code: str
    caption: str = ""


@dataclass(frozen=True)
class Notice:
    """A box that says what matters."""

    title: str
    text: str
    tone: Tone
    elements: tuple[Element, ...] = ()


@dataclass(frozen=True)
class Details:
    """Folded until somebody asks."""

    summary: str
    elements: tuple[Element, ...]


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it, other sections included."""

    title: str
    elements: tuple[Element, ...]


Element = Paragraph | Facts | Table | Picture | Command | Notice | Details | Section


def write_page(path: Path, title: str, sections: Sequence[Section], *, subtitle: str = "") -> Path:
    """Write a page as one file, whole or not at all; missing directories are made.

    Args:
        path: The .html file.
        title: Heading of the page.
        sections: What it holds, in this order.
        subtitle: One line below the title.
    """
    text = render_page(title, sections, subtitle=subtitle)
    try:
        with written_whole(path) as temporary:
            temporary.write_text(text, "utf-8", errors="replace")
    except OSError as error:
        raise StoreError(
            f"'{path}' cannot be written ({error.strerror or error}); choose another place."
        ) from error
    return path


def render_page(title: str, sections: Sequence[Section], *, subtitle: str = "") -> str:
    """Give the HTML that `write_page` writes."""
    writer = _Writer()
    body = [writer.element(section, level=2) for section in sections]
    line = f'<p class="subtitle">{_text(subtitle)}</p>' if subtitle else ""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        '<head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{escape(title)}</title>",
        f"<style>{CSS}</style></head>",
        '<body><a class="skip" href="#content">Skip to the content</a>',
        f"<header><h1>{_text(title)}</h1>{line}</header>",
        writer.contents(),
        '<main id="content">',
        *body,
        "</main></body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


class _Writer:
    """Turn elements into HTML, with an id for everything that is pointed at."""

    def __init__(self) -> None:
        self.headings: list[tuple[str, str]] = []  # (id, title) of the main ones
        self.taken: Counter[str] = Counter()

    def element(self, element: Element, level: int) -> str:
        if isinstance(element, Section):
            return self._section(element, level)
        if isinstance(element, Details):
            inside = self._all(element.elements, level)
            return f"<details><summary>{_text(element.summary)}</summary>{inside}</details>"
        if isinstance(element, Notice):
            return self._notice(element, level)
        if isinstance(element, Table):
            return _table(element, self._id("table"))
        if isinstance(element, Picture):
            return _picture(element)
        if isinstance(element, Command):
            return _command(element)
        if isinstance(element, Facts):
            pairs = (f"<div><dt>{_text(n)}</dt><dd>{_text(v)}</dd></div>" for n, v in element.items)
            return f'<dl class="facts">{"".join(pairs)}</dl>'
        faint = ' class="faint"' if element.faint else ""
        return f"<p{faint}>{_text(element.text)}</p>"

    def contents(self) -> str:
        """List the main headings, as links."""
        if len(self.headings) < 2:
            return ""
        items = (f'<li><a href="#{name}">{_text(title)}</a></li>' for name, title in self.headings)
        return f'<nav aria-label="Contents"><ul>{"".join(items)}</ul></nav>'

    def _section(self, section: Section, level: int) -> str:
        name = self._id(re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-") or "section")
        if level == 2:
            self.headings.append((name, section.title))
        heading = f"h{min(level, 6)}"
        inside = self._all(section.elements, level + 1)
        return (
            f'<section aria-labelledby="{name}">'
            f'<{heading} id="{name}">{_text(section.title)}</{heading}>{inside}</section>'
        )

    def _notice(self, notice: Notice, level: int) -> str:
        name = self._id("notice")
        return (
            f'<div class="notice {notice.tone}" role="group" aria-labelledby="{name}">'
            f'<p class="title" id="{name}"><span class="mark" aria-hidden="true">'
            f"{MARKS[notice.tone]}</span>{_text(notice.title)}</p>"
            f"<p>{_text(notice.text)}</p>{self._all(notice.elements, level)}</div>"
        )

    def _all(self, elements: Sequence[Element], level: int) -> str:
        return "\n".join(self.element(element, level) for element in elements)

    def _id(self, name: str) -> str:
        """Number what would be called the same; "part-2" may itself be a title."""
        while True:
            self.taken[name] += 1
            number = self.taken[name]
            if number == 1:
                return name
            name = f"{name}-{number}"


def _text(text: str) -> str:
    """Escape text, and keep a number on one line with its unit."""
    return escape(UNIT.sub("\\1\N{NO-BREAK SPACE}\\2", text))


def _table(table: Table, name: str) -> str:
    caption = f'<caption id="{name}">{_text(table.caption)}</caption>' if table.caption else ""
    label = f'aria-labelledby="{name}"' if table.caption else 'aria-label="Table"'
    numeric = [_is_numeric([row[i] for row in table.rows]) for i in range(len(table.header))]
    head = "".join(
        f'<th scope="col"{NUMBER * n}>{_text(h)}</th>'
        for h, n in zip(table.header, numeric, strict=True)
    )
    body = "".join(f"<tr>{''.join(_cells(row, numeric))}</tr>" for row in table.rows)
    return (
        f'<div class="scroll" role="region" tabindex="0" {label}><table>{caption}'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cells(row: Sequence[Cell], numeric: Sequence[bool]) -> Iterator[str]:
    for place, (cell, is_number) in enumerate(zip(row, numeric, strict=True)):
        tag, scope = ("td", "") if place else ("th", ' scope="row"')
        text = _shown(cell)
        kinds = ["number"] * is_number + ["short"] * (len(text) <= SHORT)
        marked = f' class="{" ".join(kinds)}"' if kinds else ""
        yield f"<{tag}{scope}{marked}>{_text(text)}</{tag}>"


def _shown(cell: Cell) -> str:
    if isinstance(cell, float):
        cell = f"{cell:.4g}" if math.isfinite(cell) else None
    return UNKNOWN if cell is None else str(cell)


def _is_numeric(cells: Sequence[Cell]) -> bool:
    known = [_shown(cell) for cell in cells if cell is not None]
    return bool(known) and all(NUMERIC.match(text) or text in ("", UNKNOWN) for text in known)


def _command(command: Command) -> str:
    caption = f"<p>{_text(command.caption)}</p>" if command.caption else ""
    code = f'<pre tabindex="0"><code>{escape(command.code)}</code></pre>'
    return f'<div class="command">{caption}{code}</div>'


def _picture(picture: Picture) -> str:
    data = picture.content if isinstance(picture.content, bytes) else png(picture.content)
    width, height = _png_size(data)
    shown = round(width * INCH / SHARPNESS)
    words = [_text(picture.caption)] if picture.caption else []
    words += [f"<code>{escape(picture.command)}</code>"] if picture.command else []
    caption = f"<figcaption>{' '.join(words)}</figcaption>" if words else ""
    return (
        f'<figure><div class="card" style="--width: {shown}px" tabindex="0" role="group"'
        f' aria-label="Picture"><img alt="{_text(picture.alt)}" width="{width}" height="{height}"'
        f' src="data:image/png;base64,{base64.b64encode(data).decode()}"></div>{caption}</figure>'
    )


def png(figure: Figure) -> bytes:
    """Draw a figure as a PNG file."""
    FigureCanvasAgg(figure)
    file = io.BytesIO()
    with warnings.catch_warnings():
        # Names of models and files may use letters the font lacks; a box in their place will do.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(file, format="png", dpi=SHARPNESS, metadata={"Software": None})
    return file.getvalue()


def _png_size(data: bytes) -> tuple[int, int]:
    """Read (width, height) in pixels from the header."""
    if not data.startswith(PNG) or len(data) < 24:
        raise ValueError("a picture must be the bytes of a PNG file.")
    width, height = struct.unpack(">II", data[16:24])
    return width, height
