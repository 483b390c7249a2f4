"""`clearvit explain`: why an image of an index is similar to a query."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from clearvit.cli.arguments import ResultFile, Run, out_option
from clearvit.cli.console import note
from clearvit.cli.generate import command
from clearvit.cli.search_command import IndexPath, QueryModel
from clearvit.retrieval.config import Matching


@command("explain")
def explain(
    index: IndexPath,
    query: Annotated[str, typer.Argument(help="The query image.")],
    hit: Annotated[str, typer.Argument(help="Name of an image in the index.")],
    config: Matching,
    model: QueryModel,
    run: Run,
    file: ResultFile,
    out: Annotated[Path, out_option("PNG to write.")] = Path("why.png"),
) -> None:
    """Draw which parts a query and an image of the index share.

    Example: `clearvit explain index/ query.jpg cats/03.jpg --out why.png`
    """
    from clearvit.retrieval.explanations.explanation import NOT_FOUND

    file.check(out)
    pair = model.open(index, run).explain(query, hit, config=config)
    path = pair.explain(out, overwrite=file.overwrite)
    explanation = pair.explanation()
    summary = {
        "out": str(path),
        "global_similarity": pair.global_similarity,
        "patch_similarity": pair.patch_similarity,
        "found": explanation.found,
        "parts": [asdict(part) for part in explanation.list_parts()],
        "lines": [asdict(line) for line in explanation.list_lines()],
    }
    run.show(summary, path)
    if not explanation.found:
        note(NOT_FOUND)
