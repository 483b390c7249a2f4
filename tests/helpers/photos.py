"""Photos of nothing, for tests that only need some."""

import numpy as np
from PIL import Image


def soft_photos(folder, count, *, size=(56, 40)):
    """Write `count` pictures of soft colours, 0.png and so on, of size (width, height)."""
    chance = np.random.default_rng(0)
    for i in range(count):
        small = Image.fromarray(chance.integers(0, 255, (5, 7, 3), dtype=np.uint8))
        small.resize(size, Image.Resampling.BICUBIC).save(folder / f"{i}.png")
    return folder
