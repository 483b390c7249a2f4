"""The README as a package index shows it: pictures and links lead to the repository.

Hatchling calls this for every build; there is no need for it when the package runs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

try:
    from hatchling.metadata.plugin.interface import MetadataHookInterface
except ImportError:  # a test reads this file without building
    MetadataHookInterface = object  # type: ignore[assignment, misc]

PICTURES = "https://raw.githubusercontent.com/clearvit/clearvit/main/"
FILES = "https://github.com/clearvit/clearvit/blob/main/"
_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#)([^)]+)\)")


class ReadmeHook(MetadataHookInterface):
    """Adds the README to the metadata of the project."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in the field that pyproject.toml calls dynamic."""
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": with_absolute_links(text)}


def with_absolute_links(text: str) -> str:
    """Put the address of the repository before what is relative to it."""
    return _LINK.sub(lambda m: f"{m[1]}{m[2]}({PICTURES if m[1] else FILES}{m[3]})", text)
