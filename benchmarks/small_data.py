"""A few images of every data set of the benchmarks, as links, for trial runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from data import DATASETS, find_data

PHOTOS, MASKS, BOXES, PLACES, DEPTHS = 80, 8, 4, 10, 4  # images
CLASSES, PER_CLASS = 8, 5
IMAGES = 48  # of VOC, with or without masks


def make_small_data(root: Path) -> Path:
    """Link some images of every data set that is there, in the same layout."""
    makers = {"photos": _photos, "voc": _voc, "corridor": _corridor, "depth": _depth}
    for name in DATASETS:
        try:
            source = find_data(name)
        except FileNotFoundError:
            continue
        makers.get(name, _classes)(source, root / name)
    return root


def _link(files: Iterable[Path], source: Path, target: Path) -> None:
    for file in files:
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(file.resolve())


def _photos(source: Path, target: Path) -> None:
    _link(sorted(source.glob("*.jpg"))[:PHOTOS], source, target)


def _classes(source: Path, target: Path) -> None:
    for folder in sorted(path for path in source.iterdir() if path.is_dir())[:CLASSES]:
        _link(sorted(folder.glob("*.jpg"))[:PER_CLASS], source, target)


def _voc(source: Path, target: Path) -> None:
    counts = {"Segmentation/train": 2 * MASKS, "Segmentation/val": MASKS, "Main/trainval": BOXES}
    for split, count in counts.items():
        names = (source / "ImageSets" / f"{split}.txt").read_text().split()
        names = names[:: max(1, len(names) // count)][:count]
        place = target / "ImageSets" / f"{split}.txt"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("\n".join(names) + "\n")
        for name in names:
            found = [source / "JPEGImages" / f"{name}.jpg"]
            found += [source / "SegmentationClass" / f"{name}.png"]
            found += [source / "Annotations" / f"{name}.xml"]
            wanted = [file for file in found if file.exists()]
            wanted = [f for f in wanted if not (target / f.relative_to(source)).is_symlink()]
            _link(wanted, source, target)
    _more_images(source, target, IMAGES)


def _more_images(source: Path, target: Path, count: int) -> None:
    """Fill up the images of a VOC folder beyond those of its lists."""
    for file in sorted((source / "JPEGImages").glob("*.jpg")):
        there = len(list((target / "JPEGImages").iterdir()))
        if there < count and not (target / "JPEGImages" / file.name).is_symlink():
            _link([file], source, target)


def _corridor(source: Path, target: Path) -> None:
    for part in ("query", "ref"):
        _link(sorted((source / part).glob("*.jpg"))[:PLACES], source, target)
    truth = json.loads((source / "ground_truth.json").read_text())
    few = {q: [r for r in refs if r < PLACES] for q, refs in truth.items() if int(q) < PLACES}
    (target / "ground_truth.json").write_text(json.dumps(few))


def _depth(source: Path, target: Path) -> None:
    for split in ("train", "test"):
        for kind in ("rgb", "depth"):
            _link(sorted((source / split / kind).iterdir())[:DEPTHS], source, target)
