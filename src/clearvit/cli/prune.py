"""`clearvit prune`: a model that drops patches on the way, with learned or given scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from clearvit.cli import options
from clearvit.cli.console import is_first, load_model, next_step, phases, prepare, report_skipped

if TYPE_CHECKING:
    from clearvit.prune.pruned import PrunedBackbone

PHASES = {"check": "reading images", "train": "training", "settle": "settling"}

Scorer = Literal["predictor", "class", "fuse", "merge", "key-norm", "value-norm", "random"]
Fill = Literal["similar", "delta", "last", "mean"]
Labels = Literal["auto", "folders", "none"]
Objective = Literal["auto", "logits", "tokens"]


def command(
    model: options.Model,
    out: options.Result,
    images: Annotated[
        str | None, typer.Argument(help="A folder, a file or a quoted glob pattern, to learn from.")
    ] = None,
    keep: Annotated[
        str,
        typer.Option(
            help="A share, one of the original patches for each stage (0.7,0.5), or a speed to"
            " reach on this machine (2x)."
        ),
    ] = "0.7",
    stages: Annotated[
        str | None, typer.Option(help="Blocks before which patches leave: 3,6,9.")
    ] = None,
    scorer: Annotated[
        Scorer, typer.Option(help="'predictor' is trained; the others need no images.")
    ] = "predictor",
    fill: Annotated[
        Fill, typer.Option(help="What a dropped patch shows; learned where it settles.")
    ] = "similar",
    size: options.Size = None,
    foresee: Annotated[
        int | None,
        typer.Option(min=0, help="Cheap epochs before the others, which learn attention to come."),
    ] = None,
    epochs: options.Epochs = None,
    settle: Annotated[
        int | None,
        typer.Option(min=0, help="Epochs after the others, on what is really run."),
    ] = None,
    average: Annotated[
        bool | None,
        typer.Option("--average/--drop", help="Average similar patches instead of dropping some."),
    ] = None,
    batch: options.Step = None,
    micro: options.Micro = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the predictors.")] = None,
    unlock: Annotated[
        bool | None,
        typer.Option(
            "--unlock/--lock", help="Let the backbone change too; with labels by default."
        ),
    ] = None,
    labels: Annotated[
        Labels, typer.Option(help="'folders': one for each class of the model's classifier.")
    ] = "auto",
    objective: Annotated[Objective, typer.Option(help="'tokens' needs no classifier.")] = "auto",
    ratio_weight: Annotated[
        float | None, typer.Option(min=0, help="Of keeping as many patches as asked.")
    ] = None,
    precision: options.Precision = "auto",
    recompute: options.Recompute = False,
    seed: Annotated[int, typer.Option(help="Of order, noise and first weights.")] = 0,
    overwrite: options.Overwrite = False,
    positions: options.Positions = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Train predictors that choose which patches of an image a ViT keeps (DynamicViT).

    The dense model teaches; labels are used where the images lie in one folder for each class of
    its classifier, and are not needed. Kill it at any moment; the same command goes on. The result
    loads with `cv.load("dir:OUT")`.

    Example: `clearvit prune demo photos/ --out pruned/ --keep 0.7 --size 224`

    Example: `clearvit prune demo --out pruned/ --scorer merge`

    Example: `clearvit prune demo --out pruned/ --scorer class --keep 2x --size 224`
    """
    wanted, shares = options.parse_size(size), parse_shares(keep)
    blocks = options.parse_blocks(stages) or None
    if scorer == "predictor" and images is None:
        raise typer.BadParameter("a predictor is trained on images.", param_hint="IMAGES")
    if scorer == "predictor" and isinstance(shares, str):  # a resumed run would measure anew
        raise typer.BadParameter(
            f"a training needs shares. Find them with --scorer class --keep {shares} first.",
            param_hint="--keep",
        )
    lessons = options.given({"foresee": foresee, "epochs": epochs, "settle": settle, "lr": lr})
    if scorer != "predictor" and lessons:
        raise typer.BadParameter(
            f"only predictors are trained, '{scorer}' is not.",
            param_hint=f"--{next(iter(lessons))}",
        )
    prepare(threads)
    backbone = load_model(model, positions, device)
    if scorer != "predictor":
        from clearvit.backbones.saved import save_backbone
        from clearvit.prune.prune import prune

        chosen = backbone if wanted is None else backbone.resized(wanted)
        pruned = prune(
            chosen, keep=shares, stages=blocks, scorer=scorer, fill=fill, average=average
        )
        save_backbone(pruned, out)
    else:
        from clearvit.prune.config import PruneConfig
        from clearvit.prune.train import train_predictors

        asked = {"epochs": epochs, "batch": batch, "lr": lr, "ratio_weight": ratio_weight}
        config = PruneConfig(
            size=wanted,
            fill=fill,
            foresee=foresee,
            settle=settle,
            average=average,
            micro=micro,
            unlock=unlock,
            labels=labels,
            objective=objective,
            precision=precision,
            recompute=recompute,
            seed=seed,
            overwrite=overwrite,
            **options.given(asked),
        )
        assert images is not None and not isinstance(shares, str)
        with phases(PHASES) as report:
            pruned = train_predictors(
                backbone, images, out=out, keep=shares, stages=blocks, config=config, report=report
            )
    if is_first():
        _tell(pruned, model, images, out, as_json)


def parse_shares(text: str) -> float | list[float] | str:
    """Read "0.7" or "0.7,0.5,0.3"; leave "2x" as it is."""
    if text.strip().endswith("x"):
        return text.strip()
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"'{text}' is no share; write 0.7 or 0.7,0.5,0.3, or a speed as 2x."
        ) from None
    return found[0] if len(found) == 1 else found


def _tell(pruned: PrunedBackbone, model: str, images: str | None, out: Path, as_json: bool) -> None:
    """Print what came out, how to load it, and what to do next."""
    from clearvit.images import Skipped
    from clearvit.prune.cost import macs
    from clearvit.prune.train import RESULT
    from clearvit.shards.plan import read_json

    cost = macs(pruned)
    summary: dict[str, object] = {"out": str(out), "keep": list(pruned.plan.keep)}
    summary |= {"stages": list(pruned.plan.stages), "macs": cost.total, "dense_macs": cost.dense}
    lines = [str(cost)]
    if pruned.speed is not None:
        summary["speed"] = pruned.speed.ratio
        lines.append(str(pruned.speed))
    if pruned.predictors is not None and (out / RESULT).exists():
        content = read_json(out / RESULT)
        report_skipped([Skipped(**bad) for bad in content["skipped"]])
        summary |= {key: content[key] for key in ("before", "after", "best_epoch", "skipped")}
        lines.append(_in_words(content))
    if as_json:
        print(json.dumps(summary))
    else:
        print("\n".join(lines))
        print(f"\nimport clearvit as cv\nbackbone = cv.load('dir:{out}')")
    next_step(f"clearvit compare {model} dir:{out} {images or 'IMAGES'}")


def _in_words(content: dict[str, Any]) -> str:
    before, after = content["before"], content["after"]
    words = (
        f"held-out cosine to the dense model: output {after['output']:.4f} (class attention, not"
        f" trained, {before['output']:.4f}), map {after['map']:.4f} ({before['map']:.4f})"
    )
    if "accuracy" in after:
        words += f"; accuracy {after['accuracy']:.3f} ({before['accuracy']:.3f})"
    return f"{words}; epoch {content['best_epoch']}"
