"""Folders of retrieval data sets -> gallery, queries and positives."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clearvit.datasets.folders import find_label_splits, read_labels
from clearvit.datasets.places import is_msls, read_msls, read_vpr
from clearvit.datasets.retrieval_dataset import RetrievalDataset
from clearvit.datasets.splits import read_lines
from clearvit.errors import ImageError, closest, missing_extra

CUB_TEST = range(101, 201)
CARS_TEST = range(99, 197)
CARS_FILES = ("cars_annos.csv", "cars_annos.mat")
SOP_LIST, SOP_TRAINING = "Ebay_test.txt", "Ebay_train.txt"


def read_retrieval(
    folder: str | Path,
    *,
    layout: str | None = None,
    split: str | None = None,
    training: bool = False,
) -> RetrievalDataset:
    """Find the gallery, the queries and the positives of a retrieval data set.

    Data sets with published splits give their test classes: CUB-200-2011 the classes 101 to 200,
    Cars196 99 to 196, SOP those of Ebay_test.txt.

    Args:
        folder: The folder of the data set.
        layout: One of `LAYOUTS`; detected by its files if None.
        split: Folder of class folders to use, such as "test"; only layout "folders" has them.
        training: Give the published training classes instead, or the training split of folders.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ImageError(f"'{root}' is no folder.")
    name = layout or detect_retrieval_layout(root)
    if name not in LAYOUTS:
        raise ImageError(f"layout is '{name}'; use {', '.join(LAYOUTS)}.{closest(name, LAYOUTS)}")
    if name == "folders":
        found = _read_folders(root, training, split)
    else:
        found = LAYOUTS[name](root, training)
    for path in found.images:
        if not path.is_file():
            raise ImageError(f"'{path}' is listed, but does not exist.")
    return found


def detect_retrieval_layout(root: Path) -> str:
    """Detect the layout of a retrieval data set by its files."""
    if (root / "images.txt").is_file() and (root / "image_class_labels.txt").is_file():
        return "cub"
    if (root / SOP_LIST).is_file():
        return "sop"
    if (root / "ground_truth.json").is_file():
        return "vpr"
    if is_msls(root):
        return "msls"
    if any((root / name).is_file() for name in CARS_FILES):
        return "cars"
    return "folders"


def _read_folders(root: Path, training: bool, split: str | None = None) -> RetrievalDataset:
    """Class folders, or those of the test (or training) split where there is one."""
    splits = find_label_splits(root)
    own = splits[0 if training else 1] if splits else None
    found = read_labels(root, split=split or own)
    return RetrievalDataset("folders", root, found.images, labels=found.labels)


def _read_cub(root: Path, training: bool) -> RetrievalDataset:
    paths = dict(_read_pairs(root / "images.txt"))
    classes = dict(_read_pairs(root / "image_class_labels.txt"))
    missing = next((key for key in paths if key not in classes), None)
    if missing is not None:
        raise ImageError(f"'{root / 'image_class_labels.txt'}' has no class of image {missing}.")
    rows = [(root / "images" / path, classes[key]) for key, path in paths.items()]
    return _select_classes("cub", root, rows, _choose(CUB_TEST, training))


def _read_cars(root: Path, training: bool) -> RetrievalDataset:
    """Cars196: all 16,185 images listed in one file, or train/ and test/ with class folders."""
    if (root / CARS_FILES[0]).is_file():
        rows = _read_cars_csv(root / CARS_FILES[0])
    elif (root / CARS_FILES[1]).is_file():
        rows = _read_cars_mat(root / CARS_FILES[1])
    else:
        rows = _read_cars_folders(root)
    return _select_classes("cars", root, rows, _choose(CARS_TEST, training))


def _read_cars_csv(file: Path) -> list[tuple[Path, str]]:
    """Read rows of a path below the folder and a class from 1, under any of the usual headings."""
    with open(file, newline="", encoding="utf-8") as stream:
        table = list(csv.DictReader(stream))
    headings = set(table[0]) if table else set()
    path = next((h for h in ("relative_im_path", "path", "image", "fname") if h in headings), None)
    if path is None or "class" not in headings:
        raise ImageError(
            f"'{file}' needs the headings relative_im_path (or path) and class; it has"
            f" {', '.join(sorted(h for h in headings if h)) or 'none'}."
        )
    return [(_join(file, row[path]), row["class"]) for row in table]


def _read_cars_mat(file: Path) -> list[tuple[Path, str]]:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise missing_extra("scipy", "evaluate", f"reading '{file}'") from error
    records: Any = loadmat(file, squeeze_me=True)["annotations"]
    return [(_join(file, str(r["relative_im_path"])), str(int(r["class"]))) for r in records]


def _read_cars_folders(root: Path) -> list[tuple[Path, str]]:
    """Number class folders by their names, whose order is the published one."""
    parts = [root / name for name in find_label_splits(root) or ()] or [root]
    splits = [read_labels(part) for part in parts]
    names = sorted({name for found in splits for name in found.classes})
    if len(names) != CARS_TEST.stop - 1:
        raise ImageError(
            f"'{root}' has {len(names)} class folders and Cars196 has {CARS_TEST.stop - 1}. For a"
            " part of it, use layout 'folders', which searches all classes."
        )
    number = {name: str(i) for i, name in enumerate(names, 1)}
    return [
        (path, number[found.classes[label]])
        for found in splits
        for path, label in zip(found.images, found.labels, strict=True)
    ]


def _choose(test: range, training: bool) -> range:
    """Give the test classes, or those before them, which are the training classes."""
    return range(1, test.start) if training else test


def _read_sop(root: Path, training: bool) -> RetrievalDataset:
    """Stanford Online Products: image_id class_id super_class_id path, with a heading."""
    file = root / (SOP_TRAINING if training else SOP_LIST)
    lines = read_lines(file)[1:]
    rows = []
    for line in lines:
        parts = line.split(maxsplit=3)
        if len(parts) != 4:
            raise ImageError(f"'{file}' holds '{line}'; four columns were expected.")
        rows.append((_join(file, parts[3]), parts[1]))
    return _select_classes("sop", root, rows, None)


def _select_classes(
    layout: str, root: Path, rows: Sequence[tuple[Path, str]], wanted: range | None
) -> RetrievalDataset:
    """Keep the images of some classes, given as numbers in text."""
    try:
        numbers = [(path, int(label)) for path, label in rows]
    except ValueError as error:
        raise ImageError(f"'{root}': a class is not a number ({error}).") from error
    kept = [(path, label) for path, label in numbers if wanted is None or label in wanted]
    if not kept:
        raise ImageError(
            f"'{root}' has no image of these classes of {layout}"
            + (f", {wanted.start} to {wanted.stop - 1}." if wanted else ".")
        )
    paths, labels = zip(*kept, strict=True)
    return RetrievalDataset(layout, root, paths, labels=labels)


def _read_pairs(file: Path) -> list[tuple[str, str]]:
    found = []
    for line in read_lines(file):
        key, _, value = line.strip().partition(" ")
        if ".." in Path(value).parts:
            raise ImageError(f"'{file}' holds '{value}', which leaves the folder.")
        found.append((key, value))
    return found


def _join(file: Path, name: str) -> Path:
    """Join a path that a list gives; a list from elsewhere must not reach out of the folder."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ImageError(f"'{file}' holds '{name}', which leaves the folder.")
    return file.parent / name


LAYOUTS: dict[str, Callable[[Path, bool], RetrievalDataset]] = {
    "folders": _read_folders,
    "cub": _read_cub,
    "cars": _read_cars,
    "sop": _read_sop,
    "msls": read_msls,
    "vpr": lambda root, training: read_vpr(root),
}
