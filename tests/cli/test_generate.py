"""Commands that are generated from configs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
import typer
from typer.testing import CliRunner

from clearvit.cli.arguments import Run
from clearvit.cli.generate import command
from clearvit.option_text import metavar_of, parse
from clearvit.options import Options, Size, option


@dataclass(frozen=True)
class Config(Options):
    """One field of every type."""

    count: int = option(3, "How many.", minimum=1, maximum=9, panel="Input")
    ratio: float = option(0.5, "How much.", above=0)
    method: Literal["fast", "slow"] = option("fast", "How.")
    other: Literal["a", "b"] | None = option(None, "Which.")
    folder: Path | None = option(None, "Where.", short="-f")
    size: int | Size | None = option(None, "Pixels.", minimum=1, shown="the model's own")
    limit: int | None = option(10, "Images at most.")
    layers: tuple[int, ...] = option((), "Blocks.")
    shots: tuple[int | None, ...] = option((5, None), "Images per class.")
    fit: tuple[float | Literal["auto"], ...] = option((1.0, "auto"), "Candidates.")
    words: tuple[Literal["cat", "dog"], ...] = option(("cat",), "Animals.")
    norm: bool = option(True, "Normalize.")
    strict: bool = option(False, "Stop early.")
    secret: int = option(1, "Python only.", hidden=True)


def run(*arguments):
    """Run a command of these options; gives the click result and the config it was called with."""
    app = typer.Typer()
    seen = []

    @command("work", app)
    def work(name: str, config: Config, run: Run) -> None:
        """Work."""
        seen.append((name, config, run))

    done = CliRunner().invoke(app, [str(word) for word in arguments], env={"COLUMNS": "200"})
    return done, (seen or [None])[0]


def config_of(*options):
    done, seen = run("name", *options)
    assert done.exit_code == 0, done.output
    return seen[1]


def test_without_options_a_command_gets_the_defaults():
    done, seen = run("name")
    assert done.exit_code == 0, done.output
    assert seen == ("name", Config(), Run())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--count", "5", "--ratio", "2"], {"count": 5, "ratio": 2.0}),
        (["--method", "slow", "--other", "b"], {"method": "slow", "other": "b"}),
        (["-f", "here"], {"folder": Path("here")}),
        (["--size", "518"], {"size": 518}),
        (["--size", "448x672"], {"size": (448, 672)}),
        (["--limit", "none"], {"limit": None}),
        (["--limit", "7"], {"limit": 7}),
        (["--layers", "8,-1"], {"layers": (8, -1)}),
        (["--layers", "3"], {"layers": (3,)}),
        (["--layers", "none"], {"layers": ()}),
        (["--shots", "1, all"], {"shots": (1, None)}),
        (["--fit", "0.5,auto,2"], {"fit": (0.5, "auto", 2.0)}),
        (["--words", "dog,cat"], {"words": ("dog", "cat")}),
        (["--no-norm", "--strict"], {"norm": False, "strict": True}),
    ],
)
def test_every_type_is_read(options, expected):
    assert config_of(*options) == Config(**expected)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--count", "0"], "--count"),
        (["--count", "many"], "--count"),
        (["--ratio", "0"], "--ratio"),
        (["--method", "quick"], "--method"),
        (["--size", "big"], "--size"),
        (["--size", "32x0"], "--size"),
        (["--size", "1x2x3"], "--size"),
        (["--layers", "a,b"], "--layers"),
        (["--words", "cow"], "cat|dog"),
        (["--secret", "2"], "--secret"),
    ],
)
def test_a_wrong_value_ends_with_two_and_names_the_option(options, named):
    done, seen = run("name", *options)
    assert done.exit_code == 2 and seen is None
    assert named in done.output


def test_help_shows_panels_defaults_and_what_may_be_written():
    text = " ".join(run("--help")[0].output.split())
    for part in (
        *("─ Input ─", "INT [1<=x<=9]", "[default: 3]", "INT|HxW", "(the model's own)"),
        *("fast|slow", "INT|all,…", "5,all", "NUMBER|auto,…", "--no-norm", "-f"),
    ):
        assert part in text, part
    assert "--layers INT,… Blocks. [default: (none)]" in text
    assert "--secret" not in text and "--no-strict" not in text


def test_values_that_are_no_text_pass_through_the_reader():
    assert parse(tuple[int, ...], (1, 2)) == (1, 2)
    assert metavar_of(int | Size) == "INT|HxW"
