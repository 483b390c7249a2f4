"""`clearvit search`: the images of an index that are most like a query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearvit.cli import options
from clearvit.cli.console import errors, load_model, next_step, note, prepare

if TYPE_CHECKING:
    from clearvit.retrieval.hits import Hits

IndexPath = Annotated[str, typer.Argument(help="What `clearvit index` wrote.")]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Model of the queries, such as a pruned copy; else the index's own, by name.",
    ),
]
MethodOption = Annotated[str, typer.Option(help="transport, mutual or chamfer.")]
MassOption = Annotated[
    str, typer.Option(help="Share that transport moves, above 0 to 1, or auto per pair.")
]
CrossOption = Annotated[
    bool, typer.Option("--cross", help="Weigh patches by the other image too, as DIML does.")
]
OtherOption = Annotated[
    bool, typer.Option("--other-model", help="Accept a --model with other weights.")
]


def command(
    index: IndexPath,
    queries: Annotated[
        list[str], typer.Argument(metavar="QUERY…", help="Images, or texts with --text.")
    ],
    k: Annotated[int, typer.Option("--k", min=1, help="How many hits.")] = 10,
    rerank: Annotated[
        int, typer.Option(min=0, help="How many of the nearest to compare patch by patch.")
    ] = 0,
    method: MethodOption = "transport",
    mass: MassOption = "1",
    cross: CrossOption = False,
    weight: Annotated[
        float | None, typer.Option(min=0.0, help="Of structure; else the guard decides.")
    ] = None,
    where: Annotated[
        str | None, typer.Option(help="SQL over name, folder, label, bytes, width, height …")
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Queries are texts (CLIP).")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Page that explains the hits; a directory for several."),
    ] = None,
    model: ModelOption = None,
    other_model: OtherOption = False,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Find the images that are most like a query.

    Example: `clearvit search index/ query.jpg --k 5 --rerank 100 --out why.html`

    Example: `clearvit search index/ --text "a red car"`
    """
    if text and out is not None:
        raise typer.BadParameter("--out explains hits patch by patch; a text has no patches.")
    prepare(threads)
    opened = open_index(index, model, device, other_model)
    if text:
        found = [opened.search_text(query, k=k, where=where) for query in queries]
    else:
        found = opened.search(
            queries,
            k=k,
            rerank=rerank,
            where=where,
            method=matching_of(method, mass, cross),
            weight=weight,
        )
    if out is not None:
        _write_pages(found, out)
    if as_json:
        print(json.dumps([_numbers(hits) for hits in found]))
        return
    for hits in found:
        _tell(hits)
    if not text and found[0]:
        next_step(f"clearvit explain {index} {queries[0]} {found[0].names[0]} --out why.png")


def open_index(index: str, model: str | None, device: str, other_model: bool) -> Any:
    """Open an index with a model of its own or another; `device` is where it runs."""
    from clearvit.retrieval.index import Index

    backbone = load_model(model, None, device) if model else None
    opened = Index.open(index, backbone, other_model=other_model)
    opened.backbone.to(device)
    return opened


def matching_of(method: str, mass: str, cross: bool) -> Any:
    """Read how patches are compared."""
    from clearvit.retrieval.matching import Matching

    try:
        share = mass if mass == "auto" else float(mass)
    except ValueError:
        raise typer.BadParameter(f"'{mass}' is no share; write 0.7 or auto.") from None
    return Matching(method, mass=share, cross=cross)  # type: ignore[arg-type]


def _tell(hits: Hits) -> None:
    note(f"{hits.query.name}: {hits.note}")
    for hit in hits:
        print(f"{hit.rank}\t{hit.score:.4f}\t{hit.name}")
    if not len(hits):
        errors.print("nothing found: the index is empty, or the filter leaves nothing")


def _numbers(hits: Hits) -> dict[str, Any]:
    listed = [
        {
            "rank": hit.rank,
            "name": hit.name,
            "path": hit.path,
            "score": hit.score,
            "global": hit.global_similarity,
            "structural": hit.structural,
        }
        for hit in hits
    ]
    return {"query": hits.query.name, "note": hits.note, "hits": listed}


def _write_pages(found: list[Hits], out: Path) -> None:
    from clearvit.retrieval.explain import explain_page

    for number, hits in enumerate(found, 1):
        target = out if len(found) == 1 else out / f"{number:03d}.html"
        note(f"page: {explain_page(hits, target)}")
