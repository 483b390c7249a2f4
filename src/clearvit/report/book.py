"""Several pages of finished runs, bound into one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path

from clearvit.errors import StoreError
from clearvit.files import written_whole
from clearvit.report.page import BINDER, GENERATOR, whole_page

_TITLE = re.compile(r"<header><h1>(.*?)</h1>", re.DOTALL)
_SUBTITLE = re.compile(r'<p class="subtitle">(.*?)</p>', re.DOTALL)
_MAIN = re.compile(r'<main id="content">(.*)</main>', re.DOTALL)
_HEADING = re.compile(r"(</?h)([2-5])\b")
_NAMED = re.compile(r'\b(id|for|name|aria-labelledby)="([^"]+)"')


@dataclass(frozen=True)
class Chapter:
    """One page, ready to stand among others."""

    title: str
    subtitle: str
    body: str  # HTML


def find_pages(places: Sequence[Path]) -> list[Path]:
    """Find the pages of finished runs: the files given, and those in the directories given.

    Pages of a directory come in the order in which they were made. One that was itself bound of
    others is passed over where those others are.

    Raises:
        StoreError: There is nothing at a place, or no page that clearvit made.
    """
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            made = sorted(place.rglob("*.html"), key=lambda page: (page.stat().st_mtime_ns, page))
            pages = [page for page in made if _says(page, GENERATOR)]
            pages = pages or [page for page in made if _says(page, BINDER)]
        elif place.exists():
            pages = [place] if _says(place, GENERATOR) or _says(place, BINDER) else []
        else:
            raise StoreError(f"'{place}' is not there; give directories of finished runs.")
        if not pages:
            raise StoreError(
                f"'{place}' holds no page that clearvit wrote. Run a verb with --out {place} first,"
                " as diagnose, cure, compare, discover, search --html or bench."
            )
        found += [page for page in pages if page not in found]
    return found


def bind(
    pages: Sequence[Path],
    path: Path,
    title: str,
    *,
    subtitle: str = "",
    commands: Sequence[str] = (),
) -> Path:
    """Write one page that holds others as its chapters, whole or not at all.

    Args:
        pages: Pages that clearvit wrote.
        path: The page to write.
        title: Its heading.
        subtitle: One line below it.
        commands: What made each of the pages, shown with it.
    """
    shells = [f"<pre><code>{escape(command)}</code></pre>" for command in commands]
    shells += [""] * (len(pages) - len(shells))
    chapters = [read_chapter(page, number) for number, page in enumerate(pages, 1)]
    contents = "".join(
        f'<li><a href="#chapter-{i}">{escape(c.title)}</a></li>' for i, c in enumerate(chapters, 1)
    )
    body = [
        f'<section aria-labelledby="chapter-{i}"><h2 id="chapter-{i}">{escape(c.title)}</h2>'
        f'<p class="subtitle">{c.subtitle}</p>{shell}{c.body}</section>'
        for i, (c, shell) in enumerate(zip(chapters, shells, strict=True), 1)
    ]
    navigation = f'<nav aria-label="Contents"><ul>{contents}</ul></nav>'
    text = whole_page(title, body, contents=navigation, subtitle=subtitle, generator=BINDER)
    try:
        with written_whole(path) as temporary:
            temporary.write_text(text, "utf-8")
    except OSError as error:
        raise StoreError(
            f"'{path}' cannot be written ({error.strerror or error}); choose another place."
        ) from error
    return path


def read_chapter(page: Path, number: int) -> Chapter:
    """Take what stands between head and foot; names get a prefix, headings go one level down."""
    text = page.read_text("utf-8")
    title, subtitle, main = _TITLE.search(text), _SUBTITLE.search(text), _MAIN.search(text)
    if title is None or main is None:
        raise StoreError(f"'{page}' is cut off; make it again.")
    prefix = f"c{number}-"
    body = _NAMED.sub(lambda m: f'{m[1]}="{prefix}{m[2]}"', main[1])
    body = body.replace('href="#', f'href="#{prefix}')
    body = _HEADING.sub(lambda m: f"{m[1]}{int(m[2]) + 1}", body)
    return Chapter(unescape(title[1]), subtitle[1] if subtitle else "", body.strip())


def _says(page: Path, generator: str) -> bool:
    try:
        with page.open(encoding="utf-8", errors="replace") as file:
            return generator in file.read(1000)
    except OSError:
        return False
