"""Write the page that the documentation embeds: the demo model raw, cured and fine.

    python benchmarks/microscope_example.py [--refresh]

The photos are in the public domain (CC0) and ship inside scikit-image: a cat, a cup of coffee, a
rocket. Writes docs/pages/microscope.html, less than 2 MB. --refresh computes nothing: it puts the
data of that page into the page as it is built now.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path

import skimage
from PIL import Image

import clearvit as cv
from clearvit.microscopy.microscope_page import render_microscope
from clearvit.microscopy.page_data import PageData

PAGE = Path(__file__).parents[1] / "docs" / "pages" / "microscope.html"
PHOTOS = ("chelsea.png", "coffee.png", "rocket.jpg")
LARGEST = 2_000_000  # bytes
SIDE = 448  # pixels of a photo on the page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--refresh", action="store_true")
    if parser.parse_args().refresh:
        refresh()
    else:
        make()


def refresh() -> None:
    """Renew script and styles of the page, whose data stays."""
    text = PAGE.read_text("utf-8")
    manifest = re.search(r'id="clearvit-data">(.*?)</script>', text, re.DOTALL)
    chunks = re.findall(r'id="chunk-\d+">(.*?)</script>', text, re.DOTALL)
    assert manifest is not None
    PAGE.write_text(render_microscope(PageData(json.loads(manifest[1]), chunks)), "utf-8")


def make() -> None:
    """Run the models."""
    data = Path(skimage.__file__).parent / "data"
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for name in PHOTOS:
            with Image.open(data / name) as image:
                small = image.convert("RGB")
            small.thumbnail((SIDE, SIDE))
            files.append(Path(folder) / name)
            small.save(files[-1])
        page = cv.microscope(
            [cv.load("demo"), cv.load("demo", cure=True)],
            files,
            out=PAGE,
            size=336,
            scale=2,
            channels=48,
            megabytes=1.7,
            overwrite=True,
        )
    if page.bytes > LARGEST:
        raise SystemExit(f"{page.bytes} bytes are too many")
    print(page.path, page.bytes, "left out:", ", ".join(page.left_out))


if __name__ == "__main__":
    main()
