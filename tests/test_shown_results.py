"""What results print and what notebooks show of them: short, escaped, and never an error."""

import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

import clearvit as cv
from clearvit.backbones.tokens import Tokens
from clearvit.discovery.discover import ImageObjects
from clearvit.discovery.discovery_page import draw_thumbnail
from clearvit.report.notebook import MOST_IMAGES, MOST_ROWS, card, heat, png_of
from tests.helpers.made_data import class_folder, colour_image, save_png

SHORT = 400  # characters
NAME = "<b>&.png"  # a name of a file that a page must not obey


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shown")
    generator = np.random.default_rng(0)
    for name in (NAME, *(f"{i}.png" for i in range(5))):
        pixels = generator.integers(0, 255, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
    return folder


def check_html(shown, name=NAME):
    assert "<b>&" not in shown, "a name was not escaped"
    assert re.sub(r"base64,[^\"]*", "", shown).count("<div") == shown.count("</div>")
    return shown


def test_tokens(tiny, photos):
    tokens = tiny.tokens(photos, layers=[0, -1], capture=("attention",))
    assert len(repr(tokens)) < SHORT
    assert tokens._repr_html_().count("<img") == 6
    broken = Tokens(torch.full((1, 4, 3), torch.nan), torch.zeros(1, 0, 3), (2, 2))
    assert "<img" not in broken._repr_html_()


def test_a_diagnosis_is_its_verdict(tiny, photos):
    found = cv.diagnose(tiny, photos, quick=True, size=32)
    assert len(repr(found)) < SHORT and found.title in repr(found)
    assert str(found).startswith(f"{tiny.name}: {found.title}")
    assert found.title in check_html(found._repr_html_())
    assert f"{photos} --size 32" in found.next_command


def test_tables_of_models(tiny, photos, tmp_path):
    data = class_folder(tmp_path / "classes")
    table = cv.evaluate(tiny, task="classification", data=data, size=32)
    assert table.text() in repr(table)
    assert "<table" in check_html(table._repr_html_())
    compared = cv.compare([tiny], photos, size=32, quick=True)
    assert repr(compared) == compared.text()
    assert "<table" in check_html(compared._repr_html_())
    assert str(photos) in compared.next_command


def test_hits_show_their_images(tiny, photos, tmp_path):
    index = cv.Index.build(tiny, photos, out=tmp_path / "index", size=32)
    hits = index.search(photos / NAME, k=3)
    assert len(repr(hits)) < 2 * SHORT
    assert len(repr(hits[0])) < 100 and NAME in repr(hits[0])
    assert check_html(hits._repr_html_()).count("<img") == 4
    (photos / "0.png").rename(tmp_path / "0.png")
    try:
        check_html(index.search(photos / NAME, k=6)._repr_html_())
    finally:
        (tmp_path / "0.png").rename(photos / "0.png")


def test_boxes(tiny, photos):
    found = cv.discover(tiny, photos, size=32)
    assert len(repr(found)) < SHORT and len(repr(found[0])) < SHORT
    assert "6 images" in repr(found)
    assert check_html(found._repr_html_()).count("<img") == 6


def test_boxes_are_drawn_on_the_images(tmp_path):
    file = tmp_path / "gray.png"
    Image.new("RGB", (80, 60), "gray").save(file)
    one = ImageObjects(
        name=str(file),
        boxes=((8.0, 6.0, 40.0, 30.0),),
        scores=(1.0,),
        masks=torch.ones(1, 2, 2, dtype=torch.bool),
        size=(60, 80),
        crop=(0.0, 0.0, 80.0, 60.0),
    )
    drawn = Image.open(io.BytesIO(draw_thumbnail(one, file)))
    assert drawn.size == (80, 60)
    changed = np.asarray(drawn) != np.asarray(Image.new("RGB", (80, 60), "gray"))
    rows, columns = np.nonzero(changed.any(2))
    assert (columns.min(), rows.min(), columns.max(), rows.max()) == (8, 6, 39, 29)
    file.unlink()
    assert Image.open(io.BytesIO(draw_thumbnail(one, file))).size == (112, 112)  # the masks


def test_captions_name_the_file_and_titles_its_folder():
    image = png_of(heat(np.arange(6.0).reshape(2, 3)))
    shown = card("x", images=[(image, "query: /a b/c d/cat.jpg"), (image, "1. 0.5 /e/dog.jpg")])
    assert ">query: cat.jpg<" in shown and 'title="query: /a b/c d/cat.jpg"' in shown
    assert ">1. 0.5 dog.jpg<" in shown


def test_masks(tiny, tmp_path):
    for i in range(2):
        pixels, mask = colour_image(i)
        save_png(tmp_path / f"examples/{i}.png", pixels)
        save_png(tmp_path / f"examples/{i}_mask.png", mask)
        save_png(tmp_path / f"photos/{i}.png", pixels)
    masks = cv.segment(tiny, tmp_path / "photos", examples=tmp_path / "examples", size=32)
    assert len(repr(masks)) < SHORT
    assert check_html(masks._repr_html_()).count("<img") == 2


def test_a_card_says_what_it_leaves_out():
    image = png_of(heat(np.arange(6.0).reshape(2, 3)))
    rows = [(str(i), i) for i in range(MOST_ROWS + 2)]
    shown = card("x", images=[(image, "<i>")] * (MOST_IMAGES + 3), table=(("a", "b"), rows))
    assert shown.count("<img") == MOST_IMAGES and "3 more images and 2 more rows" in shown
    assert "<i>" not in shown
