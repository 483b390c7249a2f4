import os

import pytest

from clearvit.errors import StoreError
from clearvit.report.combine import combine_pages, find_pages
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
