from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from clearvit.errors import ImageError
from clearvit.images import Batch, ImageSource, Skipped, batches, find_images
from tests.helpers.hostile import write_good, write_hostile


def pictures(count: int, bad: frozenset[int] = frozenset()) -> list[ImageSource]:
    """Return pictures whose width tells their place; the bad ones have no pixels."""
    return [
        ImageSource(f"p{i}", Image.new("RGB", (i + 1, 0 if i in bad else 1))) for i in range(count)
    ]


def place(image: Image.Image) -> int:
    return image.width - 1


def threads_alive() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("clearvit-images")]


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


# Order and coverage


@settings(max_examples=80, deadline=None)
@given(
    count=st.integers(0, 23),
    size=st.integers(1, 8),
    threads=st.integers(1, 4),
    ahead=st.integers(0, 3),
    bad=st.frozensets(st.integers(0, 22)),
)
def test_each_picture_once_in_order(
    count: int, size: int, threads: int, ahead: int, bad: frozenset[int]
):
    given = pictures(count, bad)
    made = list(batches(given, place, size=size, threads=threads, ahead=ahead))
    assert len(made) == -(-count // size)
    for k, batch in enumerate(made):
        covered = range(k * size, min((k + 1) * size, count))
        good = [i for i in covered if i not in bad]
        assert batch.items == good and batch.names == [f"p{i}" for i in good]
        assert batch.skipped == [
            Skipped(f"p{i}", f"no pixels: {i + 1} x 0") for i in covered if i in bad
        ]
    assert not threads_alive()


def test_slow_first_picture_does_not_change_the_order():
    def prepare(image: Image.Image) -> int:
        time.sleep(0.05 if image.width == 1 else 0)
        return place(image)

    made = list(batches(pictures(12), prepare, size=3, threads=4))
    assert [batch.items for batch in made] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


def test_folder_of_good_and_hostile_files(tmp_path: Path):
    hostile = {path.name for path in write_hostile(tmp_path)}
    good = {path.relative_to(tmp_path).as_posix() for path in write_good(tmp_path)}
    found = find_images(tmp_path)
    made = list(batches(found, lambda image: image.mode, size=7))
    assert {s.name for batch in made for s in batch.skipped} == hostile
    assert {name for batch in made for name in batch.names} == good
    assert {item for batch in made for item in batch.items} == {"RGB"}


def test_batch_of_bad_pictures_only_is_yielded():
    made = list(batches(pictures(4, frozenset({0, 1})), place, size=2))
    assert [batch.items for batch in made] == [[], [2, 3]]


# Errors


def test_strict_names_the_first_bad_picture_in_order():
    stream = batches(pictures(9, frozenset({4, 5, 8})), place, size=3, strict=True)
    assert next(stream).items == [0, 1, 2]
    with pytest.raises(ImageError, match="'p4' cannot be used: no pixels: 5 x 0"):
        next(stream)
    assert not threads_alive()


def test_image_error_of_prepare_marks_the_picture_as_bad():
    def prepare(image: Image.Image) -> int:
        if image.width == 2:
            raise ImageError("too narrow")
        return place(image)

    (batch,) = batches(pictures(3), prepare, size=3)
    assert batch == Batch(["p0", "p2"], [0, 2], [Skipped("p1", "too narrow")])


def test_other_errors_of_prepare_reach_the_consumer():
    def prepare(image: Image.Image) -> int:
        return 1 // (image.width - 3)

    stream = batches(pictures(8), prepare, size=2)
    assert next(stream).items == [-1, -1]
    with pytest.raises(ZeroDivisionError):
        next(stream)
    assert not threads_alive()


def test_lack_of_memory_in_decoding_skips_the_picture(monkeypatch: pytest.MonkeyPatch):
    load = Image.Image.load

    def scarce(self: Image.Image):
        if self.width == 2:
            raise MemoryError
        return load(self)

    monkeypatch.setattr(Image.Image, "load", scarce)
    (batch,) = batches(pictures(3), place, size=3)
    assert batch.items == [0, 2] and batch.skipped == [Skipped("p1", "out of memory")]


@pytest.mark.parametrize("option", [{"size": 0}, {"threads": 0}, {"ahead": -1}])
def test_numbers_below_their_minimum_are_refused_at_once(option: dict[str, int]):
    with pytest.raises(ImageError, match="give at least"):
        batches(pictures(2), place, **{"size": 2, **option})


# Threads and memory


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_look_ahead_is_bounded_and_used(ahead: int):
    prepared: list[int] = []

    def prepare(image: Image.Image) -> int:
        prepared.append(place(image))
        return place(image)

    stream = batches(pictures(40), prepare, size=4, threads=2, ahead=ahead)
    for k in range(3):
        next(stream)
        expected = 4 * (k + 1 + ahead)
        assert wait_until(lambda n=expected: len(prepared) >= n)  # it does run ahead
        time.sleep(0.03)
        assert len(prepared) == expected  # but no further
    stream.close()


def test_memory_is_bounded():
    class Item: ...

    alive: weakref.WeakSet[Item] = weakref.WeakSet()
    prepared = 0

    def prepare(_: Image.Image) -> Item:
        nonlocal prepared
        item = Item()
        alive.add(item)
        prepared += 1
        return item

    given = 0
    for batch in batches(pictures(60), prepare, size=3, threads=2, ahead=1):
        del batch
        given += 3
        ahead = min(3, 60 - given)
        assert wait_until(lambda n=given + ahead: prepared == n)
        # the one batch ahead; nothing holds what the consumer has let go
        assert wait_until(lambda n=ahead: len(alive) == n)


def start(prepare: Callable[[Image.Image], int] = place, count: int = 200) -> Iterator[Batch[int]]:
    stream = batches(pictures(count), prepare, size=4, threads=3)
    next(stream)
    assert threads_alive()
    return stream


def test_threads_end_after_the_last_batch():
    assert len(list(batches(pictures(9), place, size=2))) == 5
    assert not threads_alive()


def test_threads_end_after_close_without_doing_the_rest():
    prepared: list[int] = []

    def slow(image: Image.Image) -> int:
        time.sleep(0.01)
        prepared.append(place(image))
        return place(image)

    stream = start(slow)
    stream.close()
    assert not threads_alive()
    done = len(prepared)
    assert done <= 4 * 3
    time.sleep(0.05)
    assert len(prepared) == done


def test_close_does_not_wait_for_pictures_not_yet_begun():
    gate = threading.Event()
    begun: list[int] = []

    def prepare(image: Image.Image) -> int:
        if image.width > 4:  # everything after the first batch
            begun.append(place(image))
            gate.wait(60)
        return place(image)

    stream = start(prepare)
    assert wait_until(lambda: len(begun) == 3)
    threading.Timer(0.05, gate.set).start()
    stream.close()
    assert not threads_alive() and len(begun) == 3


def test_threads_end_after_break():
    for batch in batches(pictures(200), place, size=4):
        assert batch.items == [0, 1, 2, 3]
        break
    gc.collect()
    assert not threads_alive()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_threads_end_when_the_consumer_fails(error: type[BaseException]):
    with pytest.raises(error):
        for _ in batches(pictures(200), place, size=4):
            raise error
    gc.collect()
    assert not threads_alive()


def test_nothing_starts_before_the_first_batch_is_asked_for():
    stream = batches(pictures(9), place, size=2)
    time.sleep(0.02)
    assert not threads_alive()
    assert next(stream).items == [0, 1]
    stream.close()


def test_interrupted_program_ends_at_once():
    program = (
        "import _thread, signal, threading\n"
        # a shell starts background jobs with the interrupt ignored, and children inherit that
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from PIL import Image\n"
        "from clearvit.images import ImageSource, batches\n"
        "pictures = [ImageSource(str(i), Image.new('RGB', (4, 4))) for i in range(10_000)]\n"
        "import time\n"
        "threading.Timer(0.1, _thread.interrupt_main).start()\n"
        "for batch in batches(pictures, lambda image: time.sleep(0.02), size=64): pass\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=300)
    assert done.returncode != 0 and b"KeyboardInterrupt" in done.stderr


def test_reading_an_image_imports_neither_numpy_nor_torch():
    program = (
        "import sys, clearvit\n"
        "before = set(sys.modules)\n"
        "from clearvit.images import read_image\n"
        "new = set(sys.modules) - before\n"
        "assert 'clearvit.images.decode' in new\n"
        "assert not new & {'numpy', 'torch', 'clearvit.backbones', 'clearvit.report'}, new\n"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
