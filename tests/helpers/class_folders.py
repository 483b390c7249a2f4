"""Class folders of images that share a color."""

import numpy as np
from PIL import Image


def class_folders(root, classes=6, each=4, size=(48, 40), noise=30):
    """Folders of images that share a color, with noise."""
    rng = np.random.default_rng(0)
    for number in range(classes):
        color = rng.integers(30, 225, 3)
        for image in range(each):
            pixels = np.clip(color + rng.normal(0, noise, (*size[::-1], 3)), 0, 255).astype(
                np.uint8
            )
            path = root / f"class{number}" / f"{image}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    return root
