"""Lay out the held-out collections of facets.py from public data sets.

    python benchmarks/held_out_sets.py FOLDER OUT

FOLDER holds any of these as published; those that are missing are left out: ESSEX3IN1-Dataset,
Cats-and-Dogs-Breed-Dataset, clothing-dataset-small, GroceryStoreDataset, GardensPointWalking.
Writes OUT/essex (query/, ref/, ground_truth.json: frame to frame), OUT/pets (the first 12 photos of
each of 37 breeds), OUT/clothing (up to 40 photos of each kind of the test split), OUT/grocery (up
to 4 photos of each of 81 kinds of the test split) and OUT/gardens (a walk by day, every second
frame on the left among those on the right; a neighboring frame is right too), with a short side of
at most 256 px. All are for research only.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from PIL import Image

SIDE = 256
PLACES = 210


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    for name, lay_out in LAYOUTS.items():
        if (options.folder / name).is_dir():
            lay_out(options.folder / name, options.out)
        else:
            print(f"{name} is not there and left out.")


def essex(source: Path, out: Path) -> None:
    for part, target in (("query_combined", "query"), ("reference_combined", "ref")):
        for file in sorted((source / part).glob("*.jpg")):
            shrink(file, out / "essex" / target / f"{int(file.stem):07d}.jpg")
    write_truth(out / "essex", {str(place): [place] for place in range(PLACES)})


def gardens(source: Path, out: Path) -> None:
    for part, target in (("day_left", "query"), ("day_right", "ref")):
        for number, file in enumerate(sorted((source / part).glob("*.jpg"))[::2]):
            shrink(file, out / "gardens" / target / f"{number:07d}.jpg")
    last = len(list((out / "gardens" / "ref").iterdir())) - 1
    near = {str(i): list(range(max(i - 1, 0), min(i + 1, last) + 1)) for i in range(last + 1)}
    write_truth(out / "gardens", near)


def write_truth(folder: Path, truth: dict[str, list[int]]) -> None:
    (folder / "ground_truth.json").write_text(json.dumps(truth))


def pets(source: Path, out: Path) -> None:
    copy_classes(source / "TRAIN", out / "pets", 12)


def clothing(source: Path, out: Path) -> None:
    copy_classes(source / "test", out / "clothing", 40)


def grocery(source: Path, out: Path) -> None:
    """Kinds lie at different depths: a folder that holds photos is one."""
    kinds = sorted({file.parent for file in (source / "dataset/test").rglob("*.jpg")})
    for kind in kinds:
        for file in sorted(kind.glob("*.jpg"))[:4]:
            shrink(file, out / "grocery" / kind.name / f"{file.stem}.jpg")


def copy_classes(source: Path, target: Path, most: int) -> None:
    """Copy the first images of every class folder."""
    for folder in sorted(path for path in source.iterdir() if path.is_dir()):
        for file in sorted(folder.iterdir())[:most]:
            shrink(file, target / folder.name / f"{file.stem}.jpg")


def shrink(source: Path, target: Path) -> None:
    """Write an image with a short side of at most SIDE pixels."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(source) as opened:
        image = opened.convert("RGB")
    factor = SIDE / min(image.size)
    if factor < 1:
        size = (round(image.width * factor), round(image.height * factor))
        image = image.resize(size, Image.Resampling.BICUBIC)
    image.save(target, quality=92)


LAYOUTS = {
    "ESSEX3IN1-Dataset": essex,
    "Cats-and-Dogs-Breed-Dataset": pets,
    "clothing-dataset-small": clothing,
    "GroceryStoreDataset": grocery,
    "GardensPointWalking": gardens,
}


if __name__ == "__main__":
    main()
