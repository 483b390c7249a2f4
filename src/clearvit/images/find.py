"""A folder, file, pattern or list of images as a list of sources with unique names."""

from __future__ import annotations

import errno
import fnmatch
import glob
import hashlib
import os
import stat
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TypeAlias, TypeVar

from PIL import Image

from clearvit.errors import ImageError, closest
from clearvit.images.containers import (
    expand_braces,
    find_containers,
    list_places,
    list_url,
    refuse_compressed,
)
from clearvit.images.image_places import is_container, is_plain_file, split_place, stat_place
from clearvit.images.remote import is_url
from clearvit.images.walk import walk

# Fixed, so that a folder holds the same images whichever plugins are installed.
SUFFIXES: frozenset[str] = frozenset(
    ".jpg .jpeg .jpe .jfif .mpo .png .apng .bmp .dib .gif .webp .avif .tif .tiff "
    ".ppm .pgm .pbm .pnm .pfm .jp2 .j2k .jpx .tga .pcx .sgi .qoi .heic .heif".split()
)

END = 1 << 16  # bytes at either end of a file that tell one content from another


@dataclass(frozen=True)
class ImageSource:
    """One image to read.

    Attributes:
        name: Unique within its collection: the path relative to the folder, the path as given, or
            the index in a list ("image-000007"), always with "/" and always valid Unicode.
        source: Where it is; nothing says that it can be read.
    """

    name: str
    source: str | Path | Image.Image


# Items are checked when they are read, so that callers may pass on what they were given.
ImageInput: TypeAlias = "str | os.PathLike[str] | Image.Image | Iterable[object]"


T = TypeVar("T")


def spread_evenly(items: Sequence[T], count: int) -> list[T]:
    """Take at most `count` items, evenly over all of them."""
    few = min(count, len(items))
    return [items[i * len(items) // few] for i in range(few)]


def find_images(source: ImageInput) -> list[ImageSource]:
    """List the images of a folder, a file, a glob pattern, a URL, a tar, a table, or a list.

    A folder is searched with all its subfolders for the suffixes in `SUFFIXES`, hidden entries
    apart. A file, and whatever a pattern matches or a list holds, is taken whatever its suffix.
    Folders and patterns are sorted by name, lists keep their order. Image files are not opened
    here; a tar (WebDataset) or a table (Parquet, Arrow, Lance) is, and stands for what it holds. A
    folder without image files stands for the tars and tables in it.

    Args:
        source: A path, a pattern with `*`, `?`, `[` or `**`, a range of shards as
            "train-{000..099}.tar", a URL such as "s3://bucket/photos", a Pillow image, or paths and
            Pillow images (or sources found before) in any iterable with an order.

    Raises:
        ImageError: There is nothing to read.
    """
    if isinstance(source, Image.Image):
        return _from_items([source])
    if isinstance(source, (str, os.PathLike)):
        return _from_path(os.fspath(source))
    # Bytes would iterate as numbers, and the order of a set differs from run to run.
    unfit = isinstance(source, (bytes, bytearray, memoryview, set, frozenset))
    if unfit or not isinstance(source, Iterable):
        raise ImageError(
            f"images cannot be a {type(source).__name__}; "
            "give a folder, a file, a pattern like 'photos/*.jpg', or a list of paths or PIL images"
        )
    return _from_items(list(source))


def _from_path(path: str) -> list[ImageSource]:
    if not path:
        raise ImageError("the path of the images is empty; give '.' for the current folder")
    if is_url(path):
        return _name_uniquely(*list_url(path, _is_image))
    if os.path.isdir(path) and not is_container(path):
        return _from_folder(path)
    if _exists(path):
        refuse_compressed(path)
        return _from_files([PurePath(path).name if is_container(path) else path], [path])
    if glob.has_magic(path):
        return _from_pattern(path)
    if os.path.lexists(split_place(path)[0]):  # one member of a tar, or one row
        return _name_uniquely([PurePath(path).as_posix()], [path])
    shards = expand_braces(path)
    if shards:
        return _from_files([PurePath(shard).as_posix() for shard in shards], shards)
    raise ImageError(f"{path!r} does not exist{_hint(path)}")


def _exists(path: str) -> bool:
    try:
        return os.path.lexists(path)  # a broken link is there: reading it reports it
    except ValueError:  # a null byte
        return False


def _from_files(names: Sequence[str], files: Sequence[str]) -> list[ImageSource]:
    """Take files as they are, and what is in tars and tables."""
    names = [PurePath(name).as_posix() for name in names]
    return _name_uniquely(*list_places(names, files, _is_image))


def _from_folder(folder: str) -> list[ImageSource]:
    found, others = [], []
    try:
        for name in walk(folder):
            # What is a folder here could not be listed; taken along, it is reported when read.
            if _is_image(name) or os.path.isdir(os.path.join(folder, name)):
                found.append(name)
            else:
                others.append(name)
    except OSError as error:
        raise ImageError(
            f"the folder {folder!r} cannot be listed ({error.strerror}); check its permissions"
        ) from error
    found = found or find_containers(others)
    if not found:
        for name in others[:1]:
            refuse_compressed(name)
        count = len(others)
        raise ImageError(
            f"no images in {folder!r} (looked for .jpg, .png, .webp, .tif and {len(SUFFIXES) - 4} "
            f"more suffixes in all subfolders; {count} other file{'s' * (count != 1)} ignored); "
            "give a folder that holds images, or a list of files to take them whatever their suffix"
        )
    found.sort(key=_order)
    return _from_files(found, [os.path.join(folder, name) for name in found])


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES


def _order(name: str) -> tuple[str, str]:
    # Some file systems store é as e and an accent: without normalizing, order would depend on it.
    return unicodedata.normalize("NFC", name), name


def _from_pattern(pattern: str) -> list[ImageSource]:
    parts = PurePath(pattern).parts
    matches = _deep_matches(parts) if "**" in parts else glob.glob(pattern)
    found = {
        PurePath(match).as_posix(): match
        for match in matches
        if not os.path.isdir(match) or is_container(match)
    }
    if not found:
        raise ImageError(
            f"no file matches {pattern!r}; use '**' for any depth, as in 'photos/**/*.jpg', "
            f"or give a folder (relative paths start at {os.getcwd()!r})"
        )
    names = sorted(found, key=_order)
    return _from_files(names, [found[name] for name in names])


def _deep_matches(parts: Sequence[str]) -> list[str]:
    """Match a pattern with "**"; `glob` itself runs round in loops of links."""
    first = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    base = os.path.join(*parts[:first]) if first else ""
    if not os.path.isdir(base or "."):
        return []
    names = walk(base or ".")
    return [os.path.join(base, name) for name in names if _matches(name.split("/"), parts[first:])]


def _matches(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    if not patterns:
        return not parts
    if patterns[0] == "**":
        return any(_matches(parts[i:], patterns[1:]) for i in range(len(parts) + 1))
    return (
        bool(parts) and fnmatch.fnmatch(parts[0], patterns[0]) and _matches(parts[1:], patterns[1:])
    )


def _from_items(items: Sequence[object]) -> list[ImageSource]:
    if not items:
        raise ImageError("the list of images is empty; give at least one path or PIL image")
    names: list[str] = []
    sources: list[str | Path | Image.Image] = []
    for i, item in enumerate(items):
        if isinstance(item, ImageSource):
            names.append(item.name)
            sources.append(item.source)
        elif isinstance(item, Image.Image):
            names.append(f"image-{i:06d}")
            sources.append(item)
        elif isinstance(item, (str, os.PathLike)):
            names.append(PurePath(item).as_posix())
            sources.append(os.fspath(item))
        else:
            raise ImageError(
                f"item {i} of the images is a {type(item).__name__}; give paths or PIL images "
                "(PIL.Image.fromarray turns an array into one)"
            )
    return _name_uniquely(names, sources)


def _name_uniquely(
    names: Sequence[str], sources: Sequence[str | Path | Image.Image]
) -> list[ImageSource]:
    """Join names and sources; a name that repeats gets "#2", "#3" and so on."""
    taken: set[str] = set()
    repeats: dict[str, int] = {}
    images = []
    for name, source in zip(names, sources, strict=True):
        # Linux file names are bytes: what is not UTF-8 could not be printed or written as JSON.
        valid = unique = name.encode("utf-8", "replace").decode("utf-8")
        while unique in taken:
            repeats[valid] = repeats.get(valid, 1) + 1
            unique = f"{valid}#{repeats[valid]}"
        taken.add(unique)
        images.append(ImageSource(unique, source))
    return images


def _hint(path: str) -> str:
    """Name the closest neighbors of a missing path, or else where it was looked for."""
    parent, name = os.path.split(path.rstrip("/" + os.sep))
    try:
        neighbors = os.listdir(parent or ".")
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.ENOENT:
            return f": there is no folder {parent!r} either; check the path"
        return "; check the path"
    near = closest(name, neighbors, count=3)
    if near:
        return f" in {parent or '.'!r}.{near}"
    return "; check the path" + ("" if os.path.isabs(path) else f", it starts at {os.getcwd()!r}")


def listing_of(images: Sequence[ImageSource]) -> str:
    """Hash names and contents of the files, so that a changed folder is noticed.

    A file of up to 128 kB counts with all of its content, a larger one with its size, its time of
    change and its first and last 64 kB. The cost is one open and at most 128 kB per file: about a
    minute for a million files that lie in the cache of the system, two seeks each on a slow disk.
    """
    digest = hashlib.sha256()
    for image in images:
        digest.update(f"{image.name}\0".encode("utf-8", "surrogateescape"))
        digest.update(_content(image))
    return digest.hexdigest()


def _content(image: ImageSource) -> bytes:
    """Hash the size, head and tail of a file, or all pixels of an image in memory."""
    if isinstance(image.source, Image.Image):
        return hashlib.sha256(repr(image.source.size).encode() + image.source.tobytes()).digest()
    if not is_plain_file(os.fspath(image.source)):
        return repr(stat_place(os.fspath(image.source))).encode()
    try:
        status = os.stat(image.source)
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
            return b"no file"
        with open(image.source, "rb") as file:
            digest = hashlib.sha256(f"{status.st_size}\0".encode() + file.read(END))
            if status.st_size > 2 * END:
                digest.update(f"{status.st_mtime_ns}".encode())
                file.seek(-END, os.SEEK_END)
            digest.update(file.read(END))
    except (OSError, ValueError):
        return b"unreadable"  # broken links are met, and listed, when they are read
    return digest.digest()
