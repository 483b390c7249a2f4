"""The command line, called in this process or in its own; the pages that print commands."""

import re
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from clearvit.cli import app

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"^(?:\$ )?(clearvit .*)$", re.MULTILINE)  # a command on a page
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def invoke(*arguments):
    """Run a command; arguments may be paths and numbers."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def clearvit(*arguments, cwd=None):
    """Run the real command in its own process."""
    line = [sys.executable, "-m", "clearvit", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, cwd=cwd)
