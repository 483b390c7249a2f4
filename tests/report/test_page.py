import base64
import hashlib
import io
import re
import threading

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from clearvit.errors import StoreError
from clearvit.report.chart import new_chart, outline_cells, series_colors, style_axes
from clearvit.report.elements import (
    Command,
    Details,
    Facts,
    ImageElement,
    Notice,
    Paragraph,
    Section,
    Slider,
    Table,
    Tabs,
)
from clearvit.report.page import TEMPLATES, content_policy, render_page, render_png, write_page
from tests.helpers.pages import check, small_png

EVIL = "<script>alert('x')</script> & \"q\""


def sections(text="some text"):
    table = Table(("name", "value", "share"), ((text, 1.23456, "3 %"), ("b", None, "4 %")), text)
    picture = ImageElement(small_png(), alt=text, caption=text, command=text)
    details = Details(text, (Paragraph(text), Command(text, text)))
    tabs = Tabs(text, ((text, (Paragraph(text),)), (text, (table,))))
    inner = Section(text, (details, table, tabs))
    notice = Notice(text, text, "warn", (Facts(((text, text),)),))
    return [Section(text, (notice, picture, inner)), Section(text, (Table(("a",), ()),))]


def test_a_page_is_sound_and_stands_alone(tmp_path):
    path = write_page(tmp_path / "sub" / "a.html", "Title", sections(), subtitle="below")
    page = path.read_text("utf-8")
    parsed = check(page)
    assert parsed.headings == [1, 2, 3, 2]
    assert '<html lang="en">' in page and "nav" in parsed.tags and "figcaption" in parsed.tags
    assert 'width="30" height="20"' in page
    style = (TEMPLATES / "page.css").read_text("utf-8")
    assert "@import" not in style and "url(" not in style and "http" not in style
    assert [p.name for p in path.parent.iterdir()] == ["a.html"]


def test_everything_is_escaped():
    parsed = check(render_page(EVIL, sections(EVIL), subtitle=EVIL))
    assert "".join(parsed.text).count("alert('x')") >= 12
    assert EVIL in "".join(parsed.text)


def test_same_input_same_bytes():
    def figure():
        drawn, (axes,) = new_chart(4, 3)
        axes.plot([1, 2])
        style_axes(axes, "a$b$c", x="x", y="y")
        return drawn

    pages = [
        render_page("t", [Section("s", (ImageElement(figure(), alt="line"),))]) for _ in range(2)
    ]
    assert pages[0] == pages[1]


def test_numbers_are_aligned_and_unknown_ones_are_a_dash():
    rows = (("a", 0.000123456, float("nan"), "-3 %"), ("b", None, None, "text"))
    page = render_page("t", [Section("s", (Table(("w", "x", "y", "z"), rows),))])
    assert '<td class="number short">0.0001235</td>' in page
    assert page.count('<td class="number short">\N{EN DASH}</td>') == 3
    assert '<th scope="col" class="number">x</th>' in page
    assert '<th scope="col">z</th>' in page
    assert '<th scope="row" class="short">a</th>' in page


def test_a_number_stays_with_its_unit_but_code_is_left_as_it_is():
    page = render_page("t", [Section("s", (Paragraph("5 % of 518 px"), Command("x 5 % y")))])
    assert "5\N{NO-BREAK SPACE}% of 518\N{NO-BREAK SPACE}px" in page and "x 5 % y" in page


def test_titles_that_look_like_numbered_ids_stay_unique():
    names = ("part", "part-2", "part", "part-2", "Ünïcödé", "", "…")
    check(render_page("t", [Section(name, ()) for name in names]))


def test_pages_that_cannot_be_written_are_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        write_page(tmp_path / "file" / "a.html", "t", [])


def test_only_png_files_are_pictures():
    with pytest.raises(ValueError, match="PNG"):
        render_page("t", [Section("s", (ImageElement(b"GIF89a", alt="no"),))])


def test_figures_are_drawn_in_threads_without_pyplot():
    import sys

    before = "matplotlib.pyplot" in sys.modules
    found = []
    thread = threading.Thread(target=lambda: found.append(render_png(Figure(figsize=(2, 1)))))
    thread.start()
    thread.join()
    assert found[0].startswith(b"\x89PNG")
    assert before or "matplotlib.pyplot" not in sys.modules


def test_outlines_surround_the_marked_cells():
    _, (axes,) = new_chart(3, 3)
    mask = np.zeros((4, 5), dtype=bool)
    mask[1, 2] = mask[1, 3] = mask[3, 4] = True
    outline_cells(axes, mask)
    (lines,) = axes.collections
    segments = lines.get_segments()
    assert len(segments) == 6 + 4  # two cells side by side have no line between them
    points = np.concatenate(segments)
    assert points[:, 0].min() == pytest.approx(2 / 5) and points[:, 0].max() == 1
    assert points[:, 1].min() == pytest.approx(1 / 4) and points[:, 1].max() == 1
    _, (empty,) = new_chart(3, 3)
    outline_cells(empty, np.zeros((4, 5), dtype=bool))


def test_many_lines_get_many_colours():
    for count in (1, 7, 20):
        assert len({str(colour) for colour in series_colors(count)}) == count


def test_a_slider_brings_the_one_script_that_the_page_allows():
    slider = Slider(small_png(), small_png(), ("raw", EVIL), alt=EVIL, caption="c", command="x")
    page = render_page("t", [Section("s", (slider, slider))])
    assert "alert" not in "".join(re.findall(r"<script>(.*?)</script>", page, re.DOTALL))
    check(page)
    script = page.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in content_policy()
    assert page.count('<input type="range"') == 2


def test_pictures_of_a_slider_have_one_size():
    other = io.BytesIO()
    Image.new("RGB", (31, 20)).save(other, "PNG")
    slider = Slider(small_png(), other.getvalue(), ("a", "b"), alt="x")
    with pytest.raises(ValueError, match="one size"):
        render_page("t", [Section("s", (slider,))])
