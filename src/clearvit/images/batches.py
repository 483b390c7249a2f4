"""Pictures to batches: decoding runs in threads, a bounded way ahead of whoever consumes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from PIL import Image

from clearvit.errors import ImageError
from clearvit.images.decode import read_image
from clearvit.images.find import Picture

T = TypeVar("T")


@dataclass(frozen=True)
class Skipped:
    """A picture that could not be used, and why in a few words."""

    name: str
    reason: str


@dataclass(frozen=True)
class Batch(Generic[T]):
    """Consecutive pictures, prepared.

    Attributes:
        names: Names of the good pictures, in the order of `items`.
        items: What `prepare` made of them; empty if every picture was bad.
        skipped: The bad pictures among those of this batch.
    """

    names: list[str]
    items: list[T]
    skipped: list[Skipped]


def batches(
    pictures: Sequence[Picture],
    prepare: Callable[[Image.Image], T],
    *,
    size: int,
    threads: int = 1,
    ahead: int = 2,
    strict: bool = False,
) -> Generator[Batch[T], None, None]:
    """Read and prepare pictures in threads and yield them in order.

    Batch k covers `pictures[k * size : (k + 1) * size]`, whichever of them are bad: a bad picture
    makes its batch smaller and moves no other, so a run can resume at any batch. Ending the
    iteration early (a break, or `close()`) waits for the pictures in work, at most `threads`,
    and ends the threads.

    Args:
        pictures: What to read.
        prepare: Makes an item of an upright RGB image, in a thread. Its `ImageError` marks the
            picture as bad; any other exception reaches the consumer.
        size: Pictures per batch.
        threads: Pictures decoded at the same time; more than one slows a network on the same CPU.
        ahead: Batches prepared while the consumer works on one; bounds the memory.
        strict: Raise at the first bad picture instead of skipping it.

    Raises:
        ImageError: A bad picture under `strict`, or a number below its minimum.
    """
    for option, value, least in (("size", size, 1), ("threads", threads, 1), ("ahead", ahead, 0)):
        if value < least:
            raise ImageError(f"{option} is {value}; give at least {least}")

    def item(picture: Picture) -> T:
        return prepare(read_image(picture.source))

    return _run(pictures, item, size=size, threads=threads, ahead=ahead, strict=strict)


def _run(
    pictures: Sequence[Picture],
    item: Callable[[Picture], T],
    *,
    size: int,
    threads: int,
    ahead: int,
    strict: bool,
) -> Generator[Batch[T], None, None]:
    pool = ThreadPoolExecutor(threads, thread_name_prefix="clearvit-images")
    waiting: deque[list[tuple[Picture, Future[T]]]] = deque()
    starts = iter(range(0, len(pictures), size))
    try:
        while True:
            # One more than `ahead`: the first of them is the batch the consumer asks for now.
            while len(waiting) <= ahead and (start := next(starts, None)) is not None:
                chosen = pictures[start : start + size]
                waiting.append([(picture, pool.submit(item, picture)) for picture in chosen])
            if not waiting:
                return
            # No variable holds the batch, so its memory is free once the consumer lets it go.
            yield _collect(waiting.popleft(), strict)
    finally:
        # Reached also when the consumer breaks off, fails or is interrupted.
        pool.shutdown(wait=True, cancel_futures=True)


def _collect(work: list[tuple[Picture, Future[T]]], strict: bool) -> Batch[T]:
    names: list[str] = []
    items: list[T] = []
    skipped: list[Skipped] = []
    for picture, future in work:
        try:
            items.append(future.result())
        except ImageError as error:
            if strict:
                raise ImageError(
                    f"{picture.name!r} cannot be used: {error}; "
                    "mend or remove it, or read without strict to skip such pictures"
                ) from error
            skipped.append(Skipped(picture.name, str(error)))
        else:
            names.append(picture.name)
    return Batch(names, items, skipped)
