"""Folders of depth maps and folders of classes -> splits."""

from __future__ import annotations

from pathlib import Path

from clearvit.datasets.masks import TEST_NAMES, TRAIN_NAMES, pair_files, split_names
from clearvit.datasets.splits import DepthSplit, LabelSplit, read_lines
from clearvit.errors import ImageError
from clearvit.images import find_images
from clearvit.options import DepthUnit

DEPTHS = (".png", ".tif", ".tiff", ".npy", ".pgm")


def read_depths(
    folder: str | Path,
    *,
    split: str,
    unit: DepthUnit = "millimeters",
    limits: tuple[float, float] = (1e-3, 10.0),
) -> DepthSplit:
    """Find the images and depth maps of one split.

    Known are SPLIT/rgb beside SPLIT/depth, lists nyu_SPLIT.txt of pairs of files, and NYUv2 scenes
    SPLIT/SCENE/rgb_*.jpg beside SPLIT/SCENE/sync_depth_*.png.

    Args:
        folder: The folder of the data set.
        split: "train", "test" or "val".
        unit: Unit of the numbers in the files.
        limits: Nearest and farthest valid depth in meters.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ImageError(f"'{root}' is no folder.")
    for name in split_names(split):
        found = _read_list(root, name) or _pair_folders(root, name) or _find_scenes(root, name)
        if found:
            return DepthSplit(split, root, *found, unit, *limits)
    raise ImageError(
        f"'{root}' has no split '{split}' of depth maps: {split}/rgb beside {split}/depth, a list"
        f" nyu_{split}.txt, or scenes {split}/SCENE with rgb_*.jpg and sync_depth_*.png."
    )


Pairs = tuple[tuple[Path, ...], tuple[Path, ...]]


def _pair_folders(root: Path, name: str) -> Pairs | None:
    for images in ("rgb", "images", "image"):
        folders = root / name / images, root / name / "depth"
        if all(folder.is_dir() for folder in folders):
            return pair_files(*folders, suffixes=DEPTHS)
    return None


def _find_scenes(root: Path, name: str) -> Pairs | None:
    images = sorted((root / name).glob("*/rgb_*.jpg"))
    depths = []
    for image in images:
        depth = image.with_name(f"sync_depth_{image.stem.removeprefix('rgb_')}.png")
        if not depth.is_file():
            raise ImageError(f"'{image}' has no '{depth}'. Add it, or remove the image.")
        depths.append(depth)
    return (tuple(images), tuple(depths)) if images else None


def _read_list(root: Path, name: str) -> Pairs | None:
    """Read lines of image, depth map and, unused, focal length; "None" marks a missing map."""
    listing = root / f"nyu_{name}.txt"
    if not listing.is_file():
        return None
    rows = [line.split() for line in read_lines(listing)]
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
                raise ImageError(f"'{path}' is in '{listing}', but does not exist.")
        pairs.append(pair)
    return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)


def read_labels(folder: str | Path, *, split: str | None = None) -> LabelSplit:
    """Find the images of a folder of class folders.

    Args:
        folder: Holds CLASS/image files, or SPLIT/CLASS/image files if there is a split.
        split: Folder in it; None for a folder without splits.
    """
    root = Path(folder)
    base = root if split is None else root / split
    if not base.is_dir():
        raise ImageError(f"'{base}' is no folder.")
    paths = [Path(str(image.source)) for image in find_images(base)]
    kinds = [path.relative_to(base).parts[0] for path in paths]
    loose = next((path for path in paths if path.parent == base), None)
    if loose is not None:
        raise ImageError(f"'{loose}' lies beside the class folders; move it into one.")
    classes = tuple(sorted(set(kinds)))
    if len(classes) < 2:
        raise ImageError(f"'{base}' holds one class, '{classes[0]}'; two are needed.")
    number = {kind: i for i, kind in enumerate(classes)}
    labels = tuple(number[kind] for kind in kinds)
    return LabelSplit(split or "all", root, tuple(paths), labels, classes)


def find_label_splits(root: Path) -> tuple[str, str] | None:
    """Name the splits of a folder of class folders; None if the classes are at the top."""
    train = next((name for name in TRAIN_NAMES if (root / name).is_dir()), None)
    test = next((name for name in TEST_NAMES if (root / name).is_dir()), None)
    return (train, test) if train and test else None
