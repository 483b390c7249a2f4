"""Folders of depth maps and folders of classes -> splits."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from clearvit.dense.layouts import TESTS, TRAINS, matched, read_lines
from clearvit.dense.splits import DepthSplit, LabelSplit
from clearvit.errors import ImageError
from clearvit.images import find_images

DEPTHS = (".png", ".tif", ".tiff", ".npy", ".pgm")


def read_depths(
    folder: str | Path,
    *,
    split: str,
    unit: Literal["millimetres", "metres"] = "millimetres",
    limits: tuple[float, float] = (1e-3, 10.0),
) -> DepthSplit:
    """Find the images and depth maps of one split.

    Known are SPLIT/rgb beside SPLIT/depth, lists nyu_SPLIT.txt of pairs of files, and NYUv2 scenes
    SPLIT/SCENE/rgb_*.jpg beside SPLIT/SCENE/sync_depth_*.png.

    Args:
        folder: The folder of the data set.
        split: "train", "test" or "val".
        unit: Of the numbers in the files.
        limits: Nearest and farthest valid depth, in metres.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ImageError(f"'{root}' is no folder.")
    names = TRAINS if split in TRAINS else TESTS if split in TESTS else (split,)
    for name in dict.fromkeys((split, *names)):
        found = _listed(root, name) or _beside(root, name) or _scenes(root, name)
        if found:
            return DepthSplit(split, root, *found, unit, *limits)
    raise ImageError(
        f"'{root}' has no split '{split}' of depth maps: {split}/rgb beside {split}/depth, a list"
        f" nyu_{split}.txt, or scenes {split}/SCENE with rgb_*.jpg and sync_depth_*.png."
    )


Pairs = tuple[tuple[Path, ...], tuple[Path, ...]]


def _beside(root: Path, name: str) -> Pairs | None:
    for photos in ("rgb", "images", "image"):
        places = root / name / photos, root / name / "depth"
        if all(place.is_dir() for place in places):
            return matched(*places, suffixes=DEPTHS)
    return None


def _scenes(root: Path, name: str) -> Pairs | None:
    photos = sorted((root / name).glob("*/rgb_*.jpg"))
    depths = []
    for photo in photos:
        depth = photo.with_name(f"sync_depth_{photo.stem.removeprefix('rgb_')}.png")
        if not depth.is_file():
            raise ImageError(f"'{photo}' has no '{depth}'. Add it, or remove the image.")
        depths.append(depth)
    return (tuple(photos), tuple(depths)) if photos else None


def _listed(root: Path, name: str) -> Pairs | None:
    """Read lines of image, depth map and, unused, focal length; "None" marks a missing map."""
    listing = root / f"nyu_{name}.txt"
    if not listing.is_file():
        return None
    rows = [line.split() for line in read_lines(listing) if line.strip()]
    rows = [row for row in rows if len(row) < 2 or row[1] != "None"]
    if not rows:
        raise ImageError(f"'{listing}' lists no images; choose another split.")
    pairs = []
    for row in rows:
        if len(row) < 2 or any(".." in Path(part).parts for part in row[:2]):
            raise ImageError(
                f"'{listing}' holds '{' '.join(row)}'; a line is an image and a depth map."
            )
        pair = [root / part.lstrip("/") for part in row[:2]]
        for path in pair:
            if not path.is_file():
                raise ImageError(f"'{path}' is in '{listing}', but not there.")
        pairs.append(pair)
    return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)


def read_labels(folder: str | Path, *, split: str | None = None) -> LabelSplit:
    """Find the images of a folder of class folders.

    Args:
        folder: Holds CLASS/image files, or SPLIT/CLASS/image files if there is a split.
        split: Folder in it; None for a folder without splits.
    """
    root = Path(folder)
    place = root if split is None else root / split
    if not place.is_dir():
        raise ImageError(f"'{place}' is no folder.")
    paths = [Path(str(picture.source)) for picture in find_images(place)]
    kinds = [path.relative_to(place).parts[0] for path in paths]
    loose = next((path for path in paths if path.parent == place), None)
    if loose is not None:
        raise ImageError(f"'{loose}' lies beside the class folders; put it into one.")
    classes = tuple(sorted(set(kinds)))
    if len(classes) < 2:
        raise ImageError(f"'{place}' holds one class, '{classes[0]}'; two are needed.")
    number = {kind: i for i, kind in enumerate(classes)}
    labels = tuple(number[kind] for kind in kinds)
    return LabelSplit(split or "all", root, tuple(paths), labels, classes)


def label_splits(root: Path) -> tuple[str, str] | None:
    """Name the splits of a folder of class folders; None if the classes are at the top."""
    train = next((name for name in TRAINS if (root / name).is_dir()), None)
    test = next((name for name in TESTS if (root / name).is_dir()), None)
    return (train, test) if train and test else None
