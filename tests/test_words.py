"""The vocabulary: names, help and messages use the words of the field.

The table says what to write instead. Words are looked for in identifiers (split at underscores and
capitals) and in the sentences that users read: help of options and messages of errors.
"""

import ast
import dataclasses
import functools
import importlib
import re
from pathlib import Path

import pytest

from clearvit.options import Options

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "clearvit"
MODULES = sorted(SOURCE.rglob("*.py"))
SCRIPTS = sorted([*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "examples").glob("*.py")])

WORDS = {  # a word or words in a row -> what to write
    "pupil": "student",
    "lesson": "training task",
    "heir": "assignment",
    "foresee": "warm-up of the predictors",
    "foresight": "warm-up of the predictors",
    "settle": "fine-tune, or resolve",
    "settled": "resolved",
    "settling": "fine-tuning",
    "survivor": "kept token",
    "yardstick": "reference, baseline",
    "contender": "entry, model",
    "unlock": "train, unfreeze",
    "unlocked": "trainable",
    "locked": "frozen",
    "mend": "fix, correct",
    "told": "reported",
    "crest": "peak",
    "kept out": "held out",
    "brought back": "unshift, from_source",
    "brought in": "from_source",
    "taken along": "shift",
    "sent back": "to_source",
    "take turns": "interleave",
    "running mean": "EMA, moving average",
    "picture": "image",
    "chance": "rng, generator; random",
    "neighbour": "neighbor",
    "colour": "color",
    "normalise": "normalize",
    "quantise": "quantize",
}
TORCH = {"running_mean"}  # attributes of torch.nn.BatchNorm2d
IDENTIFIERS_ONLY = {"picture", "neighbour", "colour", "normalise", "quantise", "chance"}


def words_of(text):
    """Split "kept_out", "keptOut" or "a kept-out image" into lower-case words."""
    parted = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text)
    return [word.lower() for word in re.findall(r"[A-Za-z]+", parted)]


@functools.cache  # a name stands in many places
def forbidden_in(text, words=tuple(WORDS)):
    spoken = f" {' '.join(words_of(text))} "
    return [word for word in words if f" {word} " in spoken or f" {word}s " in spoken]


def identifiers_of(tree):
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and node.attr not in TORCH:
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.lineno, node.arg
        elif isinstance(node, ast.alias):
            yield node.lineno, (node.asname or node.name).rsplit(".", 1)[-1]


def messages_of(tree):
    """Texts inside `raise …` and `warn(…)`."""
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        name = getattr(called, "attr", getattr(called, "id", ""))
        if isinstance(node, ast.Raise) or name in ("warn", "option", "Option", "Argument"):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("kept_out", ["kept out"]),
        ("LastLessons", ["lesson"]),
        ("recommend", []),
        ("amendment", []),
        ("a kept-out image", ["kept out"]),
        ("running_means", ["running mean"]),
    ],
)
def test_words_are_found_as_words(text, found):
    assert forbidden_in(text) == found


def test_identifiers_use_the_words_of_the_field():
    bad = []
    for path in [*MODULES, *SCRIPTS]:
        names = set(identifiers_of(ast.parse(path.read_text("utf-8"))))
        for line, name in sorted({(0, path.stem), *names}):
            bad += [
                f"{path.relative_to(ROOT)}:{line}: {name} (write {WORDS[word]})"
                for word in forbidden_in(name)
            ]
    assert not bad, "\n".join(["rename:", *bad])


def test_messages_and_help_use_the_words_of_the_field():
    words = [word for word in WORDS if word not in IDENTIFIERS_ONLY]
    bad = []
    for path in MODULES:
        for line, text in messages_of(ast.parse(path.read_text("utf-8"))):
            bad += [
                f"{path.relative_to(ROOT)}:{line}: '{word}' (write {WORDS[word]}) in {text!r}"
                for word in forbidden_in(text, tuple(words))
            ]
    assert not bad, "\n".join(["rewrite:", *bad])


def test_help_strings_are_sentences():
    """Help makes sense without the name of its option: no "Of the resampling.", "That vote."."""
    bad = []
    for kind in config_classes():
        for field in dataclasses.fields(kind):
            text = field.metadata.get("help", "")
            if text.startswith(("Of ", "That ")) or not text or not text.endswith("."):
                bad.append(f"{kind.__module__}.{kind.__name__}.{field.name}: {text!r}")
    assert not bad, "\n".join(["write help as a sentence with a full stop:", *bad])


def config_classes():
    importlib.import_module("clearvit.cli")  # imports every config
    waiting = [Options]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            waiting.append(kind)
            if kind.__module__.startswith("clearvit"):
                yield kind
