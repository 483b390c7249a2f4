"""Pages to combine, a check that a page is sound, and images to diagnose."""

import io
import re
from html.parser import HTMLParser

import numpy as np
from PIL import Image

from clearvit.report.elements import Paragraph, Section, Slider, Tabs
from clearvit.report.page import write_page

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Checker(HTMLParser):
    """Parse a page and note what an accessible, self-contained page must not have."""

    def __init__(self):
        super().__init__()
        self.open, self.wrong, self.ids, self.pointed = [], [], [], []
        self.tags, self.headings, self.text, self.scripts = [], [], [], 0
        self.links = []

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.scripts += tag == "script" and "type" not in found  # what is not data is run
        if tag == "img" and not found.get("alt"):
            self.wrong.append("img without alt")
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        self.ids += [found["id"]] if "id" in found else []
        self.pointed += [found["aria-labelledby"]] if "aria-labelledby" in found else []
        for name in ("src", "href", "action", "srcset", "poster"):
            value = found.get(name, "#")
            if value.startswith("#"):
                self.pointed += [value[1:]] if len(value) > 1 else []
            elif tag == "a" and re.fullmatch(r"\./(?!.*\.\.)[\w./-]+\.html", value):
                self.links.append(value)  # a page beside this one
            elif not value.startswith("data:image/png;base64,"):
                self.wrong.append(f"outside reference {value[:40]}")
        self.wrong += [f"handler {name}" for name in found if name.startswith("on")]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"unbalanced </{tag}>")

    def handle_data(self, data):
        if self.open and self.open[-1] != "script":
            self.text.append(data)


def check(page):
    """Assert that a page is sound; gives what was parsed."""
    parsed = Checker()
    parsed.feed(page)
    parsed.close()
    assert not parsed.wrong
    assert not parsed.open
    assert parsed.scripts == ('class="slider"' in page) and "link" not in parsed.tags
    assert len(set(parsed.ids)) == len(parsed.ids)
    assert set(parsed.pointed) <= set(parsed.ids)
    steps = zip(parsed.headings, parsed.headings[1:], strict=False)
    assert parsed.headings[0] == 1 and all(after - before <= 1 for before, after in steps)
    assert parsed.headings.count(1) == 1
    for landmark in ("header", "main", "title"):
        assert landmark in parsed.tags
    return parsed


def small_png():
    file = io.BytesIO()
    Image.new("RGB", (30, 20)).save(file, "PNG")
    return file.getvalue()


def page_of(folder, name, *, slider=False):
    """Write a small page and give its path."""
    tabs = Tabs("choose", (("one", (Paragraph("1"),)), ("two", (Section("in", ()),))))
    elements = (Paragraph(f"text of {name}"), tabs)
    if slider:
        elements += (Slider(small_png(), small_png(), ("a", "b"), alt="x"),)
    sections = [Section("Same title", elements), Section("Other", (Section("Deep", ()),))]
    return write_page(folder / f"{name}.html", f"<{name}> & co", sections, subtitle=f"of {name}")


def made_images(count):
    """Give smooth random PIL images, always the same."""
    random = np.random.default_rng(0)
    coarse = random.integers(0, 255, (count, 9, 9, 3), dtype=np.uint8)
    return [Image.fromarray(one).resize((96, 80), Image.Resampling.BICUBIC) for one in coarse]
