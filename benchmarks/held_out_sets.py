"""Lay out the held-out collections of facets.py from three public data sets.

    python benchmarks/held_out_sets.py FOLDER OUT

FOLDER holds ESSEX3IN1-Dataset, Cats-and-Dogs-Breed-Dataset and clothing-dataset-small as published.
Writes OUT/essex (query/, ref/, ground_truth.json: frame to frame), OUT/pets (the first 12 photos of
each of 37 breeds) and OUT/clothing (up to 40 photos of each kind of the test split), with a short
side of at most 256 px. All are for research only.
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
    essex = options.folder / "ESSEX3IN1-Dataset"
    for source, target in (("query_combined", "query"), ("reference_combined", "ref")):
        for file in sorted((essex / source).glob("*.jpg")):
            shrink(file, options.out / "essex" / target / f"{int(file.stem):07d}.jpg")
    truth = {str(place): [place] for place in range(PLACES)}
    (options.out / "essex" / "ground_truth.json").write_text(json.dumps(truth))
    copy_classes(options.folder / "Cats-and-Dogs-Breed-Dataset/TRAIN", options.out / "pets", 12)
    copy_classes(options.folder / "clothing-dataset-small/test", options.out / "clothing", 40)


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


if __name__ == "__main__":
    main()
