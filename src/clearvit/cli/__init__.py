"""The command line: one thin file per command, each calling one public function."""

from __future__ import annotations

import importlib
import sys

from clearvit.cli.app import app
from clearvit.cli.console import errors, note
from clearvit.cli.failures import describe_failure, write_log

VERBS = (
    *("diagnose", "look", "microscope", "serve", "tokens", "cure", "finetune", "prune", "export"),
    *("discover", "segment", "index", "search", "explain", "evaluate", "compare", "curve"),
    *("bench", "push", "models", "report", "demo"),
)
for _verb in VERBS:
    importlib.import_module(f"clearvit.cli.{_verb}_command")  # which adds it to the app


def main() -> None:
    """Run the command line.

    Exit code 1 is an error the user can fix, 2 wrong usage, 3 one that nobody expected, 130 Ctrl-C.
    """
    if "--debug" in sys.argv:
        app()
        return
    try:
        app()
    except KeyboardInterrupt:
        errors.print("stopped. What is finished is kept; run the same command to go on.")
        sys.exit(130)
    except Exception as error:
        known = describe_failure(error)
        errors.print("error: ", style="bold red", end="")
        note(known or f"unexpected {type(error).__name__}. {write_log(error)}")
        sys.exit(1 if known else 3)
