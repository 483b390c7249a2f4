"""Whatever goes wrong ends in one sentence; what nobody expected is kept in a log."""

from __future__ import annotations

import platform
import shlex
import sys
import tempfile
import traceback

from clearvit import __version__
from clearvit.errors import ClearvitError
from clearvit.files import why_not_written

NO_MEMORY = ("can't allocate memory", "out of memory", "not enough memory")


def describe_failure(error: Exception) -> str:
    """Say what a user can do about an error; empty for one that nobody expected."""
    if isinstance(error, ClearvitError):
        return str(error)
    if isinstance(error, MemoryError) or any(part in str(error).lower() for part in NO_MEMORY):
        return "there is not enough memory. Use a smaller --size or --batch, or fewer images."
    if isinstance(error, OSError):
        place = f"'{error.filename}': " if error.filename else ""
        return f"{place}{why_not_written(error)}."
    return ""


def write_log(error: Exception) -> str:
    """Keep the traceback and say where it is and how to report it."""
    lines = [
        f"clearvit {__version__}, Python {platform.python_version()}, {platform.platform()}",
        shlex.join(sys.argv),
        *traceback.format_exception(error),
    ]
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="clearvit-", suffix=".log", delete=False, encoding="utf-8", errors="replace"
        ) as file:
            file.write("\n".join(lines))
    except OSError:
        return "This is a fault of clearvit; run it again with --debug and report what it prints."
    return (
        f"This is a fault of clearvit; please report it with the log, '{file.name}'. --debug"
        " shows it here."
    )
