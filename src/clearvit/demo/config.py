"""Options of `clearvit demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clearvit.options import Options, option


@dataclass(frozen=True)
class DemoConfig(Options):
    """What the demo shows."""

    images: Path | None = option(
        None, "Folder with 12 or more images of your own.", shown="photos of installed packages"
    )
    model: str = option("demo", "Any ViT that clearvit loads.")
    quick: bool = option(False, "Use smaller images, fewer epochs and fewer views.")
    device: str = option(
        "auto", "Device of the network: auto, cpu, cuda, cuda:1, mps.", panel="Run"
    )

    @property
    def folder(self) -> str:
        """Where results go unless told otherwise: no demo resumes another kind of demo."""
        own, quick = "-own" if self.images else "", "-quick" if self.quick else ""
        return f"demo{own}{quick}"
