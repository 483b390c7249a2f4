"""Data sets of the benchmarks by name.

They lie below the folder that the environment variable CLEARVIT_DATA names. A script needs only
some of them; `python benchmarks/data.py` says which are there.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

DATA = "$CLEARVIT_DATA"  # in the default of an option, which is read when it is needed
RESULTS = Path(__file__).parents[1] / "docs" / "results"


@dataclass(frozen=True)
class DataSet:
    """What a data set is and which files it must have, as patterns below its folder."""

    what: str
    needs: tuple[str, ...]
    source: str


DATASETS = {
    "photos": DataSet("images without labels", ("*.jpg",), "any natural photos, about 500"),
    "voc": DataSet(
        "masks and boxes in the layout of PASCAL VOC",
        (
            "JPEGImages/*.jpg",
            "SegmentationClass/*.png",
            "Annotations/*.xml",
            "ImageSets/Segmentation/train.txt",
            "ImageSets/Segmentation/val.txt",
            "ImageSets/Main/trainval.txt",
        ),
        "PASCAL VOC 2012 or a part of it",
    ),
    "imagenet100": DataSet("class folders", ("*/*.jpg",), "100 classes of ImageNet's validation"),
    "cars": DataSet("class folders", ("*/*.jpg",), "Stanford Cars or a part of it"),
    "flowers": DataSet("class folders", ("*/*.jpg",), "Oxford Flowers-102 or a part of it"),
    "corridor": DataSet(
        "two traverses with their ground truth",
        ("query/*.jpg", "ref/*.jpg", "ground_truth.json"),
        "corridor of VPR-Bench",
    ),
    "depth": DataSet(
        "images with depth in millimeters",
        ("train/rgb/*.jpg", "train/depth/*.png", "test/rgb/*.jpg", "test/depth/*.png"),
        "any RGB-D set in this layout",
    ),
}


def find_data(name: str) -> Path:
    """Folder of a data set by name; FileNotFoundError says what is missing."""
    root = os.environ.get("CLEARVIT_DATA")
    known = DATASETS[name]
    if not root:
        raise FileNotFoundError(f"{name}: set CLEARVIT_DATA to the folder that holds {name}/.")
    folder = Path(root) / name
    for pattern in known.needs:
        if next(folder.glob(pattern), None) is None:
            raise FileNotFoundError(
                f"{name}: no {pattern} in '{folder}'; {known.what} ({known.source})."
            )
    return folder


@functools.cache
def fingerprint(name: str) -> str:
    """Hash of the names and sizes of a data set's files; "absent" without it."""
    try:
        folder = find_data(name)
    except FileNotFoundError:
        return "absent"
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"{path.relative_to(folder).as_posix()} {path.stat().st_size}" for path in files]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def data_path(text: str) -> Path:
    """Read the path of an option; the type of options whose default begins with `DATA`."""
    if not text.startswith(DATA):
        return Path(text)
    root = os.environ.get("CLEARVIT_DATA")
    if not root:
        raise argparse.ArgumentTypeError(
            f"set CLEARVIT_DATA to the folder that holds {', '.join(DATASETS)}, or give this option"
            " a path."
        )
    path = Path(root + text[len(DATA) :])
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"'{path}' does not exist; is CLEARVIT_DATA right?")
    return path


def find_model(name: str) -> str:
    """Give the name that `cv.load` takes.

    "recipe:NAME" is made if it is missing (recipes.py); else it is a directory in CLEARVIT_WEIGHTS,
    or the name itself.
    """
    if name.startswith("recipe:"):
        from recipes import make_recipe

        return f"dir:{make_recipe(name.removeprefix('recipe:'))}"
    folder = Path(os.environ.get("CLEARVIT_WEIGHTS", "")) / name
    return f"timm:local-dir:{folder}" if (folder / "config.json").is_file() else name


def main() -> None:
    for name in DATASETS:
        try:
            print(f"{name:12} {fingerprint(name)}  {find_data(name)}")
        except FileNotFoundError as problem:
            print(f"{name:12} missing: {problem}")


if __name__ == "__main__":
    main()
