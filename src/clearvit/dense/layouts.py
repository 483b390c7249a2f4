"""Folders as people have them on disk -> splits with masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from clearvit.dense import class_names as names_of
from clearvit.dense import known
from clearvit.dense.splits import MaskSplit, read_grey
from clearvit.errors import ImageError, closest
from clearvit.images import find_images

SUFFIXES = (".png", ".tif", ".tiff", ".bmp", ".gif")
PHOTOS = (".jpg", ".jpeg", ".png")
TESTS = ("val", "validation", "test", "testing")
TRAINS = ("train", "training")
MASKS = ("masks", "labels", "annotations", "segmentation", "mask")


def read_masks(folder: str | Path, *, split: str, layout: str | None = None) -> MaskSplit:
    """Find the images and masks of one split; no mask is read yet.

    Args:
        folder: The folder of the data set.
        split: "train", "val", or another name that the layout knows.
        layout: One of `LAYOUTS`; recognised by its folders if None.

    Raises:
        ImageError: A mask is missing, a split is empty, or no layout fits; names the file.
    """
    root = Path(folder)
    name = layout or recognised(root)
    if name not in LAYOUTS:
        raise ImageError(f"layout is '{name}'; use {', '.join(LAYOUTS)}.{closest(name, LAYOUTS)}")
    return LAYOUTS[name](root, split)


def recognised(root: Path) -> str:
    """Tell the layout of a folder by what is in it."""
    if not root.is_dir():
        raise ImageError(f"'{root}' is no folder.")
    for name, parts in SIGNS:
        if all((root / part).is_dir() for part in parts):
            return name
    if any(_plain(root, split) for split in (None, *TRAINS, *TESTS)):
        return "folders"
    inner = next((p.name for p in sorted(root.glob("VOC20*")) if p.is_dir()), None)
    hint = f" Did you mean '{root / inner}'?" if inner else ""
    raise ImageError(
        f"'{root}' has none of the known layouts: PASCAL VOC (JPEGImages, SegmentationClass),"
        " ADE20K (images/training, annotations/training), Cityscapes (leftImg8bit, gtFine),"
        " COCO-Stuff (images/train2017, annotations/train2017), Pascal Context (JPEGImages,"
        f" SegmentationClassContext), or images/ beside masks/.{hint}"
    )


def _voc(root: Path, split: str) -> MaskSplit:
    masks = _listed(root, split, "ImageSets/Segmentation", "SegmentationClass")
    return MaskSplit(split, root, *masks, names_of.VOC, known.plain_ids(len(names_of.VOC)))


def _voc20(root: Path, split: str) -> MaskSplit:
    masks = _listed(root, split, "ImageSets/Segmentation", "SegmentationClass")
    return MaskSplit(split, root, *masks, names_of.VOC[1:], known.shifted_ids(20))


def _context(root: Path, split: str) -> MaskSplit:
    masks = _listed(root, split, "ImageSets/SegmentationContext", "SegmentationClassContext")
    return MaskSplit(split, root, *masks, names_of.CONTEXT, known.plain_ids(60))


def _context59(root: Path, split: str) -> MaskSplit:
    masks = _listed(root, split, "ImageSets/SegmentationContext", "SegmentationClassContext")
    return MaskSplit(split, root, *masks, names_of.CONTEXT[1:], known.shifted_ids(59))


def _ade20k(root: Path, split: str) -> MaskSplit:
    part = {"train": "training", "val": "validation"}.get(split, split)
    masks = matched(root / "images" / part, root / "annotations" / part)
    return MaskSplit(split, root, *masks, names_of.ADE20K, known.shifted_ids(150))


def _cityscapes(root: Path, split: str) -> MaskSplit:
    places = (root / "leftImg8bit" / split, root / "gtFine" / split)
    masks = matched(*places, end="_leftImg8bit", target_end="_gtFine_labelIds")
    return MaskSplit(split, root, *masks, names_of.CITYSCAPES, known.cityscapes_ids())


def _coco_stuff(root: Path, split: str) -> MaskSplit:
    # Some tools write copies without gaps beside the official maps; these keep their numbers.
    images, masks, end = _coco_masks(root, split, ("_labelTrainIds",))
    ids = known.plain_ids(171) if end else known.coco_stuff_ids()
    return MaskSplit(split, root, images, masks, names_of.COCO_STUFF, ids)


def _coco_object(root: Path, split: str) -> MaskSplit:
    images, masks, end = _coco_masks(root, split, ("_instanceTrainIds", "_labelTrainIds"))
    ids = known.coco_object_ids(gaps=not end)
    if end == "_instanceTrainIds":
        ids = known.plain_ids(81)
    classes = ("background", *names_of.COCO_THINGS)
    return MaskSplit(split, root, images, masks, classes, ids)


def _coco_masks(
    root: Path, split: str, ends: Sequence[str]
) -> tuple[tuple[Path, ...], tuple[Path, ...], str]:
    """Pair the images of COCO with the first kind of masks there is; also how their names end."""
    part = {"train": "train2017", "val": "val2017"}.get(split, split)
    targets = root / "annotations" / part
    end = next((end for end in ends if next(targets.glob(f"*{end}.png"), None)), "")
    return *matched(root / "images" / part, targets, target_end=end), end


def _folders(root: Path, split: str) -> MaskSplit:
    """Pair images/ with masks/; without folders for the splits every fifth image is for testing."""
    aliases = TRAINS if split in TRAINS else TESTS if split in TESTS else (split,)
    for name in (split, *aliases):
        places = _plain(root, name)
        if places:
            return _plain_split(root, split, *matched(*places))
    places = _plain(root, None)
    if not places:
        raise ImageError(f"'{root}' has no split '{split}' with images and masks.")
    testing = split in TESTS
    images, masks = matched(*places)
    kept = [i for i in range(len(images)) if (i % 5 == 4) == testing]
    if not kept:
        raise ImageError(f"'{places[0]}' holds {len(images)} images; a split needs at least 5.")
    chosen = tuple(images[i] for i in kept), tuple(masks[i] for i in kept)
    return _plain_split(root, split, *chosen, everything=masks)


def _plain(root: Path, split: str | None) -> tuple[Path, Path] | None:
    """Find train/images beside train/masks, or images/train beside masks/train."""
    for masks in MASKS:
        pairs = [(root / "images", root / masks)]
        if split is not None:
            pairs = [
                (root / split / "images", root / split / masks),
                (root / "images" / split, root / masks / split),
            ]
        for pair in pairs:
            if all(place.is_dir() for place in pair):
                return pair
    return None


def _plain_split(
    root: Path,
    split: str,
    images: tuple[Path, ...],
    masks: tuple[Path, ...],
    *,
    everything: Sequence[Path] = (),
) -> MaskSplit:
    """Take the classes from classes.txt, or else from the masks of the training images."""
    listing = root / "classes.txt"
    if listing.is_file():
        names = tuple(line.strip() for line in read_lines(listing) if line.strip())
    else:
        if split in TRAINS or everything:
            source: Sequence[Path] = everything or masks
        else:
            source = _folders(root, "train").masks
        names = known.numbered(1 + max(_highest(path) for path in source))
    return MaskSplit(split, root, images, masks, names, known.plain_ids(len(names)))


def _highest(path: Path) -> int:
    values = read_grey(path, "a mask holds one class number per pixel")
    classes = values[values != 255]
    return int(classes.max()) if classes.size else 0


def matched(
    images: Path,
    targets: Path,
    *,
    end: str = "",
    target_end: str = "",
    suffixes: Sequence[str] = SUFFIXES,
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Pair each image of a folder with the file of the same name in another, subfolders too.

    Args:
        images: Folder of images.
        targets: Folder of masks or depth maps.
        end: What the names of the images end with, before the suffix.
        target_end: What the names of the targets have there instead.
        suffixes: Of the targets, in order of preference.
    """
    found = [Path(str(picture.source)) for picture in find_images(images)]
    kept = [path for path in found if path.stem.endswith(end)]
    if not kept:
        raise ImageError(f"'{images}' holds no image whose name ends with '{end}'.")
    return tuple(kept), tuple(
        _partner(path, images, targets, end, target_end, suffixes) for path in kept
    )


def _partner(
    image: Path, images: Path, targets: Path, end: str, target_end: str, suffixes: Sequence[str]
) -> Path:
    stem = image.stem[: len(image.stem) - len(end)] + target_end
    base = targets / image.relative_to(images).parent
    for suffix in suffixes:
        if (base / f"{stem}{suffix}").is_file():
            return base / f"{stem}{suffix}"
    raise ImageError(f"'{image}' has no '{base / stem}{suffixes[0]}'. Add it, or remove the image.")


def _listed(
    root: Path, split: str, lists: str, targets: str
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Pair the images that a text file lists with their masks."""
    listing = root / lists / f"{split}.txt"
    names = list(dict.fromkeys(line.split()[0] for line in read_lines(listing) if line.strip()))
    if not names:
        raise ImageError(f"'{listing}' lists no images; choose another split.")
    images, masks = [], []
    for name in names:
        if Path(name).name != name:  # a list from elsewhere must not reach out of the folder
            raise ImageError(f"'{listing}' holds '{name}'; only plain names belong into a list.")
        photo = next(
            (p for s in PHOTOS if (p := root / "JPEGImages" / f"{name}{s}").is_file()), None
        )
        if photo is None:
            raise ImageError(
                f"'{root / 'JPEGImages' / name}.jpg' is in '{listing}', but not there."
            )
        images.append(photo)
        masks.append(_partner(photo, root / "JPEGImages", root / targets, "", "", (".png",)))
    return tuple(images), tuple(masks)


def read_lines(path: Path) -> list[str]:
    """Read a list of names; an error says which lists there are."""
    try:
        return path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        there = ", ".join(sorted(p.stem for p in path.parent.glob("*.txt"))) or "none"
        raise ImageError(f"'{path}' cannot be read ({error}); lists there: {there}.") from error


LAYOUTS: dict[str, Callable[[Path, str], MaskSplit]] = {
    "voc": _voc,
    "voc20": _voc20,
    "ade20k": _ade20k,
    "cityscapes": _cityscapes,
    "coco-stuff": _coco_stuff,
    "coco-object": _coco_object,
    "pascal-context": _context,
    "pascal-context-59": _context59,
    "folders": _folders,
}
SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("cityscapes", ("leftImg8bit", "gtFine")),
    ("pascal-context", ("JPEGImages", "SegmentationClassContext")),
    ("voc", ("JPEGImages", "SegmentationClass")),
    ("ade20k", ("images/training", "annotations/training")),
    ("coco-stuff", ("images/train2017", "annotations/train2017")),
    ("coco-stuff", ("images/val2017", "annotations/val2017")),
    ("ade20k", ("images/validation", "annotations/validation")),
)
