"""Data sets with known answers, small enough for tests."""

import numpy as np
from PIL import Image

SIDE = 32


def colour_image(seed, cells=4):
    """Squares of red or blue with noise; the mask is 1 where it is red."""
    chance = np.random.default_rng(seed)
    mask = np.kron(chance.integers(0, 2, (cells, cells)), np.ones((SIDE // cells,) * 2)).astype(int)
    pixels = np.zeros((SIDE, SIDE, 3))
    pixels[..., 0], pixels[..., 2] = 40 + 180 * mask, 220 - 180 * mask
    pixels += chance.normal(0, 5, pixels.shape)
    return np.clip(pixels, 0, 255).astype(np.uint8), mask.astype(np.uint8)


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def voc_masks(root, train=6, val=4):
    """A PASCAL VOC folder: class 1 is red, class 0 is blue, a void column on the left."""
    (root / "ImageSets/Segmentation").mkdir(parents=True)
    for split, first, count in (("train", 0, train), ("val", 100, val)):
        names = [f"{first + i:06d}" for i in range(count)]
        (root / f"ImageSets/Segmentation/{split}.txt").write_text("\n".join(names))
        for i, name in enumerate(names):
            pixels, mask = colour_image(first + i)
            mask[:, 0] = 255
            save(root / f"JPEGImages/{name}.png", pixels)
            save(root / f"SegmentationClass/{name}.png", mask)
    return root


def depth_folder(root, train=6, test=3):
    """Red is 2 m away, blue 4 m; the first row is not known."""
    for split, first, count in (("train", 0, train), ("test", 100, test)):
        for i in range(count):
            pixels, mask = colour_image(first + i)
            depth = np.where(mask == 1, 2000, 4000).astype(np.uint16)
            depth[0] = 0
            save(root / f"{split}/rgb/{i:04d}.png", pixels)
            save(root / f"{split}/depth/{i:04d}.png", depth)
    return root


def class_folder(root, each=5, splits=(None,)):
    """Red, green and blue images."""
    chance = np.random.default_rng(0)
    for split in splits:
        for channel, kind in enumerate(("red", "green", "blue")):
            for i in range(each):
                pixels = chance.integers(0, 60, (SIDE, SIDE, 3))
                pixels[..., channel] += 150
                place = root / split if split else root
                save(place / kind / f"{i}.png", pixels.astype(np.uint8))
    return root
