"""Images to batches: decoding runs in threads, a bounded way ahead of whoever consumes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from PIL import Image

from clearvit.errors import ImageError
from clearvit.images.decode import read_image
from clearvit.images.find import ImageSource

T = TypeVar("T")


@dataclass(frozen=True)
class Skipped:
    """An image that could not be used, and why in a few words."""

    name: str
    reason: str


@dataclass(frozen=True)
class Batch(Generic[T]):
    """Consecutive images, prepared.

    Attributes:
        names: Names of the good images, in the order of `items`.
        items: What `prepare` made of them; empty if every image was bad.
        skipped: The bad images among those of this batch.
    """

    names: list[str]
    items: list[T]
    skipped: list[Skipped]


def batches(
    images: Sequence[ImageSource],
    prepare: Callable[[Image.Image], T],
    *,
    size: int,
    threads: int = 1,
    ahead: int = 2,
    strict: bool = False,
) -> Generator[Batch[T], None, None]:
    """Read and prepare images in threads and yield them in order.

    Batch k covers `images[k * size : (k + 1) * size]`, whichever of them are bad: a bad image
    makes its batch smaller and moves no other, so a run can resume at any batch. Ending the
    iteration early (a break, or `close()`) waits for the images in work, at most `threads`,
    and ends the threads.

    Args:
        images: What to read.
        prepare: Makes an item of an upright RGB image, in a thread. Its `ImageError` marks the
            image as bad; any other exception reaches the consumer.
        size: Images per batch.
        threads: Images decoded at the same time; more than one slows a network on the same CPU.
        ahead: Batches prepared while the consumer works on one; bounds the memory.
        strict: Raise at the first bad image instead of skipping it.

    Raises:
        ImageError: A bad image under `strict`, or a number below its minimum.
    """
    for option, value, least in (("size", size, 1), ("threads", threads, 1), ("ahead", ahead, 0)):
        if value < least:
            raise ImageError(f"{option} is {value}; give at least {least}")

    def item(image: ImageSource) -> T:
        return prepare(read_image(image.source))

    return _run(images, item, size=size, threads=threads, ahead=ahead, strict=strict)


def _run(
    images: Sequence[ImageSource],
    item: Callable[[ImageSource], T],
    *,
    size: int,
    threads: int,
    ahead: int,
    strict: bool,
) -> Generator[Batch[T], None, None]:
    pool = ThreadPoolExecutor(threads, thread_name_prefix="clearvit-images")
    waiting: deque[list[tuple[ImageSource, Future[T]]]] = deque()
    starts = iter(range(0, len(images), size))
    try:
        while True:
            # One more than `ahead`: the first of them is the batch the consumer asks for now.
            while len(waiting) <= ahead and (start := next(starts, None)) is not None:
                chosen = images[start : start + size]
                waiting.append([(image, pool.submit(item, image)) for image in chosen])
            if not waiting:
                return
            # No variable holds the batch, so its memory is free once the consumer lets it go.
            yield _collect(waiting.popleft(), strict)
    finally:
        # Reached also when the consumer breaks off, fails or is interrupted.
        pool.shutdown(wait=True, cancel_futures=True)


def _collect(work: list[tuple[ImageSource, Future[T]]], strict: bool) -> Batch[T]:
    names: list[str] = []
    items: list[T] = []
    skipped: list[Skipped] = []
    for image, future in work:
        try:
            items.append(future.result())
        except ImageError as error:
            if strict:
                raise ImageError(
                    f"{image.name!r} cannot be used: {error}; "
                    "repair or remove it, or read without strict to skip such images"
                ) from error
            skipped.append(Skipped(image.name, str(error)))
        else:
            names.append(image.name)
    return Batch(names, items, skipped)
