"""`clearvit prune`: a model that drops patches on the way, with learned or given scores."""

from __future__ import annotations

import json
import os
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearvit.cli.console import (
    DeviceOption,
    JsonOption,
    Model,
    PositionsOption,
    SizeOption,
    ThreadsOption,
    next_step,
    parse_blocks,
    parse_size,
    phases,
    prepare,
    report_skipped,
)

if TYPE_CHECKING:
    from clearvit.prune.pruned import PrunedBackbone


PHASES = {"check": "reading images", "train": "training"}


class Scorer(str, Enum):
    """Who decides which patches stay."""

    predictor = "predictor"
    class_ = "class"
    fuse = "fuse"
    merge = "merge"
    key_norm = "key-norm"
    value_norm = "value-norm"
    random = "random"


class Fill(str, Enum):
    """What a dropped patch shows."""

    similar = "similar"
    delta = "delta"
    last = "last"
    mean = "mean"


class Labels(str, Enum):
    """Where labels come from."""

    auto = "auto"
    folders = "folders"
    none = "none"


class Objective(str, Enum):
    """What is held to the dense model."""

    auto = "auto"
    logits = "logits"
    tokens = "tokens"


def command(
    model: Model,
    out: Annotated[Path, typer.Option("--out", help="Directory of the result; resumed if begun.")],
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
    ] = Scorer.predictor,
    fill: Annotated[Fill, typer.Option(help="What a dropped patch shows.")] = Fill.similar,
    size: SizeOption = None,
    foresee: Annotated[
        int | None,
        typer.Option(min=0, help="Cheap epochs before the others, which learn attention to come."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="At most; stops early.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Images per step.")] = None,
    micro: Annotated[
        int | None, typer.Option(min=1, help="Images per forward pass, to save memory.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the predictors.")] = None,
    unlock: Annotated[
        bool | None,
        typer.Option(
            "--unlock/--lock", help="Let the backbone change too; with labels by default."
        ),
    ] = None,
    labels: Annotated[
        Labels, typer.Option(help="'folders': one for each class of the model's classifier.")
    ] = Labels.auto,
    objective: Annotated[
        Objective, typer.Option(help="'tokens' needs no classifier.")
    ] = Objective.auto,
    ratio_weight: Annotated[
        float | None, typer.Option(min=0, help="Of keeping as many patches as asked.")
    ] = None,
    recompute: Annotated[bool, typer.Option(help="Less memory, more time.")] = False,
    seed: Annotated[int, typer.Option(help="Of order, noise and first weights.")] = 0,
    overwrite: Annotated[bool, typer.Option(help="Replace what another run left.")] = False,
    positions: PositionsOption = None,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train predictors that choose which patches of an image a ViT keeps (DynamicViT).

    The dense model teaches; labels are used where the images lie in one folder for each class of
    its classifier, and are not needed. Kill it at any moment; the same command goes on. The result
    loads with `cv.load("dir:OUT")`.

    Example: `clearvit prune demo photos/ --out pruned/ --keep 0.7 --size 224`

    Example: `clearvit prune demo --out pruned/ --scorer merge`

    Example: `clearvit prune demo --out pruned/ --scorer class --keep 2x --size 224`
    """
    wanted, shares, blocks = parse_size(size), parse_shares(keep), parse_blocks(stages) or None
    if scorer is Scorer.predictor and images is None:
        raise typer.BadParameter("a predictor is trained on images.", param_hint="IMAGES")
    if scorer is Scorer.predictor and isinstance(shares, str):  # a resumed run would measure anew
        raise typer.BadParameter(
            f"a training needs shares. Find them with --scorer class --keep {shares} first.",
            param_hint="--keep",
        )
    prepare(threads)
    from clearvit.backbones.load import load

    backbone = load(model, positions=positions, device=device)  # type: ignore[arg-type]
    if scorer is not Scorer.predictor:
        from clearvit.backbones.saved import save_backbone
        from clearvit.prune.prune import prune

        chosen = backbone if wanted is None else backbone.resized(wanted)
        pruned = prune(chosen, keep=shares, stages=blocks, scorer=scorer.value, fill=fill.value)
        save_backbone(pruned, out)
    else:
        from clearvit.prune.config import PruneConfig
        from clearvit.prune.train import train_predictors

        given = {"epochs": epochs, "batch": batch, "lr": lr, "ratio_weight": ratio_weight}
        config = PruneConfig(
            size=wanted,
            fill=fill.value,
            foresee=foresee,
            micro=micro,
            unlock=unlock,
            labels=labels.value,
            objective=objective.value,
            recompute=recompute,
            seed=seed,
            overwrite=overwrite,
            **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
        )
        assert images is not None and not isinstance(shares, str)
        with phases(PHASES) as report:
            pruned = train_predictors(
                backbone, images, out=out, keep=shares, stages=blocks, config=config, report=report
            )
    if os.environ.get("RANK", "0") == "0":
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
