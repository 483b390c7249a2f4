"""Photos of nothing, for tests that only need some, and the few that ship with packages."""

from pathlib import Path

import numpy as np
import skimage
import sklearn
from PIL import Image


def soft_photos(folder, count, *, size=(56, 40)):
    """Write `count` pictures of soft colours, 0.png and so on, of size (width, height)."""
    chance = np.random.default_rng(0)
    for i in range(count):
        small = Image.fromarray(chance.integers(0, 255, (5, 7, 3), dtype=np.uint8))
        small.resize(size, Image.Resampling.BICUBIC).save(folder / f"{i}.png")
    return folder


def packaged_photos():
    """Paths of seven real photos that scikit-image and scikit-learn ship."""
    names = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png")
    data = Path(skimage.__file__).parent / "data"
    images = Path(sklearn.__file__).parent / "datasets" / "images"
    return [*(data / name for name in names), images / "china.jpg", images / "flower.jpg"]
