"""The command line, called in this process."""

from typer.testing import CliRunner

from clearvit.cli import app


def invoke(*arguments):
    """Run a command; arguments may be paths and numbers."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])
