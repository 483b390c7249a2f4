"""How data sets number their classes: (number in the file, class) pairs."""

from __future__ import annotations

from clearvit.datasets.splits import VOID

Ids = tuple[tuple[int, int], ...]

# The 19 label ids of Cityscapes that are evaluated, in the order of the train ids.
_CITYSCAPES_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
# Categories of COCO that were never annotated, as numbers in the files (category - 1).
_COCO_GAPS = frozenset({11, 25, 28, 29, 44, 65, 67, 68, 70, 82, 90})

_COCO_THINGS = 80  # classes of COCO that are objects, which come first


def plain_ids(count: int, void: int = 255) -> Ids:
    """Map each number to itself; `void` is ignored."""
    return *((i, i) for i in range(count)), (void, VOID)


def shifted_ids(count: int) -> Ids:
    """Map number 1 to class 0 and so on; 0 and 255 are ignored."""
    return (0, VOID), *((i + 1, i) for i in range(count)), (255, VOID)


def cityscapes_ids() -> Ids:
    """Map label ids to the 19 train ids; all others, and 255 for -1, are ignored."""
    train_ids = {label: train for train, label in enumerate(_CITYSCAPES_IDS)}
    return *((label, train_ids.get(label, VOID)) for label in range(34)), (255, VOID)


def coco_stuff_ids() -> Ids:
    """Map the 182 numbers of the official pixel maps to 171 classes without gaps."""
    used = [number for number in range(182) if number not in _COCO_GAPS]
    return *((number, index) for index, number in enumerate(used)), (255, VOID)


def coco_object_ids(*, gaps: bool) -> Ids:
    """Map objects to classes 1 to 80, stuff and unlabelled pixels to class 0.

    Args:
        gaps: The files hold the official 182 numbers, not the 171 without gaps.
    """
    if gaps:
        inner = coco_stuff_ids()[:-1]
    else:
        inner = tuple((i, i) for i in range(171))
    return *((n, index + 1 if index < _COCO_THINGS else 0) for n, index in inner), (255, 0)


def default_names(count: int) -> tuple[str, ...]:
    """Name classes by their numbers."""
    return tuple(f"class {i}" for i in range(count))
