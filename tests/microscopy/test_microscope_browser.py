"""The page in a real browser: Debian's chromium, without a window."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import clearvit as cv
from tests.conftest import tiny_network
from tests.microscopy.conftest import ready

SIZE = 112  # pixels: a grid of 8 x 8


@pytest.fixture(scope="module")
def looked(demo_backbone, tmp_path_factory):
    """The demo model twice, once pruned, on three images of smooth colors."""
    folder = tmp_path_factory.mktemp("microscope")
    generator = np.random.default_rng(0)
    files = []
    for i in range(3):
        small = generator.integers(0, 255, (5, 6, 3), dtype=np.uint8)
        files.append(folder / f"{i}.png")
        Image.fromarray(small).resize((240, 200), Image.Resampling.BICUBIC).save(files[-1])
    models = [demo_backbone, cv.prune(demo_backbone, keep=0.7)]
    page = cv.microscope(models, files, out=folder / "page.html", size=SIZE, layers=(6, 8))
    return page.path, files


@pytest.fixture
def opened(tab, looked):
    """Give a function that opens the page."""

    def opening(address="", **options):
        page = tab(**options)
        page.goto(looked[0].as_uri() + address)
        ready(page)
        return page

    return opening


def drawn(page, number=1):
    canvas = page.locator(".stage canvas").nth(number)
    return canvas.evaluate("c => c.toDataURL()")


def point_at(page, x, y, number=0):
    box = page.locator(".stage canvas").nth(number).bounding_box()
    page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
    ready(page)


def test_pointing_at_a_patch_changes_every_map(opened):
    page = opened()
    before = [drawn(page, i) for i in (1, 2)]
    point_at(page, 0.1, 0.1)
    after = [drawn(page, i) for i in (1, 2)]
    assert all(a != b for a, b in zip(before, after, strict=True))
    assert "row 1, column 1" in page.locator(".readout").inner_text()


def test_cosines_of_the_page_are_those_of_the_model(opened, looked, demo_backbone):
    page, files = opened(), looked[1]
    facet = page.evaluate("window.clearvit.store.manifest.models[0].layers[2].facets.token")
    tokens = F.normalize(demo_backbone.tokens(files, size=SIZE).patches.double(), dim=-1)
    errors = []
    for image, other in ((0, 0), (0, 1), (1, 2), (2, 2)):
        for index in (0, 13, 35, 63):
            x, y = (index % 8 + 0.5) / 8, (index // 8 + 0.5) / 8
            code = f"window.clearvit.cosinesOf(0, 2, {image}, {{x: {x}, y: {y}}}, {other})"
            found = torch.tensor(page.evaluate(code)).double()
            errors.append((found - tokens[image, index] @ tokens[other].T).abs())
    errors = torch.cat(errors)  # 1,024 pairs
    assert len(errors) >= 1000
    assert errors.max() <= facet["error"]["largest"] + 1e-4
    assert errors.square().mean().sqrt() <= 1.5 * facet["error"]["rms"]


def test_blocks_facets_and_modes_change_the_map(opened):
    page = opened()
    seen = {drawn(page)}
    page.get_by_label("Block", exact=True).fill("0")
    ready(page)
    assert "block 6" in page.locator(".panel .block").nth(1).inner_text()
    seen.add(drawn(page))
    for name in ("key", "query", "value"):
        page.get_by_label(name, exact=True).check(force=True)
        ready(page)
        seen.add(drawn(page))
    for name in ("Attention", "Norms", "Components"):
        page.get_by_label(name, exact=True).check(force=True)
        ready(page)
        seen.add(drawn(page))
    assert len(seen) == 8


def test_attention_of_every_prefix_token_can_be_seen(opened):
    page = opened("#mode=attention")
    names = page.get_by_label("Attention from").locator("option").all_inner_texts()
    assert names[:2] == ["this patch", "class token"]
    seen = {drawn(page)}
    for number in range(1, len(names)):
        page.get_by_label("Attention from").select_option(str(number - 1))
        ready(page)
        assert "goes to prefix tokens" in page.locator(".panel .note").nth(1).inner_text()
        seen.add(drawn(page))
    assert len(seen) == len(names)


def test_the_scale_is_fixed_until_it_is_stretched_and_then_says_so(opened):
    page = opened()
    ticks = page.locator(".legend .ticks").inner_text()
    point_at(page, 0.9, 0.9)
    assert page.locator(".legend .ticks").inner_text() == ticks
    page.get_by_label("stretch").check(force=True)
    ready(page)
    assert "stretched" in page.locator(".legend .unit").inner_text()


def test_strokes_give_a_mask_and_a_file(opened, tmp_path):
    page = opened("#mode=mask")
    box = page.locator(".stage canvas").first.bounding_box()
    for name, at in (("background", 0.1), ("object", 0.7)):
        page.get_by_label(f"Draw {name}").check()
        page.mouse.move(box["x"] + at * box["width"], box["y"] + 0.5 * box["height"])
        page.mouse.down()
        page.mouse.move(box["x"] + (at + 0.2) * box["width"], box["y"] + 0.5 * box["height"])
        page.mouse.up()
    ready(page)
    assert "of 2 classes" in page.locator(".panel .note").nth(1).inner_text()
    with page.expect_download() as download:
        page.get_by_text("Save strokes").click()
    download.value.save_as(tmp_path / "strokes.json")
    content = json.loads((tmp_path / "strokes.json").read_text())
    assert content["format"] == "clearvit-strokes" and content["version"] == 1
    assert content["classes"] == ["background", "object"]
    (entry,) = content["images"]
    assert (entry["image"], entry["width"], entry["height"]) == ("0.png", 240, 200)
    assert [stroke["class"] for stroke in entry["strokes"]] == ["background", "object"]
    first = entry["strokes"][0]["points"][0]
    assert abs(first[0] - 24) < 3 and abs(first[1] - 100) < 3
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (200, 240, 3), np.uint8))
    (tmp_path / "photos").mkdir()
    image.save(tmp_path / "photos" / "0.png")
    masks = cv.segment(
        cv.load(tiny_network()),
        tmp_path / "photos",
        examples=tmp_path / "strokes.json",
        out=tmp_path / "masks",
        method="prototypes",
    )
    assert masks.classes == {0: "background", 1: "object"}
    assert masks[0].array.shape == (200, 240)


def test_a_region_becomes_a_command(opened):
    page = opened("#mode=region")
    box = page.locator(".stage canvas").first.bounding_box()
    before = drawn(page)
    page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 0.5 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 0.8 * box["height"])
    page.mouse.up()
    ready(page)
    assert drawn(page) != before
    words = page.locator(".command").inner_text().split()
    assert words[:5] == ["clearvit", "search", "index/", "0.png", "--region"]
    region = [int(number) for number in words[5].split(",")]
    assert np.abs(np.subtract(region, (60, 100, 180, 160))).max() <= 2
    page.wait_for_function("() => location.hash.includes('region=')")
    assert page.get_by_text("Search this region").is_hidden()  # which needs a server


def test_a_region_can_be_set_with_keys(opened):
    page = opened("#mode=region&x=0.3&y=0.3")
    page.locator(".stage canvas").first.focus()
    for key in ("Enter", "ArrowRight", "ArrowRight", "ArrowDown", "Enter", "ArrowDown"):
        page.keyboard.press(key)
    page.wait_for_function("() => document.querySelector('.command').textContent.includes(',')")
    left, top, right, bottom = map(
        int, page.locator(".command").inner_text().split()[-1].split(",")
    )
    assert abs(right - left - 2 * 240 / 8) <= 12 and abs(bottom - top - 200 / 8) <= 12


def test_everything_can_be_done_with_keys(opened):
    page = opened()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # skip to the image
    before = drawn(page)
    page.keyboard.press("ArrowRight")
    ready(page)
    assert drawn(page) != before
    page.keyboard.press("Enter")
    page.keyboard.press("3")
    page.keyboard.press("[")
    page.wait_for_function("() => location.hash.includes('mode=norms')")
    assert "pinned=1" in page.url and "slot=1" in page.url
    page.wait_for_function(
        "() => document.querySelector('[aria-live]').textContent.includes('row')"
    )


def test_a_link_shows_the_same(opened):
    address = "#image=1&second=2&mode=similarity&slot=0&x=0.2&y=0.8&pinned=1"
    page = opened(address)
    assert page.locator(".stage.second canvas").first.is_visible()
    assert "1.png" in page.locator(".panel .name").first.inner_text()


def test_the_most_similar_patches_lead_to_a_second_image(opened):
    page = opened()
    page.locator(".matches button").first.click()
    page.wait_for_function("() => !document.querySelector('.stage.second').hidden")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_never_scrolls_sideways(opened, scheme):
    page = opened(viewport={"width": 400, "height": 800}, color_scheme=scheme)
    for mode in range(1, 7):
        page.locator(".stage canvas").first.focus()
        page.keyboard.press(str(mode))
        ready(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_paper_shows_the_maps_without_the_controls(opened):
    page = opened()
    page.emulate_media(media="print")
    assert page.locator(".stage canvas").nth(1).is_visible()
    assert not page.locator(".toolbar").is_visible()
    nameless = page.locator("input, select, canvas[role], nav").evaluate_all(
        "all => all.filter(e => !e.ariaLabel && !e.labels?.length).length"
    )
    assert nameless == 0


def test_the_image_can_be_saved(opened, tmp_path):
    page = opened()
    with page.expect_download() as download:
        page.get_by_text("Save image").click()
    download.value.save_as(tmp_path / "seen.png")
    with Image.open(tmp_path / "seen.png") as image:
        assert image.width > 1000
