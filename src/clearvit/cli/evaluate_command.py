"""`clearvit evaluate TASK`: one sub-command per task, generated from the registry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clearvit.cli.app import app
from clearvit.cli.arguments import Extraction, Models, ResultFile, Run, out_option
from clearvit.cli.console import next_step, note_once
from clearvit.cli.generate import command
from clearvit.evaluation.config import EvaluateConfig
from clearvit.evaluation.registry import CELLS, TASKS
from clearvit.files import replace_json

tasks = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Measure what frozen tokens are worth in a task; several models make one table.",
)
app.add_typer(tasks, name="evaluate")

Data = Annotated[Path, typer.Option(help="Folder of the data set.")]
File = Annotated[Path | None, out_option("File for the result as JSON.")]


def _add(name: str) -> None:
    task = TASKS[name]

    def run_task(
        models: Models,
        data: Data,
        config: EvaluateConfig,
        extraction: Extraction,
        run: Run,
        file: ResultFile,
        out: File = None,
    ) -> None:
        from clearvit.evaluation.evaluate import evaluate

        file.check(out)
        backbones = (run.load(model) for model in models)  # loaded once the data are read
        precision = extraction.precision
        table = evaluate(backbones, task=name, data=data, config=config, precision=precision)
        if out is not None:
            replace_json(out, table.to_json(), overwrite=file.overwrite)
        run.show(table.to_json(), table.text())
        note_once(f"tokens in {', '.join(dict.fromkeys(table.protocol['precision']))}")
        next_step("clearvit", "export", models[-1], "--format", "timm", "--out", "exported/")

    run_task.__annotations__["config"] = task.config
    run_task.__doc__ = (
        f"{task.help}\n\n{CELLS}\n\nExample: `clearvit evaluate {name} {task.example}`"
    )
    command(name, tasks)(run_task)


for _name in TASKS:
    _add(_name)
