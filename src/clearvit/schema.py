"""What a JSON file may say before anything is built from it: types, ranges and sizes.

A directory may come from a stranger. Each rule takes a value and gives "" or, in words, what was
expected instead; unknown keys are refused, so that nothing passes through to a library unseen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from clearvit.errors import ClearvitError
from clearvit.files import read_json

Rule = Callable[[Any], str]
LONGEST_TEXT = 4096  # characters


def read_checked(
    path: Path,
    rules: Mapping[str, Rule],
    *,
    error: type[ClearvitError],
    version: str | None = None,
    optional: Collection[str] = (),
) -> dict[str, Any]:
    """Read a JSON file that clearvit wrote, and check it.

    Args:
        path: The file.
        rules: The rule of each key.
        error: What to raise.
        version: The key that says how the file is laid out; its rule knows the layouts.
        optional: Keys that may be absent.
    """
    content = read_json(path, error)
    if version is not None and rules[version](content.get(version)):
        raise error(f"'{path}' was written by another version of clearvit; update clearvit.")
    check_content(content, rules, where=str(path), error=error, optional=optional)
    return content


def check_content(
    content: Any,
    rules: Mapping[str, Rule],
    *,
    where: str,
    error: type[ClearvitError],
    optional: Collection[str] = (),
    ignore_unknown: bool = False,
) -> None:
    """Refuse an object that lacks a key, has an unknown one, or a value that no rule allows.

    Args:
        content: What was read.
        rules: The rule of each key.
        where: The file, for the message.
        error: What to raise.
        optional: Keys that may be absent.
        ignore_unknown: Let other keys pass; whoever reads them has to check them.
    """
    problem = table(rules, optional=optional, ignore_unknown=ignore_unknown)(content)
    if problem:
        raise error(f"'{where}' cannot be used: {problem}.")


def table(
    rules: Mapping[str, Rule], *, optional: Collection[str] = (), ignore_unknown: bool = False
) -> Rule:
    """Expect an object with these keys."""

    def rule(value: Any) -> str:
        if not isinstance(value, Mapping):
            return "an object was expected"
        for key in rules:
            if key not in value and key not in optional:
                return f"'{key}' is missing"
        for key, one in value.items():
            if key not in rules:
                if ignore_unknown:
                    continue
                return f"{shorten(key)} is unknown"
            if problem := rules[key](one):
                return f"'{key}' is {shorten(one)}; {problem}"
        return ""

    return rule


def whole(low: int, high: int) -> Rule:
    """Expect a whole number, both limits allowed."""

    def rule(value: Any) -> str:
        right = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return "" if right else f"a whole number from {low} to {high} was expected"

    return rule


def number(low: float, high: float) -> Rule:
    """Expect a finite number, both limits allowed."""

    def rule(value: Any) -> str:
        known = isinstance(value, (int, float)) and not isinstance(value, bool)
        right = known and math.isfinite(value) and low <= value <= high
        return "" if right else f"a number from {low:g} to {high:g} was expected"

    return rule


def flag(value: Any) -> str:
    """Expect true or false."""
    return "" if isinstance(value, bool) else "true or false was expected"


def text(value: Any) -> str:
    """Expect text, not too long."""
    right = isinstance(value, str) and len(value) <= LONGEST_TEXT
    return "" if right else f"text of at most {LONGEST_TEXT} characters was expected"


def one_of(*words: Any) -> Rule:
    """Expect one of some values."""

    def rule(value: Any) -> str:
        right = any(type(value) is type(word) and value == word for word in words)
        return "" if right else f"one of {', '.join(map(str, words))} was expected"

    return rule


def list_of(item: Rule, least: int, most: int) -> Rule:
    """Expect a list of `least` to `most` items."""

    def rule(value: Any) -> str:
        if not isinstance(value, (list, tuple)) or not least <= len(value) <= most:
            count = f"{least}" if least == most else f"{least} to {most}"
            return f"a list of {count} was expected"
        return next((problem for one in value if (problem := item(one))), "")

    return rule


def mapping_of(item: Rule, most: int) -> Rule:
    """Expect an object with any keys, at most `most` of them."""

    def rule(value: Any) -> str:
        if not isinstance(value, Mapping) or len(value) > most:
            return f"an object of at most {most} keys was expected"
        return next((problem for one in value.values() if (problem := item(one))), "")

    return rule


def either(*rules: Rule) -> Rule:
    """Expect what any of some rules allows."""

    def rule(value: Any) -> str:
        problems = [one(value) for one in rules]
        return "" if "" in problems else problems[-1]

    return rule


def nothing(value: Any) -> str:
    """Expect null."""
    return "" if value is None else "null was expected"


def shorten(value: Any, most: int = 60) -> str:
    """Show a value in an error, however long it is."""
    shown = repr(value)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"
