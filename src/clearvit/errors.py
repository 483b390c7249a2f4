"""What can go wrong for a user; every message names the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ClearvitError(Exception):
    """An error the user can fix; the command line prints it without a traceback."""


class ModelError(ClearvitError):
    """A model cannot be found, read or used in the way that was asked."""


class ImageError(ClearvitError):
    """An image or a folder of images cannot be used."""


class StoreError(ClearvitError):
    """A directory of results cannot be read, or belongs to another run."""


class TrainingError(ClearvitError):
    """A training cannot begin, or cannot go on."""


class OptionError(ClearvitError):
    """An option has a value that is not allowed, or does not exist."""

    def __init__(self, message: str, option: str = "") -> None:
        super().__init__(message)
        self.option = option  # its name in Python


def closest(name: str, known: Iterable[str], count: int = 5) -> str:
    """Say which known names come closest to a mistyped one, as a sentence or an empty string."""
    matches = difflib.get_close_matches(name, list(known), n=count, cutoff=0.5)
    return f" Closest: {', '.join(matches)}." if matches else ""


def missing_extra(library: str, extra: str, needed_for: str) -> ModelError:
    """Name the pip line that brings an optional library."""
    return ModelError(
        f"{needed_for} needs {library}, which is not installed."
        f" Run: pip install 'clearvit[{extra}]'"
    )
