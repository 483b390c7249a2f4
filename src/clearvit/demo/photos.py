"""Photos for the demo: some that ship inside installed packages, or some of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image

from clearvit.demo.stroke_examples import ABSENT, MIDDLE, PERSON, Strokes, write_examples
from clearvit.errors import ImageError
from clearvit.files import written_whole
from clearvit.images import find_images, read_image

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
LARGEST = 1024  # pixels of the longer side of a copy


class Folders(NamedTuple):
    """Where the photos are."""

    everything: Path
    learn: Path  # to cure on
    held: Path  # kept out of it
    query: Path  # a part of a photo that was kept out, mirrored
    strokes: Path  # a few strokes on some photos
    segment: Path  # photos to segment by them


def prepare_photos(out: Path, images: Path | None, *, parts: int, most: int = 48) -> Folders:
    """Lay out the photos; what is there already is left as it is.

    A handful of packaged photos is little to learn from, so `parts` are cut out of each. Of the
    user's own, up to `most` are copied, every sixth of them kept out.
    """
    place, held = out.parent, out / "held"
    examples = place / "examples" / "strokes.json"
    segment = held if images is not None else place / "photos"
    folders = Folders(out, out / "learn", held, place / "query.png", examples, segment)
    if images is None:
        photos = packaged_photos()
        kept = [photo for photo in photos if photo.stem in HELD] or photos[:1]
        for photo in photos:
            if photo not in kept:
                _cut(photo, folders.learn, parts)
    else:
        photos = _some(images, most)
        kept = photos[::6]
        for photo in photos:
            if photo not in kept:
                _keep(_small(photo), folders.learn / f"{photo.stem}.png")
    for photo in kept:
        _keep(_small(photo), folders.held / f"{photo.stem}.png")
    mirrored = _part(_small(kept[0]), (0.5, 0.5, 0.5)).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    _keep(mirrored, folders.query)
    if images is None:
        _draw([photo for photo in photos if photo.stem in EXAMPLES] or photos[:1], folders.strokes)
        for photo in photos:
            if photo.stem not in EXAMPLES:
                _keep(_small(photo), folders.segment / f"{photo.stem}.png")
    else:
        _draw(kept[:1], folders.strokes)
    return folders


def _draw(photos: Sequence[Path], out: Path) -> None:
    """Copy photos and draw strokes on them."""
    drawn: dict[Path, Strokes] = {}
    for photo in photos:
        copy = out.parent / f"{photo.stem}.png"
        _keep(_small(photo), copy)
        drawn[copy] = EXAMPLES.get(photo.stem, MIDDLE)
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


def _some(images: Path, most: int) -> list[Path]:
    found = [Path(str(image.source)) for image in find_images(images)]
    if len(found) < 12:
        raise ImageError(f"'{images}' holds {len(found)} images; the demo needs at least 12.")
    step = max(1, len(found) // most)
    return found[::step][:most]


def _cut(photo: Path, out: Path, count: int) -> None:
    """Cut parts at random places, every second one mirrored."""
    generator = torch.Generator().manual_seed(sum(photo.stem.encode()))
    image = _small(photo)
    for number in range(1, count + 1):
        part = _part(image, torch.rand(3, generator=generator).tolist())
        if number % 2 == 0:
            part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        _keep(part, out / f"{photo.stem}-{number}.png")


def _part(image: Image.Image, where: Sequence[float]) -> Image.Image:
    """Cut a part; size, left and top are numbers in 0..1 between the least and the most."""
    share = LEAST + (MOST - LEAST) * where[0]
    width, height = round(image.width * share), round(image.height * share)
    left, top = round(where[1] * (image.width - width)), round(where[2] * (image.height - height))
    return image.crop((left, top, left + width, top + height))


def _small(photo: Path) -> Image.Image:
    image = read_image(photo)
    image.thumbnail((LARGEST, LARGEST))
    return image


def _keep(image: Image.Image, target: Path) -> None:
    if target.exists():
        return
    with written_whole(target) as temporary:
        image.save(temporary, "PNG")
