"""What commands take in the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

Model = Annotated[
    str, typer.Argument(help="timm:NAME, hf:ID, openclip:ARCH/TAG, dir:PATH or demo.")
]
Images = Annotated[str, typer.Argument(help="A folder, a file or a quoted glob pattern.")]
Size = Annotated[
    str | None,
    typer.Option("--size", help="Pixels, 518 or 448x672 (height x width); native by default."),
]
Positions = Annotated[
    str | None,
    typer.Option("--positions", help="Rule for resizing position embeddings; else the source's."),
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, mps …")]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="CPU threads of the network; all by default.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Batch = Annotated[int, typer.Option(min=1, help="Images per forward pass.")]
Limit = Annotated[int, typer.Option(min=1, help="Most images, spread over all.")]
Strict = Annotated[bool, typer.Option(help="Make the first bad file an error.")]
Overwrite = Annotated[bool, typer.Option(help="Replace what another run left.")]

# Of trainings.
Result = Annotated[Path, typer.Option("--out", help="Directory of the result; resumed if begun.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="At most; stops early.")]
Step = Annotated[int | None, typer.Option(min=1, help="Images per step.")]
Micro = Annotated[int | None, typer.Option(min=1, help="Images per forward pass, to save memory.")]
Recompute = Annotated[bool, typer.Option(help="Less memory, more time.")]
Precision = Annotated[
    Literal["auto", "no", "bf16"],
    typer.Option(help="'bf16' is faster where the hardware has it; 'auto' uses it on GPUs."),
]


def parse_size(text: str | None) -> int | tuple[int, int] | None:
    """Read "518" or "448x672"."""
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"'{text}' is no size; write 518 or 448x672.")
    return int(parts[0]) if len(parts) == 1 else (int(parts[0]), int(parts[1]))


def parse_blocks(text: str | None) -> tuple[int, ...]:
    """Read "3,8,-1"."""
    if not text:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"'{text}' is no list of blocks; write 3,8,-1.") from None


def split_images(arguments: Sequence[str], *, metavar: str, example: str) -> tuple[list[str], str]:
    """Read one or more models, then the images."""
    if len(arguments) < 2:
        raise typer.BadParameter(
            f"give at least one model and then the images: {example}", param_hint=metavar
        )
    *models, images = arguments
    return models, images


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out options that were not given; the config knows their defaults."""
    return {name: value for name, value in options.items() if value is not None}
