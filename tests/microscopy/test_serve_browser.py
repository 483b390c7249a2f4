"""The served page in a real browser: drop, choose, look, search, errors."""

import numpy as np
import pytest
from PIL import Image

import clearvit as cv
from tests.helpers.served import running
from tests.microscopy.conftest import ready

pytest.importorskip("fastapi", reason="needs pip install 'clearvit[serve]'")
APP = "clearvitServed.app"


@pytest.fixture(scope="module")
def served(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "photos"
    (folder / "more").mkdir(parents=True)
    for number in range(4):
        small = np.random.default_rng(number).integers(0, 255, (4, 5, 3), dtype=np.uint8)
        place = folder / "more" if number == 3 else folder
        Image.fromarray(small).resize((120, 90)).save(place / f"{number}.png")
    index = folder.parent / "index"
    cv.Index.build(tiny, folder, out=index)
    models = [tiny, cv.prune(tiny, keep=0.5, stages=(1,))]
    with running(models, [folder], index, megabytes=1) as client:
        yield client, folder


@pytest.fixture
def page(tab, served):
    address = f"http://127.0.0.1:{served[0].port}/"
    page = tab(allowed=address)
    page.goto(address)
    page.locator(".thumbnails button").first.wait_for()
    return page


def test_images_of_a_folder_are_looked_at(page):
    page.get_by_label("0.png", exact=True).click()
    page.get_by_label("1.png", exact=True).click()
    page.get_by_role("button", name="Look", exact=True).click()
    page.wait_for_selector(".stage canvas")
    ready(page, APP)
    assert page.locator(".stage:not(.second) canvas").count() == 3  # the image and two models
    assert page.get_by_role("link", name="Save this page").is_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="Save this page").click()
    assert download.value.suggested_filename == "microscope.html"


def test_a_file_is_uploaded_and_looked_at_with_views(page, served, tmp_path):
    small = np.random.default_rng(9).integers(0, 255, (4, 5, 3), dtype=np.uint8)
    Image.fromarray(small).resize((64, 64)).save(tmp_path / "mine.png")
    page.locator(".drop input").set_input_files(tmp_path / "mine.png")
    page.locator(".tray img").wait_for()
    page.get_by_label("Views").select_option("4")
    page.get_by_label("Scale", exact=True).select_option("2")
    page.get_by_role("button", name="Look", exact=True).click()
    page.wait_for_selector(".stage canvas")
    ready(page, APP)
    names = page.locator(".panel .name").all_inner_texts()
    assert names[0] == "mine.png" and any("scale 2" in name for name in names)


def test_errors_stand_in_the_page(page, tmp_path):
    (tmp_path / "words.png").write_bytes(b"no image")
    (tmp_path / "large.png").write_bytes(bytes(1_100_000))
    page.locator(".drop input").set_input_files(tmp_path / "large.png")
    page.get_by_role("alert").filter(has_text="larger than 1 MB").wait_for()


def test_folders_open_and_close(page):
    page.get_by_text("more/").click()
    page.get_by_label("3.png", exact=True).wait_for()
    page.get_by_role("button", name="photos", exact=True).click()
    page.get_by_label("0.png", exact=True).wait_for()


def test_the_index_is_searched(page):
    page.get_by_label("0.png", exact=True).click()
    page.get_by_role("button", name="Search the index").click()
    hits = page.get_by_label("Found")
    hits.get_by_role("button").first.wait_for()
    assert "0.png" in hits.get_by_role("button").first.get_attribute("title")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_never_scrolls_sideways(tab, served, scheme):
    address = f"http://127.0.0.1:{served[0].port}/"
    page = tab(allowed=address, viewport={"width": 400, "height": 800}, color_scheme=scheme)
    page.goto(address)
    page.get_by_label("0.png", exact=True).click()
    page.get_by_role("button", name="Look", exact=True).click()
    page.wait_for_selector(".stage canvas")
    ready(page, APP)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    nameless = page.locator("input, select, canvas[role], nav, button").evaluate_all(
        "all => all.filter(e => !e.ariaLabel && !e.labels?.length && !e.textContent).length"
    )
    assert nameless == 0
