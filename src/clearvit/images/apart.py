"""Decode one image in a process of its own, which can be ended and whose memory is bounded.

For the few images whose header promises much work; all others are decoded by threads.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

import clearvit
from clearvit.errors import ImageError

SECONDS = 20.0
MEMORY = 3 << 29  # bytes: three times the budget, if the estimate was wrong
HOME = Path(clearvit.__file__).resolve().parents[1]


def read_apart(
    source: str | os.PathLike[str] | bytes, max_pixels: int, seconds: float = SECONDS
) -> Image.Image:
    """Decode as `read_image` does, within a time limit.

    Raises:
        ImageError: The image cannot be used, or its decoding took too long or too much memory.
    """
    # Isolated: neither the working directory nor PYTHONPATH decides which code is run.
    code = f"import sys; sys.path.insert(0, {str(HOME)!r}); import {__name__} as m; m.main()"
    given = "" if isinstance(source, bytes) else os.path.abspath(source)
    with tempfile.TemporaryDirectory(prefix="clearvit-") as folder:
        task = json.dumps({"source": given, "folder": folder, "max_pixels": max_pixels})
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", code, task],
                input=source if isinstance(source, bytes) else None,
                stdin=None if isinstance(source, bytes) else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired as error:
            raise ImageError(f"too slow: not decoded within {seconds:g} s") from error
        except OSError as error:
            raise ImageError(f"cannot be decoded apart: {error}") from error
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            raise ImageError("too large: its decoder was stopped") from None
        if "reason" in answer:
            raise ImageError(answer["reason"])
        with open(Path(folder) / "pixels", "rb") as file:
            # Mapped, so that only the image itself takes memory.
            pixels = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            with pixels:
                return Image.frombytes("RGB", tuple(answer["size"]), pixels)  # type: ignore[arg-type]


def main() -> None:
    """Decode what the first argument says and leave the pixels in a file."""
    from clearvit.images.decode import read_image

    task = json.loads(sys.argv[1])
    _limit_memory()
    source = task["source"] or sys.stdin.buffer.read()
    try:
        image = read_image(source, max_pixels=task["max_pixels"], apart=False)
        with open(Path(task["folder"]) / "pixels", "wb") as file:
            rows = max(1, (1 << 24) // image.width)
            for top in range(0, image.height, rows):
                band = (0, top, image.width, min(top + rows, image.height))
                file.write(image.crop(band).tobytes())
        answer: dict[str, object] = {"size": image.size}
    except ImageError as error:
        answer = {"reason": str(error)}
    except (OSError, MemoryError) as error:
        answer = {"reason": f"cannot be decoded apart: {error}"}
    print(json.dumps(answer))


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS):
        try:
            resource.setrlimit(kind, (MEMORY, MEMORY))
        except (OSError, ValueError):
            continue
