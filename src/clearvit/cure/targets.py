"""What the student learns from: clean tokens of every picture, computed once and kept on disk.

One file per picture, renamed when it is whole: a killed run continues with the first missing one,
and several processes share the work without talking to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from clearvit.backbones.dense_clip import DenseClip
from clearvit.backbones.preprocessing import Size
from clearvit.backbones.vit import VitBackbone
from clearvit.cure.denoise import Sampler, denoise
from clearvit.errors import StoreError
from clearvit.files import remove_leftovers, why_not_written, written_whole
from clearvit.images import Picture, read_image
from clearvit.training.loop import half_precision

Report = Callable[[int, int], None]


@dataclass(frozen=True)
class Target:
    """Clean tokens of one picture, in float16 as they lie on disk."""

    patches: Tensor  # (N, D)
    cls: Tensor  # (C,) of the untouched picture: what must not change; (0,) without one
    variance: Tensor  # (N,) of each patch over its views


@dataclass(frozen=True)
class TargetConfig:
    """Which views, and how much of their averages to keep."""

    size: Size  # (height, width) in pixels
    views: int = 10
    sampler: Sampler = "lattice"
    fraction: float = 0.15  # largest shift, as a share of the grid
    seed: int = 0
    chunk: int = 5  # views per forward pass
    limit: float | None = None  # gigabytes on disk; 0 keeps nothing; None keeps everything
    half: bool = False  # run the teacher in bfloat16


class Targets:
    """Clean tokens of some pictures by number."""

    def __init__(
        self,
        teacher: VitBackbone,
        pictures: Sequence[Picture],
        folder: Path,
        config: TargetConfig,
    ) -> None:
        self.teacher, self.pictures, self.folder, self.config = teacher, pictures, folder, config
        height, width = config.size
        grid = (height // teacher.patch[0]) * (width // teacher.patch[1])
        values = grid * (teacher.width + 1) + teacher.network.embed_dim
        self.bytes_each = int(2 * values + 512)
        most = len(pictures)
        if config.limit is not None:
            most = min(most, int(config.limit * 1e9 // self.bytes_each))
        self.kept = most

    @property
    def bytes(self) -> int:
        """Size on disk when all are there."""
        return self.kept * self.bytes_each

    def missing(self) -> list[int]:
        """Pictures that are to be kept and are not there yet."""
        return [number for number in range(self.kept) if not self._path(number).exists()]

    def prepare(
        self, report: Report | None = None, *, process: int = 0, processes: int = 1
    ) -> None:
        """Compute what is missing, or this process's share of it."""
        remove_leftovers(self.folder)
        missing = self.missing()
        done = self.kept - len(missing)
        for count, number in enumerate(missing[process::processes], 1):
            self._write(number, self._computed(number))
            if report:
                report(min(done + count * processes, self.kept), self.kept)

    def __getitem__(self, number: int) -> Target:
        if number >= self.kept:
            return self._computed(number)
        path = self._path(number)
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise StoreError(
                f"cannot read '{path}': {error}. Delete it and run the same command again."
            ) from error
        return Target(**tensors)

    def pixels(self, number: int) -> Tensor:
        """The picture as the network sees it, (3, height, width)."""
        image = read_image(self.pictures[number].source)
        return self.teacher.preprocessing(image, self.config.size)

    def _computed(self, number: int) -> Target:
        config, teacher = self.config, self.teacher
        pixels = self.pixels(number)[None].to(teacher.device, teacher.dtype)
        with half_precision(teacher.device, config.half):
            clean = denoise(
                teacher,
                pixels,
                views=config.views,
                sampler=config.sampler,
                fraction=config.fraction,
                seed=config.seed + number,  # other views for other pictures: errors average out
                batch=config.chunk,
            )
            cls = self._class(pixels)
        assert clean.variance is not None
        return Target(clean.patches[0].half(), cls, clean.variance[0].half())

    def _class(self, pixels: Tensor) -> Tensor:
        if "class" not in self.teacher.prefix_names:
            return torch.zeros(0).half()
        plain = self.teacher.plain if isinstance(self.teacher, DenseClip) else self.teacher
        with torch.no_grad():
            found = plain.forward(pixels).cls
        assert found is not None
        return found[0].half()

    def _write(self, number: int, target: Target) -> None:
        tensors = {name: t.cpu().contiguous() for name, t in vars(target).items()}
        try:
            with written_whole(self._path(number)) as temporary:
                save_file(tensors, temporary)
        except (OSError, SafetensorError) as error:
            raise StoreError(
                f"cannot write '{self._path(number)}': {why_not_written(error)}. What is there is"
                " kept. Make room and run the same command, or keep less: --cache 5 (gigabytes),"
                " --cache 0 (nothing)."
            ) from error

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.safetensors"
