"""Values of options as text: what is typed for a size, a list, a choice."""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from clearvit.errors import OptionError

PLAIN = {int: "INT", float: "NUMBER", str: "TEXT", bool: "", Path: "PATH"}  # and metavars


def parse(kind: Any, text: Any) -> Any:
    """Read one value of a type from text: "518", "448x672", "0.5,1,auto", "8,-1"."""
    if not isinstance(text, str):
        return text
    try:
        return _read(kind, text.strip())
    except ValueError:
        wanted = metavar_of(kind)
        raise OptionError(f"'{text}' cannot be read; write {wanted}.") from None


def _read(kind: Any, text: str) -> Any:
    for reader in _readers(kind):
        try:
            return reader(text)
        except ValueError:
            continue
    raise ValueError(text)


def _readers(kind: Any) -> list[Callable[[str], Any]]:
    if kind == tuple[int, int]:
        return [_read_size]
    if get_origin(kind) is tuple:
        return [functools.partial(_read_list, get_args(kind)[0])]
    if get_origin(kind) in (Union, types.UnionType):
        order = sorted(get_args(kind), key=lambda part: part is str)
        return [reader for part in order for reader in _readers(part)]
    if get_origin(kind) is Literal:
        return [functools.partial(_read_choice, get_args(kind))]
    if kind is type(None):
        return [_read_none]
    return [kind]


def _read_size(text: str) -> tuple[int, int]:
    height, width = (int(part) for part in text.lower().split("x"))
    return height, width


def _read_list(kind: Any, text: str) -> tuple[Any, ...]:
    parts = [] if text == "none" else text.split(",")
    if kind is Path:
        parts = _join_existing(parts)
    return tuple(_read(kind, part.strip()) for part in parts if part.strip())


def _join_existing(parts: list[str]) -> list[str]:
    """Join parts again where a path that exists has commas in its name; the longest counts."""
    joined = []
    while parts:
        ends = range(len(parts), 0, -1)
        end = next((n for n in ends if os.path.exists(",".join(parts[:n]).strip())), 1)
        joined.append(",".join(parts[:end]))
        parts = parts[end:]
    return joined


def _read_choice(words: tuple[str, ...], text: str) -> str:
    if text not in words:
        raise ValueError(text)
    return text


def _read_none(text: str) -> None:
    _read_choice(("none", "all"), text)


def metavar_of(kind: Any) -> str:
    """Show what may be written: INT|HxW, NUMBER,…, or the words of a choice."""
    if kind == tuple[int, int]:
        return "HxW"
    if get_origin(kind) is tuple:
        return f"{metavar_of(get_args(kind)[0]).replace('none', 'all')},…"
    if get_origin(kind) in (Union, types.UnionType):
        return "|".join(metavar_of(part) for part in get_args(kind))
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    return "none" if kind is type(None) else PLAIN[kind]
