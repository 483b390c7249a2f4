"""`clearvit evaluate`: what are frozen tokens worth in a task?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from clearvit.cli import options
from clearvit.cli.console import load_model, next_step, prepare, progress


def command(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL…",
            help="One or more of timm:NAME, hf:ID, openclip:ARCH/TAG, dir:PATH or demo.",
            show_default=False,
        ),
    ],
    task: Annotated[
        str,
        typer.Option(
            help="segmentation, neighbours, depth, classification, correspondence,"
            " class-correspondence, clustering, zero-shot-segmentation,"
            " zero-shot-classification, retrieval or explanation."
        ),
    ],
    data: Annotated[Path, typer.Option(help="Folder of the data set.")],
    labelled: Annotated[
        str, typer.Option(help="Labelled images to learn from, as 5,20,60,all.")
    ] = "all",
    draws: Annotated[int, typer.Option(min=1, help="Draws of labelled images, or of warps.")] = 1,
    limit: Annotated[int | None, typer.Option(min=1, help="Test images at most.")] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            help="voc, voc20, ade20k, cityscapes, coco-stuff, coco-object, pascal-context,"
            " pascal-context-59 or folders; of retrieval cub, cars, sop, msls, vpr or folders;"
            " recognised by default."
        ),
    ] = None,
    recipe: Annotated[
        str, typer.Option(help="fast (CPU), sgd (cached tokens) or paper (augmented, GPU).")
    ] = "fast",
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Of probes that take steps.")
    ] = None,
    inference: Annotated[
        str | None,
        typer.Option(help="whole, or slide for windows, the default of zero-shot segmentation."),
    ] = None,
    crop: Annotated[int | None, typer.Option(min=1, help="Side of a window, in pixels.")] = None,
    stride: Annotated[int | None, typer.Option(min=1, help="Of windows, in pixels.")] = None,
    neighbours: Annotated[int | None, typer.Option(min=1, help="That vote.")] = None,
    methods: Annotated[
        str, typer.Option(help="Of classification: knn,linear,prototypes.")
    ] = "knn,linear",
    features: Annotated[
        str | None, typer.Option(help="Of classification: class, mean or both.")
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(help="Of zero-shot segmentation: clip,maskclip,naclip,sclip,clearclip."),
    ] = None,
    names: Annotated[
        Path | None, typer.Option(help="Zero-shot: file with the words of each class on a line.")
    ] = None,
    prompt: Annotated[
        list[str] | None, typer.Option(help="Zero-shot: with {} for the word; may be repeated.")
    ] = None,
    texts: Annotated[
        str | None, typer.Option(help="Zero-shot: model whose text tower a cured copy uses.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Zero-shot: what is less sure becomes class 0.")
    ] = None,
    rerank: Annotated[
        int, typer.Option(min=0, help="Retrieval: of the nearest, compared patch by patch.")
    ] = 100,
    method: Annotated[str, typer.Option(help="Retrieval: transport,mutual,chamfer.")] = "transport",
    marginal: Annotated[
        str,
        typer.Option(
            help="Retrieval: auto,attention,rollout,rollout_min,uniform,without_artifacts,cross."
        ),
    ] = "auto",
    mass: Annotated[str, typer.Option(help="Retrieval: moved by transport, as 1,0.7,auto.")] = "1",
    weight: Annotated[str, typer.Option(help="Retrieval: of structure, as 0.5,1,guard.")] = (
        "1,guard"
    ),
    grid: Annotated[int, typer.Option(min=1, help="Retrieval: patches per side.")] = 7,
    descriptor: Annotated[
        str, typer.Option(help="Retrieval: auto, class, mean or joint.")
    ] = "auto",
    subset: Annotated[
        str | None, typer.Option(help="Classes whose mean IoU is told too, as cat,dog.")
    ] = None,
    unit: Annotated[str, typer.Option(help="Of depth files: millimetres or metres.")] = (
        "millimetres"
    ),
    eigen: Annotated[bool, typer.Option("--eigen", help="Eigen crop of NYUv2.")] = False,
    cache: Annotated[
        Path | None, typer.Option(help="Folder that keeps tokens for the next run.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for the result as JSON.")] = None,
    seed: Annotated[int, typer.Option(help="Of draws, probes and resampling.")] = 0,
    size: options.Size = None,
    batch: options.Batch = 8,
    positions: options.Positions = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Measure frozen tokens in a task; several models make one table.

    Cells are the mean ± spread over draws [95 % interval over resampled test images], and behind it
    the difference to the first model, on the same images.

    Example: `clearvit evaluate demo dir:cured/ --task segmentation --data VOC2012/ --labelled 60`

    Example: `clearvit evaluate demo --task classification --data photos/ --methods knn`

    Example: `clearvit evaluate demo --task retrieval --data CUB_200_2011/ --mass 1,0.7,auto`
    """
    wanted, numbers = options.parse_size(size), _labelled(labelled)
    prepare(threads)
    from clearvit.evaluate.config import EvaluateConfig
    from clearvit.evaluate.evaluate import check_data, evaluate
    from clearvit.evaluate.retrieval_config import RetrievalConfig
    from clearvit.files import write_json

    config = EvaluateConfig(
        size=wanted,
        layout=layout,
        labelled=numbers,
        draws=draws,
        limit=limit,
        subset=_names(subset),
        recipe=recipe,  # type: ignore[arg-type]
        iterations=iterations,
        inference=inference,  # type: ignore[arg-type]
        crop=crop,
        stride=stride,
        neighbours=neighbours,
        heads=_names(heads),  # type: ignore[arg-type]
        names=names,
        prompts=tuple(prompt or ()),
        texts=texts,
        threshold=threshold,
        methods=_names(methods),  # type: ignore[arg-type]
        features=features,  # type: ignore[arg-type]
        unit=unit,  # type: ignore[arg-type]
        eigen=eigen,
        retrieval=RetrievalConfig(
            rerank=rerank,
            methods=_names(method),  # type: ignore[arg-type]
            marginals=_names(marginal),  # type: ignore[arg-type]
            masses=_numbers(mass, "auto"),  # type: ignore[arg-type]
            weights=_numbers(weight, "guard"),  # type: ignore[arg-type]
            grid=grid,
            descriptor=descriptor,  # type: ignore[arg-type]
        ),
        cache=cache,
        seed=seed,
        batch=batch,
    )
    check_data(task, data, config)  # type: ignore[arg-type] # a wrong path should not wait for a model
    backbones = [load_model(model, positions, device) for model in models]
    with progress("evaluate") as update:
        table = evaluate(backbones, task=task, data=data, config=config, progress=update)  # type: ignore[arg-type]
    if out is not None:
        write_json(out, table.to_json())
    print(json.dumps(table.to_json()) if as_json else table.text())
    next_step(f"clearvit compare {' '.join(models)} FOLDER --out compare/")


def _labelled(text: str) -> tuple[int | None, ...]:
    """Read "5,20,all"."""
    found: list[int | None] = []
    for part in _names(text):
        if part != "all" and not (part.isdecimal() and int(part) > 0):
            raise typer.BadParameter(f"'{text}' is no list of numbers; write 5,20,60,all.")
        found.append(None if part == "all" else int(part))
    return tuple(found)


def _numbers(text: str, word: str) -> tuple[float | str, ...]:
    """Read "0.5,1,guard", where one word is allowed beside numbers."""
    try:
        return tuple(part if part == word else float(part) for part in _names(text))
    except ValueError:
        raise typer.BadParameter(f"'{text}' is no list of numbers; write 0.5,1,{word}.") from None


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())
