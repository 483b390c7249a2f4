"""`clearvit explain`: why an image of an index is like a query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from clearvit.cli import options
from clearvit.cli.console import prepare
from clearvit.cli.search import (
    CrossOption,
    IndexPath,
    MassOption,
    MethodOption,
    ModelOption,
    OtherOption,
    matching_of,
    open_index,
)


def command(
    index: IndexPath,
    query: Annotated[str, typer.Argument(help="An image.")],
    hit: Annotated[str, typer.Argument(help="Name of an image in the index.")],
    out: Annotated[Path, typer.Option("--out", help="PNG to write.")] = Path("why.png"),
    method: MethodOption = "transport",
    mass: MassOption = "1",
    cross: CrossOption = False,
    model: ModelOption = None,
    other_model: OtherOption = False,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Draw which patches of a query and an image of the index match.

    Example: `clearvit explain index/ query.jpg cats/03.jpg --out why.png`
    """
    prepare(threads)
    matching = matching_of(method, mass, cross)
    pair = open_index(index, model, device, other_model).explain(query, hit, method=matching)
    path = pair.explain(out)
    if as_json:
        matches = [
            {
                "query": list(match.query),
                "hit": list(match.hit),
                "mass": match.mass,
                "similarity": match.similarity,
                "contribution": match.contribution,
            }
            for match in pair.explanation().strongest()
        ]
        numbers = {"global": pair.global_similarity, "structural": pair.structural}
        print(json.dumps({"out": str(path), **numbers, "matches": matches}))
    else:
        print(path)
