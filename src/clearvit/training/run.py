"""A directory belongs to one run: what decides its result is written down before the work."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clearvit.errors import StoreError
from clearvit.files import remove_leftovers, write_json
from clearvit.shards.plan import read_json

PLAN = "plan.json"


def claim(folder: Path, plan: Mapping[str, Any], *, overwrite: bool = False) -> None:
    """Take a directory for a run, or go on with one that was begun with the same plan.

    Args:
        folder: The directory; everything in it belongs to the run.
        plan: All that decides the result, as JSON can hold it.
        overwrite: Empty a directory of another run instead of refusing it.
    """
    ours = json.loads(json.dumps(dict(plan)))
    remove_leftovers(folder)
    if (folder / PLAN).exists():
        theirs = read_json(folder / PLAN)
        differing = [key for key in {**ours, **theirs} if theirs.get(key) != ours.get(key)]
        if not differing:
            return
        if not overwrite:
            pairs = ((key, _short(theirs.get(key)), _short(ours.get(key))) for key in differing)
            changes = "; ".join(f"{key} was {then}, now {now}" for key, then, now in pairs)
            raise StoreError(
                f"'{folder}' was made by another run: {changes}. Choose another --out, or"
                " --overwrite to start again."
            )
        shutil.rmtree(folder)
    elif folder.exists() and any(folder.iterdir()):
        raise StoreError(
            f"'{folder}' is not empty and was not made by clearvit. Choose another --out."
        )
    write_json(folder / PLAN, ours)


def _short(value: Any, most: int = 40) -> str:
    text = str(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"
