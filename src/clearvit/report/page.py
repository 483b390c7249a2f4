"""One HTML file made of sections: it needs no network and no other file.

Elements become plain data, and the templates render data. The data stands in the page too, except
for the images, which are there already: so pages are combined from data, never from their HTML.
Only sliders and contact sheets use a script, of a few lines; the page allows that one and no other.
Everything that a user or a file name brings is escaped. The same input gives the same bytes.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import io
import json
import math
import re
import struct
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from clearvit.errors import StoreError
from clearvit.files import replace_file
from clearvit.report.elements import Section, Slider, Tone
from clearvit.report.text_table import is_numeric, show_cell

Data = dict[str, Any]

DPI = 150  # of embedded figures
INCH = 78.0  # pixels of the page per inch of a figure; smaller than DPI, for fine screens
UNIT = re.compile(r"(\d) (%|\N{MULTIPLICATION SIGN}|px\b)")
SHORT = 30  # characters of a cell that stays on one line
PNG = b"\x89PNG\r\n\x1a\n"
MARKS: dict[Tone, str] = {"good": "✓", "warn": "!", "bad": "✗"}
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError)
GENERATOR, COMBINED = "clearvit", "clearvit report"  # of a page, and of a page made of others
DATA_ID = "clearvit-page"
SOURCE = "data:image/png;base64,"
TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Page:
    """A page as data: what the template renders and what `read_page` gives back."""

    title: str
    subtitle: str
    sections: list[Data]  # elements as dicts, with the name of their class under "kind"
    images: dict[str, bytes]  # PNG files by their hash, which stands in the sections


def write_page(path: Path, title: str, sections: Sequence[Section], *, subtitle: str = "") -> Path:
    """Write a page as one file, whole or not at all; missing directories are made.

    Args:
        path: The .html file.
        title: Heading of the page.
        sections: What it holds, in this order.
        subtitle: One line below the title.
    """
    return write_html(path, render_page(title, sections, subtitle=subtitle))


def write_html(path: Path, text: str) -> Path:
    """Write a rendered page, whole or not at all."""
    with replace_file(path) as temporary:
        temporary.write_text(text, "utf-8", errors="replace")
    return path


def render_page(title: str, sections: Sequence[Section], *, subtitle: str = "") -> str:
    """Give the page as HTML."""
    images: dict[str, bytes] = {}
    page = Page(title, subtitle, [encode(section, images) for section in sections], images)
    return render_data(page, GENERATOR)


def render_data(page: Page, generator: str) -> str:
    """Give a page as HTML, from its data."""
    data = {"title": page.title, "subtitle": page.subtitle, "sections": page.sections}
    template = _environment().get_template("page.html")
    state = _State(page.images)
    try:
        text = template.render(page=page, data=data, state=state, generator=generator)
    except (jinja2.TemplateError, *MALFORMED) as error:
        raise StoreError(f"a page holds data that clearvit did not write: {error}.") from error
    return f"{text.strip()}\n"


def encode(value: Any, images: dict[str, bytes]) -> Any:
    """Turn an element into plain data; its images are added to `images` and named by their hash."""
    if isinstance(value, Figure):
        value = render_png(value)
    if isinstance(value, bytes):
        width, height = _png_size(value)
        name = hashlib.sha256(value).hexdigest()[:16]
        images[name] = value
        shown = round(width * INCH / DPI)
        return {"image": name, "width": width, "height": height, "shown": shown}
    if isinstance(value, Slider) and _png_size(value.before) != _png_size(value.after):
        raise ValueError("the two images of a slider must have one size.")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: encode(getattr(value, f.name), images) for f in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, (list, tuple)):
        return [encode(part, images) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_page(path: Path) -> Page:
    """Read the data of a page that clearvit wrote.

    Raises:
        StoreError: The page is incomplete.
    """
    reader = _Reader()
    try:
        reader.feed(path.read_text("utf-8"))
        data = json.loads("".join(reader.data))
        return Page(data["title"], data["subtitle"], data["sections"], reader.images)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"'{path}' is incomplete; make it again.") from error


def is_page(path: Path, generator: str) -> bool:
    """Tell whether a file is a page of clearvit, by the head of the file."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return f'<meta name="generator" content="{generator}">' in file.read(1000)
    except OSError:
        return False


def render_png(figure: Figure) -> bytes:
    """Draw a figure as a PNG file."""
    FigureCanvasAgg(figure)
    file = io.BytesIO()
    with warnings.catch_warnings():
        # Names of models and files may use letters the font lacks; a box in their place will do.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
    return file.getvalue()


def content_policy() -> str:
    """Give the content security policy: even a forgotten link could load nothing."""
    digest = base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode()
    return (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline';"
        f" script-src 'sha256-{digest}'; form-action 'none'; base-uri 'none'"
    )


@dataclass
class _State:
    """What the templates note while they render one page."""

    images: dict[str, bytes]
    contents: list[tuple[str, str]] = field(default_factory=list)  # (id, title) of main headings
    taken: Counter[str] = field(default_factory=Counter)
    has_script: bool = False

    def id(self, title: str) -> str:
        """Make a unique id of a title; "part-2" may itself be a title."""
        name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"
        while True:
            self.taken[name] += 1
            if self.taken[name] == 1:
                return name
            name = f"{name}-{self.taken[name]}"

    def address(self, page: str) -> str:
        """Give the address of a page beside this one; data of a page may come from anybody."""
        path = PurePosixPath(page)
        if path.is_absolute() or ".." in path.parts or path.suffix != ".html" or "\\" in page:
            raise ValueError(f"'{page}' is no page beside this one")
        return f"./{quote(page)}"  # so that nothing before a ":" is a scheme

    def use_script(self) -> None:
        """Note that the page uses the script: for sliders, and to follow a click on a sheet."""
        self.has_script = True

    def source(self, name: str) -> str:
        """Give an image as the address that holds it."""
        return SOURCE + base64.b64encode(self.images[name]).decode()


class _Reader(HTMLParser):
    """Take data and images out of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.images: dict[str, bytes] = {}
        self.data: list[str] = []
        self.inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.inside = tag == "script" and found.get("id") == DATA_ID
        name, source = found.get("data-image"), found.get("src")
        if name and source:
            self.images[name] = base64.b64decode(source.removeprefix(SOURCE))

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.data.append(data)


@functools.cache
def _script() -> str:
    return (TEMPLATES / "page.js").read_text("utf-8").strip()


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=jinja2.select_autoescape(("html",)),
        extensions=["jinja2.ext.do"],
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "text": _keep_units,
        "show_cell": show_cell,
        "cell_class": _cell_class,
        "numeric_columns": _numeric_columns,
    }
    environment.globals |= {
        "marks": MARKS,
        "policy": content_policy(),
        "script": _script(),
        "data_id": DATA_ID,
    }
    return environment


def _keep_units(text: str) -> str:
    """Keep a number on one line with its unit."""
    return UNIT.sub("\\1\N{NO-BREAK SPACE}\\2", text)


def _numeric_columns(table: Data) -> list[bool]:
    return [is_numeric([row[i] for row in table["rows"]]) for i in range(len(table["header"]))]


def _cell_class(cell: Any, numeric: bool) -> Markup:
    kinds = ["number"] * numeric + ["short"] * (len(show_cell(cell)) <= SHORT)
    return Markup(f' class="{" ".join(kinds)}"' if kinds else "")


def _png_size(data: bytes) -> tuple[int, int]:
    """Read (width, height) in pixels from the header."""
    if not data.startswith(PNG) or len(data) < 24:
        raise ValueError("an image must be the bytes of a PNG file.")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def replace_nonfinite(value: Any) -> Any:
    """Replace numbers that JSON does not know, NaN and infinities, by None."""
    if isinstance(value, dict):
        return {key: replace_nonfinite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_nonfinite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
