"""One HTML file made of sections: it needs no network and no other file.

Only sliders need a script, of three lines; the page allows that one and no other.

Everything that a user or a file name brings is escaped. The same input gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
import re
import struct
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from clearvit.errors import StoreError
from clearvit.files import written_whole
from clearvit.report.css import CSS
from clearvit.report.elements import (
    Cell,
    Command,
    Details,
    Element,
    Facts,
    Notice,
    Picture,
    Section,
    Slider,
    Table,
    Tabs,
    Tone,
)

SHARPNESS = 150  # pixels per inch of embedded figures
INCH = 78.0  # pixels of the page per inch of a figure; smaller than SHARPNESS, for fine screens
NUMERIC = re.compile(r"[-+\N{MINUS SIGN}<>≈]?\s?\d")
UNKNOWN = "\N{EN DASH}"
UNIT = re.compile(r"(\d) (%|\N{MULTIPLICATION SIGN}|px\b)")
SHORT = 30  # letters of a cell that stays on one line
NUMBER = ' class="number"'
PNG = b"\x89PNG\r\n\x1a\n"
MARKS: dict[Tone, str] = {"good": "✓", "warn": "!", "bad": "✗"}
GENERATOR = '<meta name="generator" content="clearvit">'
BINDER = '<meta name="generator" content="clearvit report">'  # of pages made of others
SCRIPT = """for (const range of document.querySelectorAll(".slider input")) {
  const cut = () => range.closest(".slider").style.setProperty("--cut", range.value + "%");
  range.addEventListener("input", cut); cut(); }"""
# Even a forgotten link could load nothing.
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-"
    + base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    + "'"
)


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
    return whole_page(title, body, contents=writer.contents(), subtitle=subtitle)


def whole_page(
    title: str,
    body: Sequence[str],
    *,
    contents: str = "",
    subtitle: str = "",
    generator: str = GENERATOR,
) -> str:
    """Put rendered parts between head and foot."""
    line = f'<p class="subtitle">{_text(subtitle)}</p>' if subtitle else ""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        '<head><meta charset="utf-8">',
        generator,
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{escape(title)}</title>",
        f"<style>{CSS}</style></head>",
        '<body><a class="skip" href="#content">Skip to the content</a>',
        f"<header><h1>{_text(title)}</h1>{line}</header>",
        contents,
        '<main id="content">',
        *body,
        "</main>",
        f"<script>{SCRIPT}</script>" if any('class="slider"' in part for part in body) else "",
        "</body></html>",
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
        if isinstance(element, Slider):
            return _slider(element)
        if isinstance(element, Tabs):
            return self._tabs(element, level)
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

    def _tabs(self, tabs: Tabs, level: int) -> str:
        """Radio buttons: they work without a script, and with the arrow keys."""
        name = self._id("tabs")
        heads = "".join(
            f'<input type="radio" name="{name}" id="{name}-{i}"{" checked" * (i == 0)}>'
            f'<label for="{name}-{i}">{_text(title)}</label>'
            for i, (title, _) in enumerate(tabs.items)
        )
        panels = "".join(
            f'<div><p class="title">{_text(title)}</p>{self._all(inside, level)}</div>'
            for title, inside in tabs.items
        )
        label = escape(tabs.label)
        return f'<fieldset class="tabs"><legend>{label}</legend>{heads}{panels}</fieldset>'

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
    shown = round(_png_size(data)[0] * INCH / SHARPNESS)
    return (
        f'<figure><div class="card" style="--width: {shown}px" tabindex="0" role="group"'
        f' aria-label="Picture">{_image(data, picture.alt)}</div>{_caption(picture)}</figure>'
    )


def _slider(slider: Slider) -> str:
    if _png_size(slider.before) != _png_size(slider.after):
        raise ValueError("the two pictures of a slider must have one size.")
    first, second = (_text(name) for name in slider.names)
    under, over = (
        _image(data, f"{slider.alt}: {name}")
        for data, name in ((slider.after, slider.names[1]), (slider.before, slider.names[0]))
    )
    return (
        f'<figure class="slider"><div class="stage">{under}<div class="over">{over}</div></div>'
        f'<label><span>{first}</span><input type="range" min="0" max="100" value="50"'
        f' aria-label="How much to see of {first}; the rest is {second}"><span>{second}</span>'
        f"</label>{_caption(slider)}</figure>"
    )


def _image(data: bytes, alt: str) -> str:
    width, height = _png_size(data)
    return (
        f'<img alt="{_text(alt)}" width="{width}" height="{height}"'
        f' src="data:image/png;base64,{base64.b64encode(data).decode()}">'
    )


def _caption(shown: Picture | Slider) -> str:
    words = [_text(shown.caption)] if shown.caption else []
    words += [f"<code>{escape(shown.command)}</code>"] if shown.command else []
    return f"<figcaption>{' '.join(words)}</figcaption>" if words else ""


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
