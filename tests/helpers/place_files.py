"""Photos in tars, and whether two listings show the same images."""

import io
import tarfile

import numpy as np

from clearvit.images import find_images, read_image


def contents(folder):
    """Name every photo below a folder -> its bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def write_tar(path, files, extra=()):
    with tarfile.open(path, "w") as tar:
        for name, content in [*files.items(), *extra]:
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return path


def pixels(source):
    return np.asarray(read_image(source.source if hasattr(source, "source") else source))


def same_images(found, folder):
    expected = find_images(folder)
    return len(found) == len(expected) and all(
        np.array_equal(pixels(one), pixels(other))
        for one, other in zip(found, expected, strict=True)
    )
