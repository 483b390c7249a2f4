"""The folders that are served, and nothing outside them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clearvit.errors import ImageError
from clearvit.images.find import SUFFIXES
from clearvit.microscopy.server.refusals import NotFound

OUTSIDE = "'{0}' is not in the folders that are served."


@dataclass(frozen=True)
class Listing:
    """Some of what a folder holds."""

    address: str
    folders: tuple[str, ...]  # addresses of the folders in it
    images: tuple[str, ...]  # addresses of the images, those that were asked for
    total: int  # images in all

    def to_json(self) -> dict[str, Any]:
        """Give the listing as plain JSON."""
        parts = {"folders": list(self.folders), "images": list(self.images)}
        return {"address": self.address, **parts, "total": self.total}


class Folders:
    """Files below some folders, by addresses such as "photos/summer/1.jpg".

    The first part of an address names a folder, the rest is a path in it. An address that leads out
    of its folder, by ".." or by a link, is refused like one that does not exist, so that an answer
    says nothing about other files.
    """

    def __init__(self, folders: Sequence[str | Path]) -> None:
        """Take folders that exist.

        Raises:
            ImageError: One of them is no folder.
        """
        self._roots: dict[str, Path] = {}
        for folder in folders:
            root = Path(folder).resolve()
            if not root.is_dir():
                raise ImageError(f"'{folder}' is not a folder; give folders of images to serve.")
            name, number = root.name or "folder", 2
            while name in self._roots:
                name, number = f"{root.name} {number}", number + 1
            self._roots[name] = root

    @property
    def names(self) -> tuple[str, ...]:
        """The addresses of the folders themselves."""
        return tuple(self._roots)

    def find(self, address: str) -> Path:
        """Give the file or folder at an address.

        Raises:
            NotFound: There is none, it is hidden, or it lies outside the folders.
        """
        name, _, rest = address.partition("/")
        root = self._roots.get(name)
        parts = [part for part in rest.split("/") if part]
        refused = NotFound(OUTSIDE.format(address[:200]))
        if root is None or "\\" in address or "\0" in address:
            raise refused
        if any(part.startswith(".") for part in parts):  # "..", and what is hidden
            raise refused
        try:
            found = root.joinpath(*parts).resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            raise refused from None
        if found != root and root not in found.parents:
            raise refused
        return found

    def find_image(self, address: str) -> Path:
        """Give the image file at an address; other files are refused."""
        found = self.find(address)
        if not found.is_file() or found.suffix.lower() not in SUFFIXES:
            raise NotFound(OUTSIDE.format(address[:200]))
        return found

    def address_of(self, path: str) -> str | None:
        """Give the address of a file, or None if it does not lie in the folders."""
        if not path:
            return None
        try:
            found = Path(path).resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            return None
        for name, root in self._roots.items():
            if root in found.parents:
                address = f"{name}/{found.relative_to(root).as_posix()}"
                return None if any(part.startswith(".") for part in address.split("/")) else address
        return None

    def list(self, address: str, start: int, count: int) -> Listing:
        """List a folder: its folders, and `count` of its images from number `start` on."""
        if not address:
            return Listing("", self.names, (), 0)
        folder = self.find(address)
        if not folder.is_dir():
            raise NotFound(OUTSIDE.format(address[:200]))
        folders, images = [], []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.startswith(".") or not _is_text(entry.name):
                        continue
                    if _is_folder(entry):
                        folders.append(entry.name)
                    elif os.path.splitext(entry.name)[1].lower() in SUFFIXES:
                        images.append(entry.name)
        except OSError as error:
            raise NotFound(f"'{address}' cannot be listed: {error.strerror}.") from error
        place = address.rstrip("/")
        shown = sorted(images)[start : start + count]
        return Listing(
            place,
            tuple(f"{place}/{name}" for name in sorted(folders)),
            tuple(f"{place}/{name}" for name in shown),
            len(images),
        )


def _is_text(name: str) -> bool:
    """Tell whether a name can be written in JSON; names of files may be any bytes."""
    return name.isprintable() and "\\" not in name


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False
