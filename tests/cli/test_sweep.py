"""All verbs speak alike."""

import dataclasses
import re
import shlex
import subprocess
import sys
from typing import Literal, get_args, get_origin

import pytest
import typer
from PIL import Image

from clearvit.cli import app
from clearvit.errors import ClearvitError, OptionError
from clearvit.options import choices_of, option_types
from tests.helpers.commands import LINE, PAGES, invoke


def leaves(group, prefix=""):
    """All commands by name; those of a group have two words, such as "evaluate depth"."""
    found = {}
    for name, command in sorted(group.commands.items()):
        below = getattr(command, "commands", None)
        found |= leaves(command, f"{name} ") if below else {f"{prefix}{name}": command}
    return found


COMMANDS = leaves(typer.main.get_command(app))
VERBS = list(COMMANDS)


def fields_of(verb):
    """Fields of all configs of a verb that are offered on the command line, with their types."""
    for config in COMMANDS[verb].callback.configs:
        hints = option_types(config)
        for field in dataclasses.fields(config):
            if not field.metadata["hidden"]:
                yield field, hints[field.name]


def numeric(hint):
    """Tell whether a type takes a number, also in a tuple or beside None."""
    if get_origin(hint) is Literal:
        return False
    return hint in (int, float) or any(numeric(part) for part in get_args(hint))


def without_none(hint):
    parts = [part for part in get_args(hint) if part is not type(None)]
    return parts[0] if len(parts) == 1 and get_origin(hint) is not tuple else hint


def options_of(verb):
    return {name for p in COMMANDS[verb].params for name in (*p.opts, *p.secondary_opts)}


@pytest.mark.parametrize("verb", VERBS)
def test_help_teaches_by_examples_that_the_verb_understands(verb):
    done = invoke(*verb.split(), "--help")
    assert done.exit_code == 0
    text = COMMANDS[verb].help
    examples = re.findall(r"Example: `(clearvit [^`]+)`", text)
    assert examples
    for example in examples:
        understood(example)


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_explained(verb):
    for parameter in COMMANDS[verb].params:
        assert getattr(parameter, "help", ""), f"{verb}: {parameter.name}"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_speaks_json(verb):
    assert "--json" in options_of(verb)


def test_verbs_that_run_a_model_take_the_same_options():
    for verb in VERBS:
        if verb in ("demo", "report", "models", "push"):  # calls the others; run no model
            continue
        assert {"--device", "--threads"} <= options_of(verb), verb
        if "model" in {p.name for p in COMMANDS[verb].params if not p.opts[0].startswith("-")}:
            assert {"--size", "--positions", "--out"} <= options_of(verb), verb


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_on_the_pages_exist_with_their_options(page):
    blocks = re.findall(r"```(\w*)\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    shell = "\n".join(code for language, code in blocks if language in ("", "bash", "text"))
    for line in LINE.findall(shell.replace("\\\n", " ")):
        understood(line)


def understood(line):
    """Let the parser read a command line, with whatever it needs to be there taken as there."""
    words = [word for word in shlex.split(line, comments=True)[1:]]
    if words[0] in ("--version", "--install-completion", "--show-completion", "--help"):
        return
    deep = " ".join(words[:2]) in COMMANDS
    verb, rest = (" ".join(words[:2]), words[2:]) if deep else (words[0], words[1:])
    assert verb in VERBS, line
    flags = {word.partition("=")[0] for word in rest if word.startswith("--")}
    assert flags <= options_of(verb) | {"--help"}, f"{line}: {flags - options_of(verb)}"
    required = [p for p in COMMANDS[verb].params if p.required]
    places = [p for p in required if p.param_type_name == "argument"]
    given = [word for word in rest if not word.startswith("-")]
    assert len(given) >= len(places), line
    for option in required:
        if option.param_type_name == "option":
            assert flags & set(option.opts), f"{line}: {option.opts[0]} is missing"


def test_the_version_completion_and_module_are_there():
    done = subprocess.run(
        [sys.executable, "-m", "clearvit", "--version"], capture_output=True, text=True
    )
    assert done.returncode == 0 and re.search(r"\d+\.\d+", done.stdout)
    assert "--install-completion" in invoke("--help").output


def test_a_wrong_option_ends_with_two_and_a_wrong_model_with_one(tmp_path):
    wrong = invoke("look", "demo", "cat.jpg", "--nonsense")
    assert wrong.exit_code == 2
    line = [sys.executable, "-m", "clearvit", "look", f"dir:{tmp_path}/none", "cat.jpg"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 1
    assert "error:" in done.stderr and "Traceback" not in done.stderr
    debugged = subprocess.run([*line[:3], "--debug", *line[3:]], capture_output=True, text=True)
    assert debugged.returncode == 1 and "Traceback" in debugged.stderr


CHOICES = [
    (verb, field.name.replace("_", "-"), choices_of(hint))
    for verb in VERBS
    for field, hint in fields_of(verb)
    if choices_of(hint) and hint not in (str, tuple[str, ...])
]


@pytest.mark.parametrize("verb, option, choices", CHOICES)
def test_a_wrong_choice_ends_with_two_and_names_the_right_ones(verb, option, choices):
    done = invoke(*verb.split(), f"--{option}", "nonsense")
    assert done.exit_code == 2
    assert all(choice in re.sub(r"\s+│?\s*│?\s*", "", done.output) for choice in choices)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_offers_the_fields_of_its_configs_and_nothing_else(verb):
    names = {field.name for field, _ in fields_of(verb)}
    params = {p.name for p in COMMANDS[verb].params if p.param_type_name == "option"}
    assert params - {"help", "out", "data"} == names - {"out"}


@pytest.mark.parametrize("verb", VERBS)
def test_help_sentences_are_sentences(verb):
    for field, _ in fields_of(verb):
        text = field.metadata["help"]
        assert text[0].isupper() and text.endswith("."), f"{verb} --{field.name}: {text}"
        assert not text.startswith(("Of ", "That ")), f"{verb} --{field.name}: {text}"


def test_the_import_is_light():
    code = (
        "import sys, clearvit; "
        "print([m for m in ('torch', 'timm', 'matplotlib', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


NUMBERS = [
    (config, field)
    for config in {config for verb in VERBS for config in COMMANDS[verb].callback.configs}
    for field in dataclasses.fields(config)
    if numeric(option_types(config)[field.name])
]
"""Every option of every verb that takes a number, hidden ones included."""


def test_every_number_has_a_range_and_keeps_it():
    for config, field in NUMBERS:
        limits = field.metadata
        name = f"{config.__name__}.{field.name}"
        low = limits["minimum"] if limits["minimum"] is not None else limits["above"]
        assert low is not None, f"{name} has no lower limit"
        high = limits["maximum"] if limits["maximum"] is not None else limits["below"]
        for wrong in (
            low - 1,
            (2**31 if high is None else high + 1),
            *(10**20, -(10**20), 10**400, float("nan"), float("inf"), -float("inf")),
        ):
            many = option_types(config)[field.name]
            value = (wrong,) if get_origin(without_none(many)) is tuple else wrong
            with pytest.raises(OptionError, match=field.name):
                config.build({field.name: value})


RUN = [verb for verb in VERBS if "--device" in options_of(verb)]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Places where nothing can be written, an image, and no model."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "file").touch()
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "images").mkdir()
    Image.new("RGB", (8, 8)).save(folder / "images" / "a.png")
    return folder


def line_of(verb, folder):
    """A command line with all that is required; the model does not exist."""
    words = verb.split()
    for parameter in COMMANDS[verb].params:
        if not parameter.required:
            continue
        if parameter.param_type_name == "option":
            if parameter.name != "out":
                words += [parameter.opts[0], folder / "images"]
        elif parameter.name in ("images", "queries", "query", "sources"):
            words.append(folder / "images" / "a.png")
        else:
            words.append(f"dir:{folder / 'no model'}")
    return [*words, *([folder / "images"] if verb in ("diagnose", "compare", "microscope") else [])]


@pytest.mark.parametrize("verb", [verb for verb in VERBS if "--out" in options_of(verb)])
def test_a_place_that_cannot_be_written_is_one_sentence_in_every_verb(hostile, verb):
    for place in ("file/below", "loop", "loop/below", "x" * 300, "new/" + "y" * 300):
        done = invoke(*line_of(verb, hostile), "--out", hostile / place)
        assert isinstance(done.exception, ClearvitError), (place, done.exception, done.output)
        assert "Choose another" in str(done.exception)
    assert sorted(path.name for path in hostile.iterdir()) == ["file", "images", "loop"]


@pytest.mark.parametrize("verb", RUN)
def test_a_wrong_device_is_one_sentence_in_every_verb(hostile, tmp_path, verb):
    if verb in ("search", "explain"):  # which open the index first
        return
    words = line_of(verb, hostile)
    out = ["--out", tmp_path / "out"] if "--out" in options_of(verb) else []
    done = invoke(*words, *out, "--device", "abc")
    if verb.startswith("evaluate"):  # which reads its data first
        assert isinstance(done.exception, ClearvitError), (done.exception, done.output)
        return
    assert isinstance(done.exception, OptionError), (done.exception, done.output)
    assert "auto" in str(done.exception)


@pytest.mark.parametrize("verb", VERBS)
def test_very_long_names_are_one_sentence(hostile, tmp_path, verb):
    words = [w if "no model" not in str(w) else "z" * 5000 for w in line_of(verb, hostile)]
    out = ["--out", tmp_path / "out"] if "--out" in options_of(verb) else []
    if verb == "demo":  # whose model is an option, used after the photos
        return
    words += ["z" * 5000] if verb == "models" else []  # whose only argument may be left out
    done = invoke(*words, *out)
    assert isinstance(done.exception, (ClearvitError, SystemExit)), done.exception
    assert done.exit_code in (1, 2) and len(str(done.exception)) < 12_000
