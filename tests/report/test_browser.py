"""The report in a real browser: Debian's chromium, without a window."""

import io
import os
import shutil

import pytest
from PIL import Image

from clearvit.report.combine import combine_pages
from clearvit.report.elements import (
    Command,
    ContactSheet,
    Details,
    Facts,
    ImageElement,
    Notice,
    Paragraph,
    Section,
    Slider,
    Table,
    Tabs,
    Thumbnail,
)
from clearvit.report.page import write_page

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def render_png(colour, size=(600, 200)):
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Two pages with one of everything, bound to one."""
    folder = tmp_path_factory.mktemp("report")
    elements = (
        Facts((("high-norm patches", "0.4 %"), ("blocks", "12"))),
        Notice("Artifacts found", "Some patches are long.", "bad", (Command("clearvit cure"),)),
        Table(("model", *(f"column {i}" for i in range(12))), (("demo", *range(12)),), "Numbers."),
        ImageElement(render_png("gray", (2000, 300)), alt="norms by block", caption="Norms."),
        Details("More", (Paragraph("folded"),)),
    )
    chosen = Tabs("photo", (("cat", (Paragraph("of cat"),)), ("dog", (Paragraph("of dog"),))))
    slider = Slider(
        render_png("red"), render_png("blue"), ("raw", "cured"), alt="colours", caption="Before."
    )
    pages = [
        write_page(folder / "a.html", "Diagnosis", [Section("Verdict", elements)]),
        write_page(folder / "b.html", "Comparison", [Section("Look", (chosen, slider))]),
    ]
    return combine_pages(pages, folder / "report.html", "Report")


@pytest.fixture(scope="module")
def browser():
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no chromium on this machine; on Debian: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        # a container's root has no sandbox; the pages are our own
        alone = ["--no-sandbox"] if os.getuid() == 0 else []
        window = playwright.chromium.launch(executable_path=path, args=alone)
        yield window
        window.close()


@pytest.fixture
def opened(browser, report):
    """Give a function that opens the report; whatever the console says fails the test."""
    said, contexts = [], []

    def opening(**options):
        contexts.append(browser.new_context(**options))
        contexts[-1].set_default_timeout(120_000)  # milliseconds; a busy machine is no failure
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda r: said.append(r.url) if r.url.startswith("http") else None)
        page.goto(report.as_uri())
        return page

    yield opening
    for context in contexts:
        context.close()
    assert not said


def test_every_picture_is_shown_and_described(opened):
    page = opened()
    images = page.locator("img").evaluate_all(
        "all => all.map(i => [i.complete && i.naturalWidth > 0, i.alt])"
    )
    assert len(images) == 3 and all(loaded and alt for loaded, alt in images)
    nameless = page.locator("input, [role=region], [role=group], nav").evaluate_all(
        "all => all.filter(e => !e.ariaLabel && !e.labels?.length"
        " && !document.getElementById(e.getAttribute('aria-labelledby'))).length"
    )
    assert nameless == 0


def test_the_slider_uncovers_by_mouse_and_by_keys(opened):
    page = opened()
    slider = page.locator(".slider input")

    def shown(x):
        """Colour of the stage at a share of its width."""
        box = page.locator(".slider .stage").bounding_box()
        picture = Image.open(io.BytesIO(page.locator(".slider .stage").screenshot()))
        return picture.convert("RGB").getpixel((int(box["width"] * x), int(box["height"] / 2)))

    assert shown(0.25) == (255, 0, 0) and shown(0.75) == (0, 0, 255)
    slider.fill("90")
    assert shown(0.75) == (255, 0, 0)
    slider.focus()
    page.keyboard.press("Home")
    assert shown(0.25) == (0, 0, 255)


def test_tabs_show_one_panel_by_mouse_and_by_keys(opened):
    page = opened()
    cat, dog = page.get_by_text("of cat"), page.get_by_text("of dog")
    assert cat.is_visible() and not dog.is_visible()
    page.get_by_label("dog").check()
    assert dog.is_visible() and not cat.is_visible()
    page.keyboard.press("ArrowLeft")
    assert cat.is_visible() and not dog.is_visible()


def test_paper_shows_every_panel_and_both_pictures(opened):
    page = opened()
    page.emulate_media(media="print")
    assert page.get_by_text("of cat").is_visible() and page.get_by_text("of dog").is_visible()
    cured, raw = page.locator(".slider img").evaluate_all(
        "all => all.map(i => i.getBoundingClientRect().toJSON())"
    )
    assert raw["right"] < cured["left"]  # side by side, as the names below them
    strip = page.locator(".slider .stage").screenshot()
    colours = Image.open(io.BytesIO(strip)).convert("RGB").getcolors(99999)
    assert {colour for _, colour in colours} >= {(255, 0, 0), (0, 0, 255)}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(opened, scheme):
    page = opened(color_scheme=scheme)
    found = page.evaluate(CONTRAST)
    assert min(found.values()) >= 4.5, found
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, dark.strip("rgba()").split(",")[:3])) < 200) == (scheme == "dark")


@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_never_scrolls_sideways(opened, width):
    page = opened(viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_contents_lead_to_the_chapters(opened):
    page = opened()
    page.locator("nav a").last.click()
    assert page.evaluate("document.querySelector(':target') !== null")


# WCAG contrast of every kind of text with the first background behind it that is not clear.
CONTRAST = """() => {
  const numbers = c => c.match(/[\\d.]+/g).map(Number);
  const light = c => { const [r, g, b] = c.map(v => { v /= 255;
    return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) {
    const c = numbers(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] === 1) return c.slice(0, 3); } return [255, 255, 255]; };
  const found = {};
  const kinds = "h1,h2,h3,p,td,th,a,code,caption,label,dt,dd,summary";
  for (const e of document.querySelectorAll(kinds)) {
    if (!e.checkVisibility() || !e.textContent.trim()) continue;
    const [a, b] = [numbers(getComputedStyle(e).color).slice(0, 3), behind(e)].map(light);
    const name = e.tagName + "." + e.className;
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    found[name] = Math.min(found[name] ?? 99, ratio); }
  return found; }"""


def test_a_click_on_a_phone_brings_the_opened_hit_into_view(browser, tmp_path):
    items = tuple(
        Thumbnail(f"hit {i}", "0.5", render_png("gray"), (Paragraph(f"why {i}"),))
        for i in range(12)
    )
    sheet = (ContactSheet("Click a hit.", items), *[Paragraph("more")] * 40)
    path = write_page(tmp_path / "hits.html", "Hits", [Section("Hits", sheet)])
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(path.as_uri())
    page.locator("label").nth(1).click()
    opened = page.get_by_text("why 1", exact=True)
    pytest.importorskip("playwright.sync_api").expect(opened).to_be_in_viewport()
    page.close()
