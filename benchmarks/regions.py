"""Does a search for a part of an image find that image, and the part in it?

    python benchmarks/regions.py [--images 1000] [--crops 100] [--work DIR]

An index of real photos (photos, imagenet100, flowers) is built with all defaults. Of some of them
a random part of a quarter of the area is cut out, scaled by 0.6 to 1.6, with other colors, and
searched for. "Alone": the query shows the part only. "In its photo": the query is the whole photo,
scaled and with other colors, and the part is a region of it. A hit counts if the photo comes first;
its box is compared with the part that was cut out (intersection over union).
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageEnhance

import clearvit as cv
from clearvit.stats import bootstrap
from data import DATA, data_path, find_model
from evidence import read_result, write_result
from render import render

Box = tuple[int, int, int, int]
MODELS = ("deit_tiny_patch16_224", "vit_tiny_patch16_224.augreg_in21k_ft_in1k", "demo")
USED = ("photos", "imagenet100", "flowers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--crops", type=int, default=100)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--data", type=data_path, default=DATA)
    parser.add_argument("--work", type=Path, default=Path("regions-work"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for model in options.models:
        known = read_result("regions")
        if model not in known:
            known[model] = measure(model, options)
            write_result("regions", known, data=USED, seeds=[7], models=options.models)
            print(render("regions").read_text("utf-8"), flush=True)


def measure(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Build an index, search for parts of its images, and give what was found."""
    backbone = cv.load(find_model(model), size=options.size)
    files: list[Path] = []
    for folder in USED:
        files += sorted((options.data / folder).rglob("*.jpg"))
    files = files[: options.images]
    index = cv.Index.build(backbone, files, out=options.work / f"{model}-{options.images}")
    rng = random.Random(7)
    cases = [one_case(index, files[i], rng) for i in rng.sample(range(len(files)), options.crops)]
    return {
        "model": model,
        "images": len(files),
        "crops": len(cases),
        "size": options.size,
        "date": time.strftime("%Y-%m-%d"),
        "facet": index.spec.facet,
        "note": index.spec.note,
        "rows": {title: summarized(cases, title) for title in ("alone", "in its photo")},
    }


def one_case(index: cv.Index, file: Path, rng: random.Random) -> dict[str, tuple[bool, float]]:
    """Search for one part in both ways; whether its photo came first, and the IoU of the box."""
    image = Image.open(file).convert("RGB")
    part = random_part(image, rng)
    cut = changed(image.crop(part), rng)
    whole = changed(image, rng)
    scale = whole.width / image.width, whole.height / image.height
    inside = tuple(int(side * scale[i % 2]) for i, side in enumerate(part))
    found = {}
    for title, query, region in (
        ("alone", cut, (0, 0, cut.width, cut.height)),
        ("in its photo", whole, inside),
    ):
        hits = index.search(query, region=region, k=10)
        first = Path(hits[0].path) == file.resolve() or Path(hits[0].path) == file
        box = next((hit.box for hit in hits if Path(hit.path) in (file, file.resolve())), None)
        found[title] = (first, 0.0 if box is None else overlap(box, part))
    return found


def random_part(image: Image.Image, rng: random.Random) -> Box:
    """A quarter of the area, the sides in a ratio of 3:4 to 4:3 of the image's."""
    stretch = rng.uniform(0.75, 1.33) ** 0.5
    width = min(image.width, round(image.width * 0.5 * stretch))
    height = min(image.height, round(image.height * 0.5 / stretch))
    left, upper = rng.randint(0, image.width - width), rng.randint(0, image.height - height)
    return left, upper, left + width, upper + height


def changed(image: Image.Image, rng: random.Random) -> Image.Image:
    """Scale an image and change its colors."""
    scale = rng.uniform(0.6, 1.6)
    size = (max(8, round(scale * image.width)), max(8, round(scale * image.height)))
    image = image.resize(size, Image.Resampling.BICUBIC)
    for change in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        image = change(image).enhance(rng.uniform(0.7, 1.3))
    return image


def overlap(a: Box, b: Box) -> float:
    """Intersection over union of two boxes."""
    across = max(0, min(a[2], b[2]) - max(a[0], b[0]))
    down = max(0, min(a[3], b[3]) - max(a[1], b[1]))
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return across * down / max(1, sum(areas) - across * down)


def summarized(cases: list[dict[str, tuple[bool, float]]], title: str) -> dict[str, Any]:
    rows = [case[title] for case in cases]
    columns = {
        "photo first, %": [100.0 * first for first, _ in rows],
        "IoU at least 0.5, %": [100.0 * (value >= 0.5) for _, value in rows],
        "IoU, mean": [value for _, value in rows],
    }
    return {name: asdict(bootstrap(values)) for name, values in columns.items()}


if __name__ == "__main__":
    main()
