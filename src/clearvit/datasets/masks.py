"""Folders of segmentation data sets -> splits with masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from clearvit.datasets import class_ids, class_names
from clearvit.datasets.splits import MaskSplit, read_gray, read_lines, read_names
from clearvit.errors import ImageError, closest
from clearvit.images import find_images

MASK_SUFFIXES = (".png", ".tif", ".tiff", ".bmp", ".gif")
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")
TEST_NAMES = ("val", "validation", "test", "testing")
MOST_CLASSES = 4096  # that are counted without a list of their names
TRAIN_NAMES = ("train", "training")
MASK_FOLDERS = ("masks", "labels", "annotations", "segmentation", "mask")


def read_masks(folder: str | Path, *, split: str, layout: str | None = None) -> MaskSplit:
    """Find the images and masks of one split; no mask is read yet.

    Args:
        folder: The folder of the data set.
        split: "train", "val", or another name that the layout knows.
        layout: One of `LAYOUTS`; detected by its folders if None.

    Raises:
        ImageError: A mask is missing, a split is empty, or no layout fits; names the file.
    """
    root = Path(folder)
    name = layout or detect_layout(root)
    if name not in LAYOUTS:
        raise ImageError(f"layout is '{name}'; use {', '.join(LAYOUTS)}.{closest(name, LAYOUTS)}")
    return LAYOUTS[name](root, split)


def detect_layout(root: Path) -> str:
    """Detect the layout of a folder of images and masks by its subfolders."""
    if not root.is_dir():
        raise ImageError(f"'{root}' is no folder.")
    for name, folders in MARKERS:
        if all((root / folder).is_dir() for folder in folders):
            return name
    if any(_find_folders(root, split) for split in (None, *TRAIN_NAMES, *TEST_NAMES)):
        return "folders"
    inner = next((p.name for p in sorted(root.glob("VOC20*")) if p.is_dir()), None)
    hint = f" Did you mean '{root / inner}'?" if inner else ""
    raise ImageError(
        f"'{root}' has none of the known layouts: PASCAL VOC (JPEGImages, SegmentationClass),"
        " ADE20K (images/training, annotations/training), Cityscapes (leftImg8bit, gtFine),"
        " COCO-Stuff (images/train2017, annotations/train2017), Pascal Context (JPEGImages,"
        f" SegmentationClassContext), or images/ beside masks/.{hint}"
    )


def _read_voc(root: Path, split: str) -> MaskSplit:
    masks = _read_list(root, split, "ImageSets/Segmentation", "SegmentationClass")
    return MaskSplit(split, root, *masks, class_names.VOC, class_ids.plain_ids(21))


def _read_voc20(root: Path, split: str) -> MaskSplit:
    masks = _read_list(root, split, "ImageSets/Segmentation", "SegmentationClass")
    return MaskSplit(split, root, *masks, class_names.VOC[1:], class_ids.shifted_ids(20))


def _read_context(root: Path, split: str) -> MaskSplit:
    masks = _read_list(root, split, "ImageSets/SegmentationContext", "SegmentationClassContext")
    return MaskSplit(split, root, *masks, class_names.CONTEXT, class_ids.plain_ids(60))


def _read_context59(root: Path, split: str) -> MaskSplit:
    masks = _read_list(root, split, "ImageSets/SegmentationContext", "SegmentationClassContext")
    return MaskSplit(split, root, *masks, class_names.CONTEXT[1:], class_ids.shifted_ids(59))


def _read_ade20k(root: Path, split: str) -> MaskSplit:
    part = {"train": "training", "val": "validation"}.get(split, split)
    masks = pair_files(root / "images" / part, root / "annotations" / part)
    return MaskSplit(split, root, *masks, class_names.ADE20K, class_ids.shifted_ids(150))


def _read_cityscapes(root: Path, split: str) -> MaskSplit:
    images, targets = root / "leftImg8bit" / split, root / "gtFine" / split
    masks = pair_files(images, targets, end="_leftImg8bit", target_end="_gtFine_labelIds")
    return MaskSplit(split, root, *masks, class_names.CITYSCAPES, class_ids.cityscapes_ids())


def _read_coco_stuff(root: Path, split: str) -> MaskSplit:
    # Some tools write copies without gaps beside the official maps; these keep their numbers.
    images, masks, end = _pair_coco(root, split, ("_labelTrainIds",))
    ids = class_ids.plain_ids(171) if end else class_ids.coco_stuff_ids()
    return MaskSplit(split, root, images, masks, class_names.COCO_STUFF, ids)


def _read_coco_object(root: Path, split: str) -> MaskSplit:
    images, masks, end = _pair_coco(root, split, ("_instanceTrainIds", "_labelTrainIds"))
    ids = class_ids.coco_object_ids(gaps=not end)
    if end == "_instanceTrainIds":
        ids = class_ids.plain_ids(81)
    classes = ("background", *class_names.COCO_THINGS)
    return MaskSplit(split, root, images, masks, classes, ids)


def _pair_coco(
    root: Path, split: str, ends: Sequence[str]
) -> tuple[tuple[Path, ...], tuple[Path, ...], str]:
    """Pair the images of COCO with the first kind of masks there is; also how their names end."""
    part = {"train": "train2017", "val": "val2017"}.get(split, split)
    targets = root / "annotations" / part
    end = next((end for end in ends if next(targets.glob(f"*{end}.png"), None)), "")
    return *pair_files(root / "images" / part, targets, target_end=end), end


def split_names(split: str) -> tuple[str, ...]:
    """Give the folder names that a split may have, its own first."""
    known = next((names for names in (TRAIN_NAMES, TEST_NAMES) if split in names), ())
    return tuple(dict.fromkeys((split, *known)))


def _read_folders(root: Path, split: str) -> MaskSplit:
    """Pair images/ with masks/; without folders for the splits every fifth image is for testing."""
    for name in split_names(split):
        folders = _find_folders(root, name)
        if folders:
            return _with_classes(root, split, *pair_files(*folders))
    folders = _find_folders(root, None)
    if not folders:
        raise ImageError(f"'{root}' has no split '{split}' with images and masks.")
    testing = split in TEST_NAMES
    images, masks = pair_files(*folders)
    kept = [i for i in range(len(images)) if (i % 5 == 4) == testing]
    if not kept:
        raise ImageError(f"'{folders[0]}' holds {len(images)} images; a split needs at least 5.")
    chosen = tuple(images[i] for i in kept), tuple(masks[i] for i in kept)
    return _with_classes(root, split, *chosen, all_masks=masks)


def _find_folders(root: Path, split: str | None) -> tuple[Path, Path] | None:
    """Find train/images beside train/masks, or images/train beside masks/train."""
    for masks in MASK_FOLDERS:
        pairs = [(root / "images", root / masks)]
        if split is not None:
            pairs = [
                (root / split / "images", root / split / masks),
                (root / "images" / split, root / masks / split),
            ]
        for pair in pairs:
            if all(folder.is_dir() for folder in pair):
                return pair
    return None


def _with_classes(
    root: Path,
    split: str,
    images: tuple[Path, ...],
    masks: tuple[Path, ...],
    *,
    all_masks: Sequence[Path] = (),
) -> MaskSplit:
    """Take the classes from classes.txt, or else from the masks of the training images."""
    listing = root / "classes.txt"
    if listing.is_file():
        names = tuple(line.strip() for line in read_lines(listing))
    else:
        if split in TRAIN_NAMES or all_masks:
            source: Sequence[Path] = all_masks or masks
        else:
            source = _read_folders(root, "train").masks
        highest, where = max((_highest_class(path), path) for path in source)
        if highest >= MOST_CLASSES:
            raise ImageError(
                f"the mask '{where}' holds the number {highest}, which would make {highest + 1}"
                " classes. Masks hold class numbers from 0 and 255 for void; list the classes in"
                " classes.txt if there are so many."
            )
        names = class_ids.default_names(1 + highest)
    return MaskSplit(split, root, images, masks, names, class_ids.plain_ids(len(names)))


def _highest_class(path: Path) -> int:
    values = read_gray(path, "a mask holds one class number per pixel")
    classes = values[values != 255]
    return int(classes.max()) if classes.size else 0


def pair_files(
    images: Path,
    targets: Path,
    *,
    end: str = "",
    target_end: str = "",
    suffixes: Sequence[str] = MASK_SUFFIXES,
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Pair each image of a folder with the file of the same name in another, subfolders too.

    Args:
        images: Folder of images.
        targets: Folder of masks or depth maps.
        end: End of the image names, before the suffix.
        target_end: End of the target names, before the suffix.
        suffixes: Suffixes of the targets, in order of preference.
    """
    found = [Path(str(image.source)) for image in find_images(images)]
    kept = [path for path in found if path.stem.endswith(end)]
    if not kept:
        raise ImageError(f"'{images}' holds no image whose name ends with '{end}'.")
    return tuple(kept), tuple(
        _find_target(path, images, targets, end, target_end, suffixes) for path in kept
    )


def _find_target(
    image: Path, images: Path, targets: Path, end: str, target_end: str, suffixes: Sequence[str]
) -> Path:
    stem = image.stem[: len(image.stem) - len(end)] + target_end
    base = targets / image.relative_to(images).parent
    for suffix in suffixes:
        if (base / f"{stem}{suffix}").is_file():
            return base / f"{stem}{suffix}"
    raise ImageError(f"'{image}' has no '{base / stem}{suffixes[0]}'. Add it, or remove the image.")


def _read_list(
    root: Path, split: str, lists: str, targets: str
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Pair the images that a text file lists with their masks."""
    listing = root / lists / f"{split}.txt"
    images, masks = [], []
    for name in read_names(listing):
        if Path(name).name != name:  # a list from elsewhere must not reach out of the folder
            raise ImageError(f"'{listing}' holds '{name}'; only plain names belong into a list.")
        paths = (root / "JPEGImages" / f"{name}{suffix}" for suffix in IMAGE_SUFFIXES)
        image = next((path for path in paths if path.is_file()), None)
        if image is None:
            raise ImageError(
                f"'{root / 'JPEGImages' / name}.jpg' is in '{listing}', but does not exist."
            )
        images.append(image)
        masks.append(_find_target(image, root / "JPEGImages", root / targets, "", "", (".png",)))
    return tuple(images), tuple(masks)


LAYOUTS: dict[str, Callable[[Path, str], MaskSplit]] = {
    "voc": _read_voc,
    "voc20": _read_voc20,
    "ade20k": _read_ade20k,
    "cityscapes": _read_cityscapes,
    "coco-stuff": _read_coco_stuff,
    "coco-object": _read_coco_object,
    "pascal-context": _read_context,
    "pascal-context-59": _read_context59,
    "folders": _read_folders,
}
MARKERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("cityscapes", ("leftImg8bit", "gtFine")),
    ("pascal-context", ("JPEGImages", "SegmentationClassContext")),
    ("voc", ("JPEGImages", "SegmentationClass")),
    ("ade20k", ("images/training", "annotations/training")),
    ("coco-stuff", ("images/train2017", "annotations/train2017")),
    ("coco-stuff", ("images/val2017", "annotations/val2017")),
    ("ade20k", ("images/validation", "annotations/validation")),
)
