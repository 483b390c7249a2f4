"""Filters of a search, as SQL over what is known of files."""

from __future__ import annotations

import re
from collections.abc import Sequence

from clearvit.errors import StoreError
from clearvit.retrieval.index.arrow_rows import FILTERS


def wrong_filter(where: str, error: Exception) -> StoreError:
    """Say in one sentence what is wrong with a filter."""
    reason = first_line(error).removeprefix("Invalid input, ").split(". Valid fields")[0]
    return StoreError(
        f'the filter "{where}" cannot be used: {reason.split(", /")[0]}. Write SQL over'
        f" {', '.join(FILTERS)}, such as \"label = 'cats' AND bytes > 1000\"."
    )


def first_line(error: Exception) -> str:
    """Give the first line of what the database says."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def whole_filter(where: str) -> str:
    """Put a filter in parentheses: the database ignores text after a complete expression."""
    depth = 0
    for mark in re.sub(r"'[^']*'|\"[^\"]*\"", "", where):
        depth += {"(": 1, ")": -1}.get(mark, 0)
        if depth < 0:
            raise ValueError("it closes a parenthesis that it never opened")
    return f"({where}\n)"


def quote_names(names: Sequence[str]) -> str:
    """Write names as a list of SQL."""
    return ", ".join("'" + name.replace("'", "''") + "'" for name in names)
