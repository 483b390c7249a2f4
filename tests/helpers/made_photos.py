"""Photos for the tests of an index."""

import numpy as np
from PIL import Image


def write_photos(folder, count, seed=0):
    """Smooth random photos in two folders, 0.png, 1.png and so on."""
    generator = np.random.default_rng(seed)
    for i in range(count):
        path = folder / ("cats" if i % 2 else "dogs") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(generator.integers(0, 255, (3, 4, 3), dtype=np.uint8))
        small.resize((40, 30), Image.Resampling.BICUBIC).save(path)
    return folder
