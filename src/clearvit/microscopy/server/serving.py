"""`cv.serve`: the microscope in a browser, for images that are dropped on it and for folders."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from clearvit.backbones.backbone import Backbone
from clearvit.errors import ModelError, OptionError
from clearvit.microscopy.config import ServeConfig
from clearvit.options import with_options

if TYPE_CHECKING:
    import uvicorn

CONNECTIONS, BACKLOG = 256, 128
NEEDED = "serve needs FastAPI and uvicorn. Run: pip install 'clearvit[serve]'"


@with_options(ServeConfig)
def serve(
    backbones: Backbone | Sequence[Backbone],
    *,
    config: ServeConfig,
    announce: Callable[[str], object] | None = None,
) -> None:
    """Serve the microscope until Ctrl-C: drop an image on the page, or look through folders.

    Args:
        backbones: One or several models to choose from.
        config: All options at once, instead of keywords.
        announce: Called with the address when the server starts; printed by default.

    Raises:
        ModelError: There is no model, or FastAPI is not installed.
    """
    models = [backbones] if isinstance(backbones, Backbone) else list(backbones)
    listener = bind_socket(config)
    try:
        server = make_server(models, config)
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        (announce or print)(f"http://{shown}:{port}/")
        with contextlib.suppress(KeyboardInterrupt):  # the server has ended as it should
            server.run(sockets=[listener])
    finally:
        listener.close()


def bind_socket(config: ServeConfig) -> socket.socket:
    """Take the port at once, so that a port in use does not wait for a model.

    Raises:
        OptionError: The port or the address cannot be had.
    """
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, number)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # whoever comes before the server is up waits
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OptionError(
            f"{config.host}:{config.port} cannot be used ({reason}); give another --port, or 0 for"
            " a free one.",
            "port",
        ) from error
    return listener


def make_server(backbones: Sequence[Backbone], config: ServeConfig) -> uvicorn.Server:
    """Make a server that is not started yet."""
    if not backbones:
        raise ModelError("there is no model to look through; give at least one.")
    check_installed()
    import uvicorn

    from clearvit.microscopy.server.guards import Guard
    from clearvit.microscopy.server.library import Library, open_index
    from clearvit.microscopy.server.routes import make_app

    index = None
    if config.index is not None:
        index = open_index(config.index, backbones, str(backbones[0].device))
    app = make_app(Library(backbones, index, config))
    settings = uvicorn.Config(
        Guard(app, host=config.host, seconds=config.seconds),
        log_level="warning",
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=2,
        server_header=False,
        http="h11",
        ws="none",
        lifespan="on",
    )
    return uvicorn.Server(settings)


def check_installed() -> None:
    """Say how to install what the server needs.

    Raises:
        ModelError: It is not installed.
    """
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ModelError(NEEDED) from error
