"""`clearvit serve`: the microscope in a browser, for one's own images and folders."""

from __future__ import annotations

from clearvit.cli.arguments import Models, Run
from clearvit.cli.console import note
from clearvit.cli.generate import command
from clearvit.microscopy.config import ServeConfig


@command("serve")
def serve(models: Models, config: ServeConfig, run: Run) -> None:
    """Serve the microscope: drop an image on the page, or look through folders and an index.

    The page is that of `clearvit microscope`. Choose models, views and scale; search the index by
    an image or by a part of it; save what you see as a page that needs no server.

    Example: `clearvit serve demo demo-cured --images photos/`

    Example: `clearvit serve demo --images photos/ --index index/ --port 8080`
    """
    from clearvit.microscopy.server.served_folders import Folders
    from clearvit.microscopy.server.serving import bind_socket, check_installed
    from clearvit.microscopy.server.serving import serve as serve_models

    check_installed()
    bind_socket(config).close()  # a port in use, or a wrong path, should not wait for a model
    Folders(config.images)
    if config.index is not None:
        from clearvit.retrieval.index.index import Index

        Index.open(config.index)
    backbones = [run.load(model) for model in models]
    if config.host not in ("127.0.0.1", "localhost", "::1"):
        note(f"warning: everybody who reaches {config.host} can look at these folders")

    serve_models(backbones, config=config, announce=lambda at: run.show({"address": at}, at))
