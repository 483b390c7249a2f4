"""`clearvit cure`: a model with clean tokens, from a folder of images without labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clearvit.cli import options
from clearvit.cli.console import is_first, load_model, next_step, phases, prepare, report_skipped

if TYPE_CHECKING:
    from clearvit.backbones.vit import VitBackbone

PHASES = {
    "check": "reading images",
    "targets": "clean targets",
    "train": "training",
    "neurons": "register neurons",
}

Method = Literal["distill", "test-time"]
Init = Literal["mean-patch", "official", "zeros"]
Rates = Literal["gentle", "official"]
Sampler = Literal["lattice", "official"]
Vary = Literal["none", "mirror", "views"]
Features = Literal["auto", "tokens", "text"]


def command(
    model: options.Model,
    images: options.Images,
    out: options.Result,
    method: Annotated[
        Method, typer.Option(help="'test-time' edits neurons and trains nothing.")
    ] = "distill",
    size: options.Size = None,
    epochs: options.Epochs = None,
    views: Annotated[int | None, typer.Option(min=1, help="Averaged by the teacher.")] = None,
    registers: Annotated[
        int | None, typer.Option(min=0, help="Tokens to add; 16 where there is room.")
    ] = None,
    batch: options.Step = None,
    micro: options.Micro = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the blocks.")] = None,
    unlock: Annotated[
        str | None,
        typer.Option(
            help="What may change: registers,positions,patches,class,norm,last,last-N or all."
        ),
    ] = None,
    cache: Annotated[
        float | None, typer.Option(min=0, help="Gigabytes of targets on disk; all by default.")
    ] = None,
    targets: Annotated[
        str | None, typer.Option(help="Directory of the targets, to share between runs.")
    ] = None,
    layer: Annotated[int | None, typer.Option(help="Clean this block's tokens instead.")] = None,
    features: Annotated[Features, typer.Option(help="'text' is for CLIP.")] = "auto",
    init: Annotated[Init, typer.Option(help="Where registers start.")] = "mean-patch",
    rates: Annotated[
        Rates, typer.Option(help="'official': one rate for all, no warm-up.")
    ] = "gentle",
    sampler: Annotated[Sampler, typer.Option(help="Of the teacher's views.")] = "lattice",
    vary: Annotated[Vary, typer.Option(help="What the student sees; 'none' is PH-Reg.")] = "views",
    class_weight: Annotated[
        float | None, typer.Option(min=0, help="Of keeping the class token; 0 is PH-Reg.")
    ] = None,
    ema: Annotated[
        float | None,
        typer.Option(min=0, help="Decay of the running mean of the weights; 0 is PH-Reg."),
    ] = None,
    precision: options.Precision = "auto",
    recompute: options.Recompute = False,
    seed: Annotated[int, typer.Option(help="Of views, order and registers.")] = 0,
    overwrite: options.Overwrite = False,
    positions: options.Positions = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Add registers to a ViT and clean its tokens by self-distillation (PH-Reg); no labels.

    First the teacher: the tokens of every image, averaged over shifted and mirrored views, are
    computed once and kept on disk. Then the student: its weights, and new registers, are trained to
    give them in one forward pass. Kill it at any moment; the same command goes on.

    The result loads in plain timm. Several GPUs: `accelerate launch -m clearvit cure …`.

    Example: `clearvit cure demo photos/ --out cured/ --size 336`

    Example: `clearvit cure demo photos/ --out instant/ --method test-time`
    """
    wanted = options.parse_size(size)
    prepare(threads)
    from clearvit.cure.config import CureConfig
    from clearvit.cure.cure import cure

    asked = {"epochs": epochs, "views": views, "registers": registers, "batch": batch, "lr": lr}
    parts = None if unlock is None else tuple(unlock.replace(" ", "").split(","))
    config = CureConfig(
        size=wanted,
        micro=micro,
        cache=cache,
        targets=targets,
        layer=layer,
        features=features,
        init=init,
        rates=rates,
        sampler=sampler,
        vary=vary,
        precision=precision,
        recompute=recompute,
        seed=seed,
        overwrite=overwrite,
        **options.given({**asked, "class_weight": class_weight, "unlock": parts, "ema": ema}),
    )
    backbone = load_model(model, positions, device)
    with phases(PHASES) as report:
        cured = cure(backbone, images, out=out, method=method, config=config, report=report)
    if is_first():
        _tell(cured, model, images, out, as_json)  # type: ignore[arg-type]


def _tell(cured: VitBackbone, model: str, images: str, out: Path, as_json: bool) -> None:
    """Print what came out, how to load it, and what to do next."""
    from clearvit.cure.card import loading_code
    from clearvit.cure.result import RESULT
    from clearvit.images import Skipped
    from clearvit.shards.plan import read_json

    summary = {"out": str(out), "registers": cured.prefix_names.count("register")}
    if (out / RESULT).exists():
        content = read_json(out / RESULT)
        report_skipped([Skipped(**bad) for bad in content["skipped"]])
        summary |= {key: content[key] for key in ("before", "after", "best_epoch", "skipped")}
        if not as_json:
            before, after = 1 - content["before"]["score"], 1 - content["after"]["score"]
            print(
                f"held-out distance to clean tokens: {before:.4f} before, {after:.4f} after"
                f" ({100 * (1 - after / before):.0f} % less); class token: cosine"
                f" {content['after']['class']:.4f} to the original; epoch {content['best_epoch']}"
            )
            print(f"\n{loading_code(out, cured)}")
    elif not as_json:
        print(f"{out}: {getattr(cured, 'summary', 'test-time registers')}")
    if as_json:
        print(json.dumps(summary))
    next_step(f"clearvit compare {model} dir:{out} {images}")
