"""The command-line application that every verb is added to."""

from __future__ import annotations

from typing import Annotated

import typer

from clearvit import __version__

app = typer.Typer(
    name="clearvit",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    """Make the tokens of a pretrained Vision Transformer clear, fine, useful and cheap."""
