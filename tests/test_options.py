"""Options of verbs: flat keywords, whole configs, presets, and errors that teach."""

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from clearvit.cures.config import CureConfig
from clearvit.errors import OptionError
from clearvit.option_text import parse
from clearvit.options import Options, Size, option, with_options
from clearvit.progress import Progress


@dataclass(frozen=True)
class Config(Options):
    """Options of the verb below."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"epochs": 50, "rate": 0.1}}

    preset: Literal["paper"] | None = option(None, "A recipe of a paper.")
    epochs: int = option(3, "Passes over the images.", minimum=1)
    rate: float = option(0.5, "Step size.", above=0, below=1)
    method: Literal["fast", "slow"] = option("fast", "How it is done.")
    size: int | Size | None = option(None, "Pixels.", minimum=1, shown="the model's own")
    layers: tuple[int, ...] = option((), "Blocks, counted from 0.")
    fit: tuple[float | Literal["auto"], ...] = option((1.0, "auto"), "Candidates.")
    name: Literal["cat"] | str = option("cat", "A known name, or any other.")


@with_options(Config)
def work(images: str, *, config: Config, progress: Progress | None = None) -> Config:
    """Do some work.

    Args:
        images: Where they are.
        config: All options at once.
        progress: Called for every image.
    """
    assert progress is not None
    return config


def test_a_verb_takes_flat_options_or_a_config_or_both():
    assert work("a") == Config()
    assert work("a", epochs=5) == Config(epochs=5)
    given = Config(epochs=5, method="slow")
    assert work("a", config=given) is not None and work("a", config=given) == given
    assert work("a", config=given, epochs=7) == Config(epochs=7, method="slow")


def test_lists_become_tuples():
    assert work("a", layers=[8, -1]).layers == (8, -1)


def test_one_value_is_a_list_of_one():
    assert Config(layers=3).layers == (3,)
    assert Config(fit="auto").fit == ("auto",)
    assert CureConfig(unfreeze="all").unfreeze == ("all",)  # not its letters


def test_an_unknown_option_is_refused_with_the_closest_name():
    for config in (None, Config()):
        with pytest.raises(OptionError, match=r"epoch.*Closest: epochs") as error:
            work("a", epoch=5, config=config)
        assert error.value.option == "epoch"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epochs": 0}, "at least 1"),
        ({"rate": 0.0}, "more than 0 and less than 1"),
        ({"rate": 1.0}, "more than 0 and less than 1"),
        ({"rate": float("nan")}, "more than 0"),
        ({"method": "slo"}, "fast, slow.*Closest: slow"),
        ({"size": (32, 0)}, "at least 1"),
        ({"fit": (1.0, "none")}, "auto"),
        ({"preset": "papre"}, "paper"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(given, message):
    with pytest.raises(OptionError, match=message) as error:
        Config(**given)
    assert error.value.option == next(iter(given))


def test_none_text_and_right_values_pass():
    config = Config(size=(448, 672), fit=("auto",), name="dog", rate=0.9)
    assert (config.size, config.fit, config.name) == ((448, 672), ("auto",), "dog")


def test_a_preset_stands_below_what_is_given():
    assert Config(preset="paper").epochs == 50
    assert Config(preset="paper", epochs=3).epochs == 3  # given, though it is the default
    assert work("a", preset="paper", rate=0.2) == Config(epochs=50, rate=0.2, preset="paper")
    assert work("a", config=Config(preset="paper"), rate=0.2).epochs == 50


def test_a_preset_stands_above_an_older_config():
    old = Config(epochs=7, method="slow")
    assert work("a", config=old, preset="paper") == Config(preset="paper", method="slow")
    assert work("a", config=old, preset="paper", epochs=2).epochs == 2


def test_help_of_a_config_shows_its_fields():
    names = list(inspect.signature(CureConfig).parameters)
    assert names == [field.name for field in dataclasses.fields(CureConfig)]


def test_the_signature_and_the_docstring_list_every_option():
    signature = inspect.signature(work)
    own = ["images", "config", "progress"]
    fields = [name for name in signature.parameters if name not in own]
    assert fields == [field.name for field in dataclasses.fields(Config)]
    assert signature.parameters["epochs"].default == 3
    assert "epochs: Passes over the images. Default: 3." in work.__doc__
    assert "size: Pixels. Default: the model's own." in work.__doc__
    assert "layers: Blocks, counted from 0. Default: none." in work.__doc__
    assert "fit: Candidates. Default: 1,auto." in work.__doc__


def test_a_list_of_paths_takes_folders_with_commas_in_their_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a,b", "c", "x"):
        (tmp_path / name).mkdir()
    kind = tuple[Path, ...]
    assert parse(kind, "a,b,c") == (Path("a,b"), Path("c"))
    assert parse(kind, "c, a,b ,x") == (Path("c"), Path("a,b"), Path("x"))
    assert parse(kind, "c,missing") == (Path("c"), Path("missing"))
