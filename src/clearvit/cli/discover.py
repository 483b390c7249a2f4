"""`clearvit discover`: boxes around the objects of images, without labels."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearvit.cli import options
from clearvit.cli.console import (
    load_model,
    next_step,
    note,
    prepare,
    progress,
    report_skipped,
    warned,
)

if TYPE_CHECKING:
    from clearvit.dense.discover import Discovered
    from clearvit.dense.voc import VocBoxes
    from clearvit.images import Picture


def command(
    model: options.Model,
    images: Annotated[
        str, typer.Argument(help="A folder, a file, a quoted glob pattern, or a PASCAL VOC folder.")
    ],
    out: Annotated[
        Path, typer.Option("--out", help="Directory for boxes.json and the pictures.")
    ] = Path("boxes"),
    method: Annotated[str, typer.Option(help="ours, lost or tokencut.")] = "ours",
    features: Annotated[
        str | None,
        typer.Option(help="token, query, key, value, several as token,value, or auto."),
    ] = None,
    layer: Annotated[str | None, typer.Option(help="Blocks to read, as 6,8,-1.")] = None,
    objects: Annotated[int, typer.Option(min=1, help="Most objects per image.")] = 1,
    split: Annotated[str, typer.Option(help="List of a VOC folder, in ImageSets/Main.")] = (
        "trainval"
    ),
    draw: Annotated[bool, typer.Option(help="Draw the boxes on each photo.")] = True,
    size: options.Size = None,
    batch: options.Batch = 8,
    positions: options.Positions = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Find the objects of images without labels and draw boxes around them.

    Boxes are x0, y0, x1, y1 in pixels of the original image. A PASCAL VOC folder (Annotations,
    ImageSets/Main) also gives CorLoc, the share of images whose first box is right.

    Example: `clearvit discover demo photos/ --out boxes/ --objects 3`

    Example: `clearvit discover demo VOC2012/ --method lost --no-draw`
    """
    wanted = options.parse_size(size)
    blocks = options.parse_blocks(layer) or None
    prepare(threads)
    from clearvit.dense.choose import choose_features
    from clearvit.dense.discover import discover
    from clearvit.dense.voc import is_voc, read_voc
    from clearvit.images import Picture, find_images

    truth = read_voc(images, split=split) if is_voc(images) else None
    if truth is None:
        pictures = find_images(images)  # a wrong path should not wait for a model
    else:
        pictures = [Picture(image.name, image.image) for image in truth.images]
    backbone = load_model(model, positions, device)
    chosen = features.split(",") if features else None
    if features == "auto":
        chosen = list(choose_features(backbone, pictures, layer=blocks, size=wanted).features)
        note(f"features: {', '.join(chosen)}")
    with warned(unless="were skipped"), progress("discover") as update:  # listed at the end
        found = discover(
            backbone,
            pictures,
            method=method,  # type: ignore[arg-type]
            features=chosen,
            layer=blocks,
            objects=objects,
            size=wanted,
            batch=batch,
            progress=update,
        )
    _finish(found, truth, pictures, model=model, method=method, out=out, draw=draw, as_json=as_json)


def _finish(
    found: Discovered,
    truth: VocBoxes | None,
    pictures: list[Picture],
    *,
    model: str,
    method: str,
    out: Path,
    draw: bool,
    as_json: bool,
) -> None:
    """Write the files and say what is in them."""
    from clearvit.dense.page import write_boxes_page
    from clearvit.files import write_json

    skipped = [*(truth.skipped if truth else ()), *found.skipped]
    report = {"model": model, "method": method, **_numbers(found)}
    report["skipped"] = [asdict(bad) for bad in skipped]
    if truth is not None:
        report["corloc"] = _corloc(found, truth)
    write_json(out / "boxes.json", report)
    if draw:
        _draw(found, pictures, out)
        write_boxes_page(
            out / "boxes.html",
            found,
            {picture.name: picture.source for picture in pictures},
            model=model,
            method=method,
            corloc=report.get("corloc"),
        )
    report_skipped(skipped)
    if as_json:
        print(json.dumps(report))
        return
    print(out / "boxes.json")
    if truth is not None:
        print(f"CorLoc {report['corloc']:.1f} % of {len(found)} images")
    next_step(f"clearvit diagnose {model} FOLDER --out report/")


def _numbers(found: Discovered) -> dict[str, Any]:
    listed = [
        {
            "name": one.name,
            "size": list(one.size),
            "boxes": [[round(side, 2) for side in box] for box in one.boxes],
            "scores": [round(score, 4) for score in one.scores],
            "degenerate": one.degenerate,
        }
        for one in found
    ]
    return {"images": listed}


def _corloc(found: Discovered, truth: VocBoxes) -> float:
    from clearvit.dense.discovery import corloc

    boxes = {image.name: image.boxes for image in truth.images}
    return corloc([one.boxes[0] for one in found], [boxes[one.name] for one in found])


def _draw(found: Discovered, pictures: list[Picture], out: Path) -> None:
    """Draw one picture per photo, named like it."""
    from clearvit.dense.draw import draw_boxes
    from clearvit.images import read_image
    from clearvit.report.figure import save_figure

    sources = {picture.name: picture.source for picture in pictures}
    with progress("draw") as update:
        for done, one in enumerate(found, 1):
            path = PurePosixPath(one.name)
            # Parts of a name may lead out of the directory; photos a.jpg and a.png both exist.
            parts = [part for part in path.parts if part not in ("/", "..", ".")]
            target = out.joinpath(*parts[:-1], f"{parts[-1]}.png")
            save_figure(draw_boxes([(read_image(sources[one.name]), one)]), target)
            update(done, len(found))
