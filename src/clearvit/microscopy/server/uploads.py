"""Images that clients send: counted while they arrive, decoded once, kept for a while."""

from __future__ import annotations

import secrets
import tempfile
import threading
from collections import OrderedDict
from collections.abc import AsyncIterable
from dataclasses import dataclass
from pathlib import Path

from clearvit.errors import ImageError
from clearvit.images import read_image
from clearvit.microscopy.server.refusals import NotFound, Refused, TooLarge

KEPT = 64  # uploads; the oldest go first
KEPT_BYTES = 1 << 29
DISCARDED = 1 << 26  # bytes of too large a file that are read all the same, to answer in peace


@dataclass(frozen=True)
class Upload:
    """One image that was sent."""

    key: str
    name: str  # as the client called it
    path: Path
    bytes: int


class Uploads:
    """Uploaded images in a temporary folder, which goes when the server ends."""

    def __init__(self, limit: int) -> None:
        """Take images up to `limit` bytes each."""
        self.limit = limit
        self._folder = tempfile.TemporaryDirectory(prefix="clearvit-serve-")
        self._kept: OrderedDict[str, Upload] = OrderedDict()
        self._lock = threading.Lock()

    async def receive(self, content: AsyncIterable[bytes], name: str, declared: int | None) -> Path:
        """Write what arrives into a file, and stop as soon as it is too much.

        Args:
            content: The body of the request.
            name: What the client calls the image, for the message.
            declared: Bytes that the client says it will send, if it says so.

        Raises:
            TooLarge: It is more than the limit.
        """
        refused = TooLarge(f"'{name}' is larger than {self.limit / 1e6:.0f} MB, the limit here.")
        if declared is not None and declared > self.limit:
            if declared <= DISCARDED:
                async for _ in content:  # else the client is cut off before it reads the answer
                    pass
            raise refused
        path, size = Path(self._folder.name) / secrets.token_hex(16), 0
        try:
            with path.open("wb") as file:
                async for part in content:
                    size += len(part)
                    if size > self.limit:
                        raise refused
                    file.write(part)
        except BaseException:  # also a client that went away
            path.unlink(missing_ok=True)
            raise
        return path

    def keep(self, path: Path, name: str) -> Upload:
        """Decode an uploaded file once and keep it.

        Raises:
            Refused: It cannot be used as an image.
        """
        try:
            read_image(path)
        except ImageError as error:
            path.unlink(missing_ok=True)
            raise Refused(f"'{name}' cannot be used: {error}.") from error
        upload = Upload(path.name, name, path, path.stat().st_size)
        with self._lock:
            self._kept[upload.key] = upload
            total = sum(one.bytes for one in self._kept.values())
            while len(self._kept) > KEPT or (total > KEPT_BYTES and len(self._kept) > 1):
                _, oldest = self._kept.popitem(last=False)
                total -= oldest.bytes
                oldest.path.unlink(missing_ok=True)
        return upload

    def find(self, key: str) -> Upload:
        """Give an upload that is still kept."""
        with self._lock:
            upload = self._kept.get(key)
            if upload is None:
                raise NotFound("this upload is no longer kept; drop the image again.")
            self._kept.move_to_end(key)
            return upload

    def close(self) -> None:
        """Remove all files."""
        self._folder.cleanup()
