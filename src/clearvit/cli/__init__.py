"""The command line: one thin file per command, each calling one public function."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from clearvit import __version__
from clearvit.cli import (
    bench,
    compare,
    cure,
    demo,
    diagnose,
    discover,
    evaluate,
    explain,
    export,
    index,
    look,
    prune,
    report,
    search,
    tokens,
)
from clearvit.cli.console import errors, note
from clearvit.errors import ClearvitError

app = typer.Typer(
    name="clearvit",
    help="Make the tokens of a pretrained Vision Transformer clear, useful and cheap.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.command("bench")(bench.command)
app.command("compare")(compare.command)
app.command("cure")(cure.command)
app.command("demo")(demo.command)
app.command("diagnose")(diagnose.command)
app.command("discover")(discover.command)
app.command("evaluate")(evaluate.command)
app.command("explain")(explain.command)
app.command("export")(export.command)
app.command("index")(index.command)
app.command("look")(look.command)
app.command("prune")(prune.command)
app.command("report")(report.command)
app.command("search")(search.command)
app.command("tokens")(tokens.command)


def _version(asked: bool) -> None:
    if asked:
        print(f"clearvit {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option(help="Show the full traceback of an error.")] = False,
) -> None:
    """Make the tokens of a pretrained Vision Transformer clear, useful and cheap."""


def main() -> None:
    """Run the command line; exit code 1 for an error a user can mend, 2 for wrong usage."""
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
