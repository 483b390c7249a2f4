"""`clearvit push`: a saved model on the Hugging Face hub."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from clearvit.cli.arguments import Output
from clearvit.cli.console import next_step
from clearvit.cli.generate import command
from clearvit.options import Options, option


@dataclass(frozen=True)
class PushConfig(Options):
    """How a model is uploaded."""

    private: bool = option(False, "Create the repository so that only you see it.", panel="Hub")
    dry_run: bool = option(
        False, "List the files without uploading or writing anything.", panel="Hub"
    )


@command("push")
def push(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What cure or export wrote.")],
    repository: Annotated[str, typer.Argument(metavar="USER/NAME", help="Where on the hub.")],
    config: PushConfig,
    output: Output,
) -> None:
    """Upload a saved model to the Hugging Face hub, with a card.

    Weights, configuration and card are uploaded, nothing else that lies in the directory. The token
    is the one of `hf auth login` or HF_TOKEN; without either it is asked for.

    Example: `clearvit push cured/ user/name --dry-run`
    """
    from clearvit.formats.push import push as upload

    done = upload(folder, repository, private=config.private, dry_run=config.dry_run)
    output.show(asdict(done), done)
    if config.dry_run:
        next_step("clearvit", "push", folder, repository)
    else:
        next_step("clearvit", "look", f"timm:hf-hub:{repository}", "IMAGE.jpg")
