"""The command line: one thin file per command, each calling one public function."""

from __future__ import annotations

import importlib
import sys

from clearvit.cli.app import app
from clearvit.cli.console import errors, note
from clearvit.errors import ClearvitError

VERBS = (
    *("diagnose", "look", "tokens", "cure", "prune", "export"),
    *("discover", "index", "search", "explain", "evaluate", "compare", "bench"),
    *("report", "demo"),
)
for _verb in VERBS:
    importlib.import_module(f"clearvit.cli.{_verb}_command")  # which adds it to the app


def main() -> None:
    """Run the command line; exit code 1 for an error the user can fix, 2 for wrong usage."""
    if "--debug" in sys.argv:
        app()
        return
    try:
        app()
    except ClearvitError as error:
        errors.print("error: ", style="bold red", end="")
        note(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        errors.print("stopped. What is finished is kept; run the same command to go on.")
        sys.exit(130)
