"""Clean tokens on disk: one file per image, renamed when it is whole.

A killed run continues with the first missing file, and several processes share the work without
talking to each other. A file holds the resized image too, so an image is decoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from clearvit.errors import ImageError, StoreError
from clearvit.files import read_json, remove_leftovers, write_json, written_whole
from clearvit.images import ImageSource, Skipped
from clearvit.options import Size
from clearvit.progress import Meter, Progress
from clearvit.training.held_out import check_any_readable, read_large_enough

STAGE = "targets"


@dataclass(frozen=True)
class Target:
    """An image and its clean tokens, in float16 as they lie on disk."""

    image: Tensor  # (3, height, width) uint8, resized
    patches: Tensor  # (N, D)
    cls: Tensor  # (C,) of the untouched image: what must not change; (0,) without one


Compute = Callable[[Image.Image, int], Target]


class TargetCache:
    """Targets of images by number; those that do not fit are computed again.

    Args:
        sources: The images, readable or not.
        folder: The directory.
        compute: Makes the target of an image.
        patch: (height, width) in pixels; smaller images are skipped.
        bytes_each: Size of a target on disk.
        limit_gb: Gigabytes to keep; None keeps all.
    """

    def __init__(
        self,
        sources: Sequence[ImageSource],
        folder: Path,
        compute: Compute,
        *,
        patch: Size,
        bytes_each: int,
        limit_gb: float | None,
    ) -> None:
        self.sources, self.folder, self.compute, self.patch = sources, folder, compute, patch
        self.bytes_each = bytes_each
        fitting = len(sources) if limit_gb is None else int(limit_gb * 1e9 // bytes_each)
        self.kept = min(len(sources), fitting)

    def missing(self) -> int:
        """Count the images that are to be kept and are neither there nor known to be bad."""
        return sum(not self._done(number) for number in range(self.kept))

    def prepare(
        self, progress: Progress | None = None, *, process: int = 0, processes: int = 1
    ) -> None:
        """Decode every image, or this process's part of them; compute and write its target."""
        remove_leftovers(self.folder)
        meter = Meter(progress, len(self.sources), STAGE)
        for number in range(process, len(self.sources), processes):
            if not self._done(number):
                self._prepare(number)
            meter.advance(processes)

    def split_readable(self) -> tuple[list[int], list[Skipped]]:
        """List the usable images by number, and the others with the reason, once all are done."""
        bad = [n for n in range(len(self.sources)) if self._mark(n).exists()]
        skipped = [Skipped(**read_json(self._mark(number))) for number in bad]
        good = sorted(set(range(len(self.sources))) - set(bad))
        check_any_readable(len(good), skipped)
        return good, skipped

    def __getitem__(self, number: int) -> Target:
        if number >= self.kept:
            return self.compute(self.read(number), number)
        path = self._path(number)
        try:
            return Target(**load_file(path))
        except (OSError, SafetensorError) as error:
            raise StoreError(
                f"cannot read '{path}': {error}. Delete it and run the same command again."
            ) from error

    def read(self, number: int) -> Image.Image:
        """Decode an image."""
        return read_large_enough(self.sources[number], self.patch)

    def _prepare(self, number: int) -> None:
        try:
            image = self.read(number)
        except ImageError as error:
            bad = {"name": self.sources[number].name, "reason": str(error)}
            write_json(self._mark(number), bad)
            return
        if number < self.kept:
            self._write(number, self.compute(image, number))

    def _write(self, number: int, target: Target) -> None:
        tensors = {name: t.cpu().contiguous() for name, t in vars(target).items()}
        advice = (
            "What is there is kept. Make room and run the same command, or keep less:"
            " --target-cache-gb 5 (gigabytes), --target-cache-gb 0 (nothing)."
        )
        with written_whole(self._path(number), advice) as temporary:
            save_file(tensors, temporary)

    def _done(self, number: int) -> bool:
        return self._path(number).exists() or self._mark(number).exists()

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.safetensors"

    def _mark(self, number: int) -> Path:
        return self.folder / f"{number:06d}.skipped.json"


FILES = tuple(f"{'[0-9]' * 6}*.{end}" for end in ("safetensors", "skipped.json"))
"""Patterns of all that a folder of targets holds beside its plan."""
