"""Along rows or as on a checkerboard: how are patches dealt to the two sides that are merged?

    python benchmarks/prune_pairs.py                          # cosines, a minute
    python benchmarks/prune_pairs.py --tasks --work WORK      # tasks, goes on where it was stopped

`fuse` merges pairs between two sides. Dealt alternately, a grid of even width has one side in every
other column, so pairs lie in rows; on a checkerboard all four neighbors of a patch are on the other
side. Both at the same number of MACs, without training. Cosines to the dense model on VOC photos;
tasks and their images are those of prune_choice.py. Differences are paired, with their 95 %
interval over images. `render.py` makes the page.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import clearvit as cv
from clearvit.datasets.masks import read_masks
from clearvit.evaluation.evaluation_table import Result, resample_metrics
from clearvit.files import read_json, write_json
from clearvit.images import find_images
from clearvit.probes.features import use_whole_image
from clearvit.probes.metrics import segmentation_metrics
from clearvit.pruning import pruned, selection
from clearvit.stats import bootstrap
from data import DATA, data_path, find_model
from evidence import read_result, write_result
from prune_choice import MIOU, MODELS, POPULATED, SIZE, Images, judge, tokens_of

PHOTOS, BATCH = 48, 8
KEEPS = (0.9, 0.7)  # below 0.58 scores alone decide who is kept
CHECKERBOARD = selection.deal_checkerboard
DEALS = {
    "rows": lambda grid, device: selection.deal_alternately(grid[0] * grid[1], device),
    "checkerboard": CHECKERBOARD,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", action="store_true", help="measure these instead of cosines")
    parser.add_argument("--work", type=Path, default=Path("build/prune_pairs"))
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--data", type=data_path, default=DATA)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    for model in reversed(options.models):  # the smallest first
        dense = use_whole_image(cv.load(find_model(model), size=SIZE))
        kind, found = (
            ("tasks", measure_tasks(model, dense, options))
            if options.tasks
            else ("cosines", measure_cosines(dense, options.data))
        )
        content = read_result("prune_pairs")
        others = [row for row in content.get(kind, []) if row["model"] != model]
        content[kind] = [*others, *({"model": model, **row} for row in found)]
        write_result("prune_pairs", content, data=["voc", "imagenet100"], models=options.models)


def prune_dealt(dense: cv.Backbone, keep: float, deal: str) -> cv.Backbone:
    """Prune with patches dealt in one way, until it is called again."""
    pruned.deal_checkerboard = DEALS[deal]  # type: ignore[assignment]
    return cv.prune(dense, keep=keep)


def measure_cosines(dense: cv.Backbone, data: Path) -> list[dict[str, Any]]:
    """Cosine of class token and map to the dense model's, photo by photo."""
    sources = find_images(data / "voc" / "JPEGImages")
    chosen = sources[:: len(sources) // PHOTOS][:PHOTOS]
    pixels = torch.cat(list(dense.pixels([one.source for one in chosen])))
    truth, rows = dense.tokens(pixels, batch=BATCH), []
    for keep in KEEPS:
        pairs = []
        for deal in DEALS:
            own = prune_dealt(dense, keep, deal).tokens(pixels, batch=BATCH)
            assert own.cls is not None and truth.cls is not None
            maps = F.cosine_similarity(own.patches, truth.patches, dim=-1).mean(1)
            pairs.append((F.cosine_similarity(own.cls, truth.cls), maps))
        found = {
            name: paired(*(pair[part].numpy() for pair in pairs))
            for part, name in enumerate(("class cosine", "map cosine"))
        }
        rows.append({"keep": keep, "images": len(pixels), **found})
        print(rows[-1], flush=True)
    return rows


def measure_tasks(
    model: str, dense: cv.Backbone, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Top-1 or 1-NN, and mean IoU of a probe, on the images of prune_choice.py."""
    names = read_masks(options.data / "voc", split="val").classes
    subset = tuple(names.index(name) for name in POPULATED)
    summary = partial(segmentation_metrics, classes=names, subset=subset)
    files = {(k, d): options.work / f"{model}-{k}-{d}.json" for k in KEEPS for d in DEALS}
    waiting = {row: path for row, path in files.items() if not path.exists()}
    images = Images(dense, options.data) if waiting else None
    truth = tokens_of(dense, images) if images else None
    for (keep, deal), path in waiting.items():
        assert images is not None and truth is not None
        found = tokens_of(prune_dealt(dense, keep, deal), images)
        write_json(path, judge(found, truth, images))
    return [
        {"keep": keep, **compare([files[keep, deal] for deal in DEALS], summary)} for keep in KEEPS
    ]


def compare(paths: list[Path], summary: Any) -> dict[str, Any]:
    """Compare the tasks of two files."""
    before, after = (read_json(path) for path in paths)
    task = "top-1" if "top-1" in after else "1-NN"
    right = paired(*(100 * np.array(row[task], dtype=float) for row in (before, after)))
    both = [
        resample_metrics(Result("", 0, [np.array(row["counts"])], summary), seed=0)[MIOU]
        for row in (before, after)
    ]
    gap = (both[1] - both[0]).interval()
    means = [float(one.values.mean()) for one in both]
    return {"task": task, "right": right, "mIoU": [*means, gap.low, gap.high]}


def paired(one: Any, two: Any) -> list[float]:
    """Both means, and the interval of the paired difference."""
    apart = bootstrap(two - one)
    return [float(one.mean()), float(two.mean()), apart.low, apart.high]


if __name__ == "__main__":
    main()
