"""The addresses of the server, as a FastAPI application."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from clearvit.errors import ClearvitError
from clearvit.microscopy.config import MicroscopeConfig
from clearvit.microscopy.microscope_page import render_microscope, render_served
from clearvit.microscopy.page_data import PageData
from clearvit.microscopy.server.library import UPLOAD, Library
from clearvit.microscopy.server.looks import Event, Look, Looks
from clearvit.microscopy.server.refusals import Refused, TooBusy, TooLarge, TooSlow

T = TypeVar("T")

BEAT = 10.0  # seconds after which a waiting client hears that the server is alive
SMALL = 4  # thumbnails, listings and uploads that are worked on at the same time
MOST_SMALL = 64  # that may wait
LISTED = 120  # images of a folder in one answer
LONGEST = 1024  # characters of an address


class LookBody(BaseModel):
    """What a client wants to see."""

    model_config = ConfigDict(extra="forbid")
    images: list[Annotated[str, Field(max_length=LONGEST)]] = Field(max_length=200)
    models: list[int] = Field(max_length=64)
    views: int | None = Field(None, ge=1, le=64)
    scale: int = Field(1, ge=1, le=4)
    size: int | None = Field(None, ge=16)


class SearchBody(BaseModel):
    """What a client looks for."""

    model_config = ConfigDict(extra="forbid")
    image: str = Field(max_length=LONGEST)
    k: int = Field(12, ge=1, le=100)
    region: tuple[int, int, int, int] | None = None


class Small:
    """Short work in a few threads, beside the pages; too much of it is refused."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(SMALL, "small")
        self._count = 0

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run a function in a thread."""
        if self._count >= MOST_SMALL:
            raise TooBusy("too many requests at once; try again in a moment.")
        self._count += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, work, *arguments)
        finally:
            self._count -= 1

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def make_app(library: Library) -> FastAPI:
    """Make the application; whatever goes wrong is answered with one sentence as "error"."""
    config = library.config
    looks = Looks(library.workers, config.at_once, config.waiting)
    small = Small()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        for part in (looks, small, library):
            part.close()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.add_exception_handler(ClearvitError, _answer_error)
    app.add_exception_handler(RequestValidationError, _answer_error)
    _add_images(app, library, small)
    _add_looks(app, library, looks, small)
    return app


def _add_images(app: FastAPI, library: Library, small: Small) -> None:
    """Folders, thumbnails and uploads."""

    @app.get("/api/folder")
    async def folder(
        address: Annotated[str, Query(max_length=LONGEST)] = "",
        start: Annotated[int, Query(ge=0, le=10**9)] = 0,
    ) -> JSONResponse:
        listing = await small.run(library.folders.list, address, start, LISTED)
        return JSONResponse(listing.to_json())

    @app.get("/api/thumbnail")
    async def thumbnail(address: Annotated[str, Query(max_length=LONGEST)]) -> Response:
        content = await small.run(library.thumbnail, address)
        kept = {"Cache-Control": "private, max-age=300"}
        return Response(content, media_type="image/jpeg", headers=kept)

    @app.post("/api/uploads")
    async def upload(request: Request) -> JSONResponse:
        name = _file_name(unquote(request.headers.get("x-name", "")))
        declared = request.headers.get("content-length", "")
        size = int(declared) if declared.isdecimal() else None
        path = await library.uploads.receive(request.stream(), name, size)
        kept = await small.run(library.uploads.keep, path, name)
        return JSONResponse({"address": f"{UPLOAD}{kept.key}", "name": kept.name})


def _add_looks(app: FastAPI, library: Library, looks: Looks, small: Small) -> None:
    """The page itself, what is computed for it, and the search."""

    @app.get("/")
    async def page() -> HTMLResponse:
        return HTMLResponse(render_served(library.describe()))

    @app.post("/api/looks")
    async def look(body: LookBody) -> StreamingResponse:
        options = {"views": body.views, "scale": body.scale, "size": body.size}
        config = MicroscopeConfig.build(options)
        request = await small.run(library.request, body.models, body.images, config)
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def tell(event: Event | None) -> None:
            with contextlib.suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(events.put_nowait, event)

        begun = looks.begin(request, tell)
        return StreamingResponse(_lines(begun, events), media_type="application/x-ndjson")

    @app.get("/api/pages/{key}")
    async def data(key: str) -> Response:
        return Response(looks.page(key), media_type="application/json")

    @app.get("/api/pages/{key}/microscope.html")
    async def saved(key: str) -> Response:
        text = await small.run(_as_file, looks.page(key))
        kept = {"Content-Disposition": 'attachment; filename="microscope.html"'}
        return Response(text, media_type="text/html; charset=utf-8", headers=kept)

    @app.post("/api/search")
    async def search(body: SearchBody) -> JSONResponse:
        return JSONResponse(await small.run(library.search, body.image, body.k, body.region))


async def _lines(look: Look, events: asyncio.Queue[Event | None]) -> AsyncIterator[str]:
    """Give every event as a line of JSON; a client that leaves ends the work."""
    try:
        while True:
            try:
                event = await asyncio.wait_for(events.get(), BEAT)
            except asyncio.TimeoutError:
                event = {"waiting": True}
            if event is None:
                return
            yield json.dumps(event) + "\n"
    finally:
        look.stop()


def _file_name(text: str) -> str:
    """Give the name of an upload without folders and control characters."""
    name = text.replace("\\", "/").rsplit("/", 1)[-1]
    return "".join(part for part in name if part.isprintable())[:200] or "image"


def _as_file(content: bytes) -> str:
    """Give a page as the file that `clearvit microscope` writes."""
    data = json.loads(content)
    return render_microscope(PageData(data["manifest"], data["chunks"]))


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:])
        return JSONResponse({"error": f"{place}: {first['msg']}."}, status_code=422)
    status = error.status if isinstance(error, Refused) else 422
    # what a client still sends after this is not read
    headers = {"Connection": "close"} if isinstance(error, (TooLarge, TooSlow)) else None
    return JSONResponse({"error": str(error)}, status_code=status, headers=headers)
