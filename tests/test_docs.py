"""The Python in README and docs runs as printed, on the demo model at a smaller size."""

import re
import runpy

import numpy as np
import pytest
from PIL import Image

from tests.helpers.commands import PAGES, ROOT
from tests.helpers.made_data import colour_image, save_png

LARGE, SMALL = (
    re.compile(r"size=(224|336)\b"),
    "size=112",
)  # pixels; a quarter of the time
STORIES = {"tutorial.md"}  # pages whose code goes on where the block before it ended


def code_of(page):
    """Give the blocks of a page to run; those of a story as one."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    return ["\n".join(blocks)] if page.name in STORIES else blocks


BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(code_of(page))
]


@pytest.fixture(scope="module")
def workplace(demo_backbone, tmp_path_factory):
    """A folder with the files that the pages speak of."""
    from clearvit import TokenConfig, save_tokens

    folder = tmp_path_factory.mktemp("docs")
    generator = np.random.default_rng(0)
    (folder / "photos").mkdir()
    for name in ("cat.jpg", "dog.jpg", "photo.jpg", *(f"photos/{i:02d}.jpg" for i in range(20))):
        pixels = generator.integers(0, 255, (30, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
    (folder / "examples").mkdir()
    for i in range(2):
        pixels, mask = colour_image(i)
        save_png(folder / f"examples/{i}.png", pixels)
        save_png(folder / f"examples/{i}_mask.png", mask)
    config = TokenConfig(size=56, layers=(8,))
    save_tokens(demo_backbone, folder / "photos", out=folder / "tokens", config=config)
    return folder


@pytest.mark.parametrize("block", BLOCKS)
def test_the_code_of_the_pages_runs(block, workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    exec(compile(LARGE.sub(SMALL, block), "page", "exec"), {"__name__": "page"})


def test_every_result_is_listed_and_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text("utf-8")
    listed = (ROOT / "docs" / "results" / "index.md").read_text("utf-8")
    for page in (ROOT / "docs" / "results").glob("*.md"):
        assert f"results/{page.name}" in menu, page.name
        assert page.stem == "index" or f"({page.name})" in listed, page.name


def test_links_between_the_pages_lead_somewhere():
    for page in [*PAGES, *(ROOT / "docs" / "results").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_formulas_are_set_without_a_script():
    pytest.importorskip("latex2mathml")
    set_formula = runpy.run_path(str(ROOT / "docs" / "formulas.py"))["set_formula"]
    pages = [page.read_text("utf-8") for page in PAGES]
    formulas = [tex for page in pages for tex in re.findall(r"\$\$\n(.*?)\$\$", page, re.DOTALL)]
    assert len(formulas) >= 3
    for tex in formulas:
        assert "<math" in set_formula(tex) and "\\" not in set_formula(tex), tex
