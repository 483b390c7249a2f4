"""Several pages of finished runs, combined into one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from clearvit.errors import StoreError
from clearvit.report.elements import Command, Paragraph
from clearvit.report.page import (
    COMBINED,
    GENERATOR,
    Page,
    encode,
    is_page,
    read_page,
    render_data,
    write_html,
)

LEADS_UP = object()  # in the place of a link that would leave the directory


def find_pages(sources: Sequence[Path]) -> list[Path]:
    """Find the pages of finished runs: the files given, and those in the directories given.

    Pages of a directory come in the order in which they were made. A combined page is left out
    where the pages that it combines are.

    Raises:
        StoreError: A path does not exist, or holds no page that clearvit made.
    """
    found: list[Path] = []
    for source in sources:
        if not os.path.exists(source):  # which is False for any name that cannot exist
            raise StoreError(f"'{source}' does not exist; give directories of finished runs.")
        files = sorted(source.rglob("*.html"), key=_age) if source.is_dir() else [source]
        pages = [page for page in files if is_page(page, GENERATOR)]
        pages = pages or [page for page in files if is_page(page, COMBINED)]
        if not pages:
            raise StoreError(
                f"'{source}' holds no page that clearvit wrote. Run a verb with --out {source}"
                " first, such as diagnose, cure, compare, discover, search or bench."
            )
        found += [page for page in pages if page not in found]
    return found


def combine_pages(
    pages: Sequence[Path],
    path: Path,
    title: str,
    *,
    subtitle: str = "",
    commands: Sequence[str] = (),
    titles: Sequence[str] = (),
) -> Path:
    """Write one page with others as its chapters, whole or not at all.

    Args:
        pages: Pages that clearvit wrote.
        path: The page to write.
        title: Its heading.
        subtitle: One line below it.
        commands: What made each of the pages, shown with it.
        titles: Headings of the chapters; without them, those of the pages.
    """
    images: dict[str, bytes] = {}
    chapters = []
    for page, command, heading in zip_longest(pages, commands, titles):
        chapter = read_page(page)
        images |= chapter.images
        head: list[Any] = [Paragraph(chapter.subtitle, faint=True)] if chapter.subtitle else []
        head += [Command(command)] if command else []
        sections = _point_from(chapter.sections, page, path)
        elements = [*encode(head, images), *sections]
        chapters.append(
            {"kind": "Section", "title": heading or chapter.title, "elements": elements}
        )
    return write_html(path, render_data(Page(title, subtitle, chapters, images), COMBINED))


def _point_from(value: Any, page: Path, path: Path) -> Any:
    """Give data of one page with its links as seen from another; what leads up is dropped."""
    if isinstance(value, list):
        moved = [_point_from(part, page, path) for part in value]
        return [part for part in moved if part is not LEADS_UP]  # None is an empty cell
    if not isinstance(value, dict):
        return value
    if value.get("kind") != "Link":
        return {key: _point_from(part, page, path) for key, part in value.items()}
    place = os.path.relpath(page.parent / str(value.get("page")), path.parent)
    return LEADS_UP if place.startswith("..") else {**value, "page": Path(place).as_posix()}


def _age(page: Path) -> tuple[int, Path]:
    return page.stat().st_mtime_ns, page
