"""What a page is made of; `clearvit.report.page` turns it into HTML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Tone = Literal["good", "warn", "bad"]
Cell = str | int | float | None


@dataclass(frozen=True)
class Paragraph:
    """A few sentences."""

    text: str
    faint: bool = False  # small print


@dataclass(frozen=True)
class Facts:
    """Key numbers, each with its name."""

    items: tuple[tuple[str, str], ...]  # (name, value)


@dataclass(frozen=True)
class Table:
    """Rows of cells; columns of numbers are aligned on the right, unknown numbers are a dash."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""


@dataclass(frozen=True)
class ImageElement:
    """An image with its alternative text."""

    content: Figure | bytes  # bytes of a PNG file
    alt: str
    caption: str = ""
    command: str = ""  # that makes it again


@dataclass(frozen=True)
class Slider:
    """Two images of one size, one over the other; a slider uncovers the second."""

    before: bytes  # of a PNG file
    after: bytes
    names: tuple[str, str]
    alt: str
    caption: str = ""
    command: str = ""  # that makes it again


@dataclass(frozen=True)
class Tabs:
    """Several contents of which one is shown at a time; in print all of them."""

    label: str
    items: tuple[tuple[str, tuple[Element, ...]], ...]  # (title, what it shows)


@dataclass(frozen=True)
class Thumbnail:
    """One image of a contact sheet, and what a click on it shows."""

    title: str
    note: str
    content: bytes | None  # of a PNG file; None: there is no image to show
    elements: tuple[Element, ...]


@dataclass(frozen=True)
class ContactSheet:
    """Many small images; a click opens what is known about one, below all of them."""

    label: str
    items: tuple[Thumbnail, ...]


@dataclass(frozen=True)
class Command:
    """Code to copy; one click selects all of it."""

    code: str
    caption: str = ""


@dataclass(frozen=True)
class Link:
    """A link to another page in the same directory or below it."""

    text: str
    page: str  # path relative to this page, with "/"


@dataclass(frozen=True)
class Notice:
    """A highlighted box with a title."""

    title: str
    text: str
    tone: Tone
    elements: tuple[Element, ...] = ()


@dataclass(frozen=True)
class Details:
    """Content that is folded until it is opened."""

    summary: str
    elements: tuple[Element, ...]


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it, other sections included."""

    title: str
    elements: tuple[Element, ...]


Element = (
    Paragraph
    | Facts
    | Table
    | ImageElement
    | Slider
    | Tabs
    | ContactSheet
    | Command
    | Link
    | Notice
    | Details
    | Section
)
