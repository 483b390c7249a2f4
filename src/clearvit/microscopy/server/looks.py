"""Pages computed for clients: a few at a time, with progress, ended when nobody listens."""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from clearvit.backbones.backbone import Backbone
from clearvit.errors import ClearvitError
from clearvit.images import ImageSource
from clearvit.microscopy.config import MicroscopeConfig
from clearvit.microscopy.microscope_page import collect_page
from clearvit.microscopy.page_data import PageData
from clearvit.microscopy.server.refusals import NotFound, TooBusy
from clearvit.microscopy.turns import Workers

T = TypeVar("T")
Event = dict[str, Any]

KEPT = 16  # pages, for "save page" and reloading
KEPT_BYTES = 1 << 28
LOG = logging.getLogger("clearvit.serve")


class Stopped(Exception):
    """Nobody waits for this page any more."""


@dataclass(frozen=True)
class LookRequest:
    """What a client wants to see."""

    backbones: Sequence[Backbone]
    images: Sequence[ImageSource]
    config: MicroscopeConfig


class Look:
    """One page in the making; `tell` hears what happens and, at the end, None."""

    def __init__(
        self, request: LookRequest, workers: Workers, tell: Callable[[Event | None], None]
    ) -> None:
        self.request, self._workers, self._tell = request, workers, tell
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End after the batch that runs now."""
        self._stopped.set()

    def run(self, keep: Callable[[PageData], str]) -> None:
        """Compute the page; `keep` stores it and gives its key."""
        try:
            self._check()
            request = self.request
            photos, data = collect_page(
                request.backbones, request.images, request.config, self._progress, self._turn
            )
            bad = [f"{one.name}: {one.reason}" for one in photos.skipped]
            names = [source.name for source in request.images]
            self._tell({"page": keep(data), "skipped": bad, "names": names})
        except Stopped:
            pass
        except ClearvitError as error:
            self._tell({"error": str(error)})
        except Exception as error:
            LOG.exception("a page could not be made")
            self._tell({"error": describe_fault(error)})
        finally:
            self._tell(None)

    def _turn(self, backbone: Backbone, work: Callable[[], T], /) -> T:
        self._check()
        return self._workers.run(backbone, work)

    def _progress(self, stage: str, done: int, total: int, note: str = "", /) -> None:
        self._check()
        self._tell({"stage": stage, "done": done, "total": total, "note": note})

    def _check(self) -> None:
        if self._stopped.is_set():
            raise Stopped


class Looks:
    """Computes pages, `at_once` at a time; `waiting` more may wait."""

    def __init__(self, workers: Workers, at_once: int, waiting: int) -> None:
        self._workers, self._most = workers, at_once + waiting
        self._threads = ThreadPoolExecutor(at_once, "look")
        self._pages: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._count = 0

    def begin(self, request: LookRequest, tell: Callable[[Event | None], None]) -> Look:
        """Start a page, or let it wait for its turn.

        Args:
            request: What it shows.
            tell: Called from another thread with every event, and with None at the end. The last
                event has "page" or "error".

        Raises:
            TooBusy: Too many wait already.
        """
        look = Look(request, self._workers, tell)
        with self._lock:
            if self._count >= self._most:
                raise TooBusy(f"{self._count} pages are being made already; try again in a minute.")
            self._count += 1
        self._threads.submit(self._run, look)
        return look

    def page(self, key: str) -> bytes:
        """Give the data of a page as JSON.

        Raises:
            NotFound: It is no longer kept.
        """
        with self._lock:
            if key not in self._pages:
                raise NotFound("this page is no longer kept; make it again.")
            self._pages.move_to_end(key)
            return self._pages[key]

    def close(self) -> None:
        """End the threads; pages that wait are dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, look: Look) -> None:
        try:
            look.run(self._keep)
        finally:
            with self._lock:
                self._count -= 1

    def _keep(self, data: PageData) -> str:
        content = json.dumps({"manifest": data.manifest, "chunks": data.chunks}).encode()
        key = secrets.token_hex(16)
        with self._lock:
            self._pages[key] = content
            while len(self._pages) > KEPT or (
                sum(map(len, self._pages.values())) > KEPT_BYTES and len(self._pages) > 1
            ):
                self._pages.popitem(last=False)
        return key


def describe_fault(error: Exception) -> str:
    """Say in a sentence what went wrong where nobody expected it."""
    text = str(error).lower()
    if isinstance(error, MemoryError) or "memory" in text:
        return "there is not enough memory for this; take a smaller size or scale."
    return f"unexpected {type(error).__name__}; the terminal of the server shows more."
