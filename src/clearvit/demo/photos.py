"""Photos for the demo: some that ship inside installed packages, or some of the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image

from clearvit.demo.own_photos import read_own_photos, shrink
from clearvit.demo.stroke_examples import ABSENT, MIDDLE, PERSON, Strokes, write_examples
from clearvit.errors import ImageError, StoreError
from clearvit.files import written_whole
from clearvit.images import Skipped, read_image

PACKAGED = {
    "skimage": (
        "data/astronaut.png",
        "data/coffee.png",
        "data/motorcycle_left.png",
        "data/rocket.jpg",
        "data/chelsea.png",
    ),
    "matplotlib": ("mpl-data/sample_data/grace_hopper.jpg",),
    "sklearn": ("datasets/images/flower.jpg", "datasets/images/china.jpg"),
}
HELD = ("chelsea", "china", "flower")  # of these; nothing is learned from them
EXAMPLES = {"astronaut": PERSON, "coffee": ABSENT, "motorcycle_left": ABSENT}  # strokes on them
LEAST, MOST = 0.55, 0.85  # sides of a part, as shares of the photo's


class Folders(NamedTuple):
    """Where the photos are."""

    everything: Path
    learn: Path  # to cure on
    held: Path  # kept out of it
    query: Path  # a part of a photo that was kept out, mirrored
    strokes: Path  # a few strokes on some photos
    segment: Path  # photos to segment by them
    skipped: tuple[Skipped, ...] = ()  # files of the user's that are no images


def prepare_photos(out: Path, images: Path | None, *, parts: int, most: int = 48) -> Folders:
    """Lay out the photos; what is there already is left as it is.

    A handful of packaged photos is little to learn from, so `parts` are cut out of each. Of the
    user's own, up to `most` are copied, every sixth of them kept out.

    Raises:
        ImageError: There are too few photos.
        StoreError: The directory holds the photos of another demo.
    """
    place, held = out.parent, out / "held"
    examples = place / "examples" / "strokes.json"
    segment = held if images is not None else place / "photos"
    folders = Folders(out, out / "learn", held, place / "query.png", examples, segment)
    if images is None:
        _lay_out_packaged(folders, parts)
        return folders
    photos, skipped = read_own_photos(images, most)
    kept = dict(list(photos.items())[::6])
    learn = {name: photo for name, photo in photos.items() if name not in kept}
    _copy(folders, learn, kept)
    _draw(dict([next(iter(kept.items()))]), folders.strokes)
    return folders._replace(skipped=tuple(skipped))


def _lay_out_packaged(folders: Folders, parts: int) -> None:
    photos = {path.stem: shrink(read_image(path)) for path in packaged_photos()}
    kept = {name: photos[name] for name in sorted(photos) if name in HELD}
    kept = kept or dict(list(photos.items())[:1])
    learn: dict[str, Image.Image] = {}
    for name, photo in photos.items():
        if name not in kept:
            learn |= _cut(name, photo, parts)
    _copy(folders, learn, kept)
    drawn = {name: photo for name, photo in photos.items() if name in EXAMPLES}
    _draw(drawn or dict(list(photos.items())[:1]), folders.strokes)
    for name, photo in photos.items():
        if name not in EXAMPLES:
            _keep(photo, folders.segment / f"{name}.png")


def _copy(
    folders: Folders, learn: Mapping[str, Image.Image], kept: Mapping[str, Image.Image]
) -> None:
    """Copy photos by name to their folders, and a mirrored part of one as the query."""
    for folder, photos in ((folders.learn, learn), (folders.held, kept)):
        there = {path.stem for path in folder.glob("*.png")}
        if not there <= set(photos):
            raise StoreError(
                f"'{folders.everything.parent}' is a demo of other images. Choose another --out,"
                " or remove it."
            )
    for folder, photos in ((folders.learn, learn), (folders.held, kept)):
        for name, photo in photos.items():
            _keep(photo, folder / f"{name}.png")
    part = _part(next(iter(kept.values())), (0.5, 0.5, 0.5))
    _keep(part.transpose(Image.Transpose.FLIP_LEFT_RIGHT), folders.query)


def _draw(photos: Mapping[str, Image.Image], out: Path) -> None:
    """Copy photos and draw strokes on them."""
    drawn: dict[Path, Strokes] = {}
    for name, photo in photos.items():
        copy = out.parent / f"{name}.png"
        _keep(photo, copy)
        drawn[copy] = EXAMPLES.get(name, MIDDLE)
    write_examples(drawn, out)


def packaged_photos() -> list[Path]:
    """Find the packaged photos, without importing the packages.

    Raises:
        ImageError: None of the packages is installed.
    """
    found = []
    for package, files in PACKAGED.items():
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            found += [path for f in files if (path := Path(spec.origin).parent / f).exists()]
    if len(found) < 2:
        raise ImageError(
            "no photos are installed. Run: pip install 'clearvit[demo]', or pass --images FOLDER."
        )
    return found


def _cut(name: str, image: Image.Image, count: int) -> dict[str, Image.Image]:
    """Cut parts at random places, every second one mirrored."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    parts = {}
    for number in range(1, count + 1):
        part = _part(image, torch.rand(3, generator=generator).tolist())
        if number % 2 == 0:
            part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        parts[f"{name}-{number}"] = part
    return parts


def _part(image: Image.Image, where: Sequence[float]) -> Image.Image:
    """Cut a part; size, left and top are numbers in 0..1 between the least and the most."""
    share = LEAST + (MOST - LEAST) * where[0]
    width, height = round(image.width * share), round(image.height * share)
    left, top = round(where[1] * (image.width - width)), round(where[2] * (image.height - height))
    return image.crop((left, top, left + width, top + height))


def _keep(image: Image.Image, target: Path) -> None:
    if target.exists():
        return
    with written_whole(target) as temporary:
        image.save(temporary, "PNG")
