"""Data sets with known answers, small enough for tests."""

import numpy as np
from PIL import Image

SIDE = 32
VOC_BOX = "<bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox>"


def colour_image(seed, cells=4):
    """Squares of red or blue with noise; the mask is 1 where it is red."""
    chance = np.random.default_rng(seed)
    mask = np.kron(chance.integers(0, 2, (cells, cells)), np.ones((SIDE // cells,) * 2)).astype(int)
    pixels = np.zeros((SIDE, SIDE, 3))
    pixels[..., 0], pixels[..., 2] = 40 + 180 * mask, 220 - 180 * mask
    pixels += chance.normal(0, 5, pixels.shape)
    return np.clip(pixels, 0, 255).astype(np.uint8), mask.astype(np.uint8)


def save_png(path, pixels):
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
            save_png(root / f"JPEGImages/{name}.png", pixels)
            save_png(root / f"SegmentationClass/{name}.png", mask)
    return root


def voc_object(*sides, name="cat", marks=""):
    return f"<object><name>{name}</name>{marks}{VOC_BOX.format(*sides)}</object>"


def voc_folder(root, annotations, missing=()):
    """Make a VOC folder of 40 x 30 images; annotations by name."""
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    for name, content in annotations.items():
        if name not in missing:
            pixels = np.random.default_rng(len(name)).integers(0, 255, (30, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / "JPEGImages" / f"{name}.jpg")
        if content is not None:
            text = f"<annotation>{content}</annotation>"
            (root / "Annotations" / f"{name}.xml").write_text(text)
    (root / "ImageSets/Main/trainval.txt").write_text("".join(f"{n}\n" for n in annotations))
    return root


def depth_folder(root, train=6, test=3):
    """Red is 2 m away, blue 4 m; the first row is not known."""
    for split, first, count in (("train", 0, train), ("test", 100, test)):
        for i in range(count):
            pixels, mask = colour_image(first + i)
            depth = np.where(mask == 1, 2000, 4000).astype(np.uint16)
            depth[0] = 0
            save_png(root / f"{split}/rgb/{i:04d}.png", pixels)
            save_png(root / f"{split}/depth/{i:04d}.png", depth)
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
                save_png(place / kind / f"{i}.png", pixels.astype(np.uint8))
    return root


def cub(root):
    """A CUB-200-2011 folder of five images in four classes."""
    rows = [(1, "001.A/a.jpg", 1), (2, "100.B/b.jpg", 100), (3, "101.C/c.jpg", 101)]
    rows += [(4, "101.C/d.jpg", 101), (5, "200.D/e.jpg", 200)]
    for _, path, _ in rows:
        save_png(root / "images" / path, np.zeros((4, 4, 3), dtype=np.uint8))
    (root / "images.txt").write_text("".join(f"{i} {path}\n" for i, path, _ in rows))
    (root / "image_class_labels.txt").write_text("".join(f"{i} {c}\n" for i, _, c in rows))
    return root
