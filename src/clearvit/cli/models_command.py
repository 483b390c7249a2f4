"""`clearvit models`: which names load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from clearvit.cli.arguments import Output
from clearvit.cli.console import next_step, note
from clearvit.cli.generate import command
from clearvit.options import Options, option

Pattern = Annotated[
    str | None,
    typer.Argument(
        metavar="[PATTERN]",
        help='Part of a name, or a quoted pattern with wildcards such as `"vit_*dinov2*"`.',
        show_default=False,
    ),
]


@dataclass(frozen=True)
class ModelsConfig(Options):
    """Which names are listed."""

    untrained: bool = option(
        False, "Also list architectures that timm has no weights for.", panel="Models"
    )


@command("models")
def models(config: ModelsConfig, output: Output, pattern: Pattern = None) -> None:
    """List what loads: how each kind of model is written, and the names that match a pattern.

    Names marked "grid only" give a map of features without blocks or attention; tokens, look,
    index and evaluate take them, diagnose, cure and prune do not.

    Example: `clearvit models`

    Example: `clearvit models "vit_*dinov2*"`
    """
    from clearvit.backbones.sources.model_names import PREFIXES, list_names

    if pattern is None:
        width = max(map(len, PREFIXES))
        lines = (f"{name:{width}}  {meaning}" for name, meaning in PREFIXES.items())
        output.show({"prefixes": PREFIXES}, *lines)
        next_step("clearvit", "models", "vit_*dinov2*")
        return
    found = list_names(pattern, untrained=config.untrained)
    content = {"models": [{"name": name, "tokens": kind} for name, kind in found.items()]}
    lines = (name if kind == "blocks" else f"{name}  (grid only)" for name, kind in found.items())
    output.show(content, *lines)
    if not found:
        note(f"no name matches '{pattern}'. Use wildcards: clearvit models \"*dinov2*\"")
        raise typer.Exit(1)
    note(f"{len(found)} names")
    next_step("clearvit", "look", next(iter(found)), "IMAGE.jpg")
