"""`clearvit search`: the images of an index that are most similar to a query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearvit.cli.arguments import Run, out_option
from clearvit.cli.console import next_step, note
from clearvit.cli.generate import command
from clearvit.options import Options, option
from clearvit.retrieval.config import SearchConfig

if TYPE_CHECKING:
    from clearvit.retrieval.index.hits import Hits
    from clearvit.retrieval.index.index import Index

NOTHING = "nothing found: the index is empty, or the filter leaves nothing"
IndexPath = Annotated[str, typer.Argument(help="What `clearvit index` wrote.")]


@dataclass(frozen=True)
class QueryModel(Options):
    """The model that encodes queries."""

    model: str | None = option(
        None,
        "Model that encodes the queries, such as a pruned copy.",
        panel="Query model",
        shown="the index's own, if it is the demo model or in the lists of timm or OpenCLIP",
    )
    other_model: bool = option(
        False, "Accept a model with other weights, such as a cured copy.", panel="Query model"
    )

    def open(self, index: str, run: Run) -> Index:
        """Open an index with this model."""
        from clearvit.retrieval.index.index import Index

        backbone = run.load(self.model) if self.model else None
        return Index.open(index, backbone, other_model=self.other_model, device=run.device)


@dataclass(frozen=True)
class SearchQuery(QueryModel):
    """What the queries are, and the model that encodes them."""

    text: bool = option(False, "Queries are texts, for an index of a CLIP model.", panel="Search")


@command("search")
def search(
    index: IndexPath,
    queries: Annotated[
        list[str], typer.Argument(metavar="QUERY…", help="Images, or texts with --text.")
    ],
    config: SearchConfig,
    query: SearchQuery,
    run: Run,
    out: Annotated[
        Path | None, out_option("HTML page that explains the hits; a directory for several.")
    ] = None,
) -> None:
    """Find the images that are most similar to a query.

    Example: `clearvit search index/ query.jpg --k 5 --rerank 100 --out why.html`

    Example: `clearvit search index/ query.jpg --region 40,60,200,180 --out parts.html`

    Example: `clearvit search index/ --text "a red car"`
    """
    if query.text and out is not None:
        raise typer.BadParameter("--out explains hits patch by patch; a text has no patches.")
    opened = query.open(index, run)
    if query.text:
        found = [opened.search_text(text, config=config) for text in queries]
    else:
        found = opened.search(list[str | Path](queries), config=config)
    if out is not None:
        _write_pages(found, out)
    for hits in found:
        note(f"{hits.query.name}: {hits.note if hits else NOTHING}")
    run.show([hits.to_json() for hits in found], *(line for hits in found for line in _rows(hits)))
    if not query.text and config.region is None and found[0]:
        named = ("--model", query.model) if query.model else ()
        own = Path(queries[0]).resolve()  # the query itself explains nothing
        other = next((hit for hit in found[0] if Path(hit.path).resolve() != own), found[0][0])
        words = (index, queries[0], other.name, *named, "--out", "why.png")
        next_step("clearvit", "explain", *words)


def _rows(hits: Hits) -> Iterator[str]:
    for hit in hits:
        place = f"\t{hit.place}" if hit.place else ""
        yield f"{hit.rank}\t{hit.score:.4f}\t{hit.name}{place}"


def _write_pages(found: list[Hits], out: Path) -> None:
    from clearvit.retrieval.explanations.explanation_page import explain_page
    from clearvit.retrieval.regions.region_page import region_page

    for number, hits in enumerate(found, 1):
        target = out if len(found) == 1 else out / f"{number:03d}.html"
        write = explain_page if hits.query.region is None else region_page
        note(f"page: {write(hits, target)}")
