import html
import os
import re
from html.parser import HTMLParser

import pytest

from clearvit.errors import StoreError
from clearvit.report.combine import combine_pages, find_pages
from clearvit.report.elements import Link, Paragraph, Section
from clearvit.report.page import write_page
from tests.helpers.pages import check, page_of


def test_chapters_keep_their_text_and_get_names_of_their_own(tmp_path):
    pages = [page_of(tmp_path / "a", "first"), page_of(tmp_path / "b", "second", slider=True)]
    text = combine_pages(pages, tmp_path / "out" / "report.html", "All", subtitle="both").read_text(
        "utf-8"
    )
    parsed = check(text)
    assert parsed.headings == [1, 2, 3, 4, 3, 4, 2, 3, 4, 3, 4]
    words = "".join(parsed.text)
    assert "text of first" in words and "text of second" in words and "<second> & co" in words
    assert text.count("<script>") == 1


def test_chapters_may_have_other_titles(tmp_path):
    pages = [page_of(tmp_path / "a", "first"), page_of(tmp_path / "b", "second")]
    text = combine_pages(pages, tmp_path / "report.html", "All", titles=["", "Why?"]).read_text()
    chapters = re.findall(r"<h2[^>]*>(.*?)</h2>", text)
    assert chapters[1] == "Why?" and "first" in chapters[0]


def test_pages_are_found_in_directories_and_only_ours(tmp_path):
    ours = page_of(tmp_path / "run" / "deep", "first")
    (tmp_path / "run" / "other.html").write_text("<html><body>not ours</body></html>")
    assert find_pages([tmp_path / "run", ours]) == [ours]
    with pytest.raises(StoreError, match="holds no page"):
        find_pages([tmp_path / "run" / "other.html"])
    with pytest.raises(StoreError, match="does not exist"):
        find_pages([tmp_path / "nowhere"])


def test_pages_come_as_they_were_made_and_none_twice(tmp_path):
    pages = [page_of(tmp_path / "run" / name, name) for name in ("third", "second", "first")]
    for age, page in enumerate(pages):
        os.utime(page, (1000 + age, 1000 + age))
    bound = combine_pages(pages, tmp_path / "run" / "report.html", "All")
    assert find_pages([tmp_path / "run"]) == pages
    for page in pages:
        page.unlink()
    assert find_pages([tmp_path / "run"]) == find_pages([bound]) == [bound]


def test_a_page_cut_off_is_named(tmp_path):
    page = page_of(tmp_path, "first")
    page.write_text(page.read_text("utf-8")[:-200])
    with pytest.raises(StoreError, match=r"first\.html' is incomplete"):
        combine_pages([page], tmp_path / "report.html", "All")
    assert not (tmp_path / "report.html").exists()


EVIL = '<meta http-equiv="refresh" content="0; url=http://evil"><form action="http://evil">'


def test_pages_of_strangers_are_built_from_their_data(tmp_path):
    page = write_page(tmp_path / "a.html", EVIL, [Section(EVIL, (Paragraph(EVIL),))])
    text = page.read_text("utf-8")
    page.write_text(text.replace("</body>", f"{EVIL}<script>alert(1)</script></body>"), "utf-8")
    found = combine_pages([page], tmp_path / "report.html", "All").read_text("utf-8")
    tags = Tags()
    tags.feed(found)
    assert not {"form", "iframe", "object"} & set(tags.seen)
    assert 'http-equiv="refresh"' not in found and "alert(1)" not in found
    assert "form-action 'none'" in html.unescape(found)


class Tags(HTMLParser):
    """All tags of a page."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)


@pytest.mark.parametrize(
    "old, new",
    [
        ('"kind": "Section"', '"kind": "Table"'),
        ('"sections"', '"parts"'),
        ('"elements"', '"children"'),
        ('"subtitle": ""', '"subtitle": "",,'),
    ],
)
def test_a_page_with_other_data_is_one_sentence(tmp_path, old, new):
    page = write_page(tmp_path / "a.html", "A", [Section("B", (Paragraph("C"),))])
    text = page.read_text("utf-8")
    assert old in text
    page.write_text(text.replace(old, new), "utf-8")
    with pytest.raises(StoreError):
        combine_pages([page], tmp_path / "report.html", "All")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("page", ["javascript:alert(1)", "../up.html", "/etc/x.html", "a.txt"])
def test_a_link_leads_to_pages_beside_it_only(tmp_path, page):
    with pytest.raises(StoreError, match="no page beside this one"):
        write_page(tmp_path / "a.html", "A", [Section("one", (Link("look", page),))])
    assert not (tmp_path / "a.html").exists()


def test_a_link_that_leads_up_from_a_combined_page_is_dropped(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "all").mkdir()
    page = tmp_path / "run" / "a.html"
    write_page(page, "A", [Section("one", (Link("look", "b c.html"), Paragraph("text")))])
    assert "./b%20c.html" in page.read_text("utf-8")
    beside = combine_pages([page], tmp_path / "all.html", "All").read_text("utf-8")
    assert "./run/b%20c.html" in beside
    apart = combine_pages([page], tmp_path / "all" / "all.html", "All").read_text("utf-8")
    assert "b%20c.html" not in apart and "text" in apart
