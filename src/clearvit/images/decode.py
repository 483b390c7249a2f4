"""One source to one upright RGB image; every failure is an `ImageError` with a short reason."""

from __future__ import annotations

import io
import os
import stat
import struct
import threading
from pathlib import Path
from typing import BinaryIO

from PIL import Image

from clearvit.errors import ImageError
from clearvit.images.apart import read_apart
from clearvit.images.budget import CALM_BYTES, judge_cost
from clearvit.images.image_places import is_plain_file, read_place
from clearvit.images.rgb import to_rgb

MAX_PIXELS = 178_956_970  # Pillow's own limit, above which it suspects a decompression bomb
LARGE_FILE = 1 << 26  # bytes

_NO_FORMAT = "not an image"
_NO_HEIC = "HEIC needs pip install pillow-heif and pillow_heif.register_heif_opener()"
_HEIC = (b"ftypheic", b"ftypheix", b"ftyphevc", b"ftypmif1")
# Reading EPS and WMF starts another program (Ghostscript, the Windows metafile player), and a
# format is chosen by content, so a file called holiday.jpg could start it too. The others hold
# whole images of other formats, whose size their own header does not say.
_PROGRAMS = frozenset({"EPS", "WMF"})
_CONTAINERS = frozenset({"ICO", "CUR", "ICNS", "BLP"})
_UPRIGHT = {  # EXIF orientation -> what brings the image upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ORIENTATION_TAG = 0x0112
# Pillow fills a lazily opened image and its EXIF on first use, unguarded; one image of the caller
# may be listed twice and so be used by two of our threads at once.
_SHARED = threading.Lock()


def read_image(
    source: str | Path | bytes | bytearray | memoryview | Image.Image,
    *,
    max_pixels: int = MAX_PIXELS,
    apart: bool = True,
) -> Image.Image:
    """Decode an image: loaded, upright by its EXIF tag, mode "RGB".

    Of several frames the first is taken (of an open image the current one). An image that is
    loaded, upright and RGB already is returned itself. Colors: see `clearvit.images.rgb`.

    A file is judged by its header before anything is decoded, see `clearvit.images.budget`: what
    takes more than 512 MB of memory is refused (a JPEG is decoded at half, a quarter or an eighth
    of its size instead), what takes more than half of that, or has a decoder that may be slow, is
    decoded in a process of its own with a time limit of 20 s.

    Args:
        source: A path, a URL or another place (see `clearvit.images.image_places`), the content of
            a file, or a Pillow image.
        max_pixels: Largest width x height; more is refused by the header, before decoding.
        apart: Decode costly images in a process of their own.

    Raises:
        ImageError: The image cannot be used; the message is a reason without the path.
    """
    if isinstance(source, Image.Image):
        return _read_shared(source, max_pixels)
    if isinstance(source, (bytes, bytearray, memoryview)):
        if not len(source):
            raise ImageError("zero bytes")
        found = _read_stream(io.BytesIO(source), max_pixels, len(source), apart)
        return found or read_apart(bytes(source), max_pixels)
    if isinstance(source, (str, os.PathLike)) and not is_plain_file(os.fspath(source)):
        return read_image(read_place(os.fspath(source)), max_pixels=max_pixels, apart=apart)
    if isinstance(source, (str, os.PathLike)):
        try:
            with _open_regular(source) as file:
                size = os.fstat(file.fileno()).st_size
                found = _read_stream(file, max_pixels, size, apart)
        except OSError as error:
            raise ImageError(_reason(error, "file")) from error
        return found or read_apart(source, max_pixels)
    raise ImageError(
        f"{type(source).__name__} is not a path, bytes or a PIL image; "
        "turn arrays into images with PIL.Image.fromarray"
    )


def _open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file and nothing else: opening a pipe would wait for its writer for ever."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise ImageError("broken link" if os.path.islink(path) else "no such file") from None
    except ValueError as error:  # a null byte, or half a surrogate pair
        raise ImageError("not a valid path") from error
    if stat.S_ISDIR(status.st_mode):
        listable = os.access(path, os.R_OK | os.X_OK)
        raise ImageError("is a folder" if listable else "is a folder without read permission")
    if not stat.S_ISREG(status.st_mode):
        raise ImageError("not a regular file")
    if status.st_size == 0:
        raise ImageError("zero bytes")
    return open(path, "rb")


def _read_stream(stream: BinaryIO, max_pixels: int, size: int, apart: bool) -> Image.Image | None:
    """Decode a file of `size` bytes; None if that had better happen in a process of its own."""
    if apart and size > LARGE_FILE:
        return None  # even its header may take long
    image = _identify(stream)
    _check_size(image.size, max_pixels)
    kind = image.format or "image"
    try:
        cost = judge_cost(image, stream)
        if apart and not cost.calm:
            return None
        if cost.shrink > 1:
            image.draft(None, (image.width // cost.shrink, image.height // cost.shrink))
        image.load()
        rgb = _upright_rgb(image, _orientation(image))
        if rgb is image and kind not in ("JPEG", "MPO"):
            # Other formats keep the compressed file or a second canvas alive in the image. For
            # JPEG, the common and fast one, the copy would be a noticeable part of the decoding.
            rgb = image.copy() if cost.bytes < CALM_BYTES else image
    except ImageError:
        raise
    except Exception as error:
        raise ImageError(_reason(error, kind)) from error
    rgb.info = {}  # an orientation left here would turn the image again on a second reading
    return rgb


def _read_shared(image: Image.Image, max_pixels: int) -> Image.Image:
    _check_size(image.size, max_pixels)
    try:
        if getattr(image, "tile", None):  # opened, not loaded yet
            judge_cost(image, None)
        with _SHARED:
            image.load()
            orientation = _orientation(image)
        rgb = _upright_rgb(image, orientation)
    except ImageError:
        raise
    except Exception as error:
        raise ImageError(_reason(error, image.format or "image")) from error
    if rgb is not image:
        rgb.info = {}
    return rgb


def _identify(stream: BinaryIO) -> Image.Image:
    """Find the format by content and read the header; no pixel is decoded.

    This is `Image.open` without its size check, which warns through the process-wide `warnings`
    and refuses by a process-wide limit: neither can be set for one call in one thread.
    """
    prefix = stream.read(16)
    refusal = _NO_FORMAT if prefix[4:12] not in _HEIC else _NO_HEIC
    tried = set()
    for load_plugins in (Image.preinit, Image.init):  # the common formats first
        load_plugins()
        for kind, (factory, accept) in list(Image.OPEN.items()):  # other threads may still add
            if kind in tried or kind in _PROGRAMS:
                continue
            tried.add(kind)
            try:
                if kind in _CONTAINERS:
                    if accept and accept(prefix) is True:
                        refusal = f"{kind} files are not read"
                    continue
                accepted = accept(prefix) if accept else True
                if isinstance(accepted, str):
                    refusal = f"{kind} is not supported by the installed Pillow"
                elif accepted:
                    stream.seek(0)
                    # Without a file name Pillow cannot map the file into memory, where a file
                    # that shrinks during reading would kill the process.
                    return factory(stream, "")
            except Exception as error:
                # A format without a signature is tried on everything, so its failure says nothing.
                if accept and refusal == _NO_FORMAT:
                    refusal = _reason(error, kind)
    raise ImageError(refusal)


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise ImageError(f"no pixels: {width} x {height}")
    if width * height > max_pixels:
        raise ImageError(f"too large: {width} x {height} pixels, limit {max_pixels}")


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:
        return 1  # an image with broken EXIF is still an image
    return value if isinstance(value, int) else 1


def _upright_rgb(image: Image.Image, orientation: int) -> Image.Image:
    rgb = to_rgb(image)
    turn = _UPRIGHT.get(orientation)
    return rgb if turn is None else rgb.transpose(turn)


def _reason(error: Exception, kind: str) -> str:
    """Say in a few words what an exception of Pillow or of the operating system means."""
    text = str(error).lower()
    if isinstance(error, MemoryError):
        return "out of memory"
    if isinstance(error, Image.DecompressionBombError):
        return "too large: Pillow suspects a decompression bomb"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror.lower()}"
    if isinstance(error, (EOFError, struct.error)) or "truncated" in text or "end of file" in text:
        return "truncated"
    if isinstance(error, NotImplementedError) or "support" in text or "find loader" in text:
        return f"unsupported kind of {kind}"
    return f"damaged {kind}"
