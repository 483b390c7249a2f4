"""Which scorer and which fill should `cv.prune` use without training? Three models, two outputs.

    python benchmarks/prune_choice.py --work WORK            # goes on where it was stopped
    python benchmarks/prune_choice.py --work WORK --page     # only writes the page again

Class token: top-1 of the model's own ImageNet head, or leave-one-out 1-NN where it has none, on
imagenet100. Map: mean IoU of seven VOC classes by a ridge probe on the restored map, fitted on
labelled images of the same model. Both beside the mean cosine to the dense model. Classes with even
numbers and every other VOC image choose; all numbers of the page come from the other halves, as
paired differences to the dense model. Tokens are computed in bfloat16 where the CPU has it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import clearvit as cv
from clearvit.benchmarking.machine import this_machine
from clearvit.datasets.masks import read_masks
from clearvit.datasets.splits import MaskSplit
from clearvit.evaluation.evaluation_table import Result, resample_metrics
from clearvit.files import write_json
from clearvit.precision import autocast, uses_bf16
from clearvit.probes.features import select_evenly, use_whole_image
from clearvit.probes.linear import Ridge
from clearvit.probes.metrics import segmentation_counts, segmentation_metrics
from clearvit.probes.patches import patch_labels
from clearvit.probes.segmentation import upsample_scores
from clearvit.pruning import macs, reduction
from clearvit.pruning.config import FILLS, Scorer
from clearvit.pruning.pruned import PrunedBackbone
from clearvit.stats import bootstrap
from data import DATA, data_path, find_model
from evidence import write_result
from render import render

MODELS = (
    "demo",
    "deit_tiny_patch16_224",
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k",
)
TITLES = ("DINOv2 ViT-S/14 (demo)", "DeiT-Ti/16", "AugReg ViT-Ti/16")
SIZE, BATCH = 224, 10
LABELLED, TESTED = 100, 150  # VOC images
KEEPS = (0.9, 0.7, 0.5)
POPULATED = ("background", "cat", "dog", "horse", "cow", "sheep", "person")
MIOU = f"mIoU of {len(POPULATED)}"
DENSE = "dense"
SCORERS: tuple[Scorer, ...] = ("fuse", "class", "merge", "random")  # of every size of image
# Controls of the merging scorers: a patch that holds n draws the attention of one, or of n.
ONCE, WHOLE = "as one", "as n"
MERGED = ("fuse", "merge")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One row: how a model is pruned."""

    keep: float
    scorer: str
    fill: str = "similar"
    control: str = ""

    @property
    def name(self) -> str:
        """Also the name of its file."""
        return f"{self.keep}-{self.scorer}-{self.fill}" + f"-{self.control}" * bool(self.control)

    def apply(self, dense: cv.Backbone) -> cv.Backbone:
        """Prune a model so."""
        if self.scorer == DENSE:
            return dense
        reduction.DRAWN = 1.0 if self.control == WHOLE else 0.5
        pruned = cv.prune(dense, keep=self.keep, scorer=self.scorer, fill=self.fill)  # type: ignore[arg-type]
        if self.control == ONCE:
            plan = dataclasses.replace(pruned.plan, proportional=False)
            return PrunedBackbone(pruned.dense, plan)
        return pruned


RECIPES = (
    Recipe(1.0, DENSE),
    *(Recipe(keep, scorer) for keep in KEEPS for scorer in SCORERS),
    *(Recipe(keep, s, control=c) for c in (ONCE, WHOLE) for keep in KEEPS[1:] for s in MERGED),
    *(Recipe(0.7, scorer, fill) for scorer in ("class", "fuse") for fill in FILLS[1:]),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="keeps what is finished")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--data", type=data_path, default=DATA)
    parser.add_argument("--page", action="store_true", help="only write the page again")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.page:
        for model in reversed(options.models):  # the smallest first
            measure_model(model, options)
        used = ("voc", "imagenet100")
        write_result("prune_choice", collect(options), data=used, seeds=[0], models=MODELS)
    print(render("prune_choice").read_text("utf-8"))


# --- measuring ------------------------------------------------------------------------------------


def measure_model(model: str, options: argparse.Namespace) -> None:
    """Measure all rows of a model that are not in WORK yet."""
    waiting = [one for one in RECIPES if not file_of(model, one, options.work).exists()]
    if not waiting:
        return
    dense = use_whole_image(cv.load(find_model(model), size=SIZE))
    images = Images(dense, options.data)
    truth = tokens_of(dense, images)
    for recipe in waiting:
        start = time.perf_counter()
        backbone = recipe.apply(dense)
        found = truth if recipe.scorer == DENSE else tokens_of(backbone, images)
        row = judge(found, truth, images)
        row["gain"] = macs(backbone, SIZE).gain
        write_json(file_of(model, recipe, options.work), row)
        seconds = time.perf_counter() - start
        print(f"{model} {recipe.name}: {seconds:.0f} s, {means(row)}", flush=True)


def means(row: dict[str, Any]) -> str:
    return ", ".join(
        f"{k} {np.mean(v):.3f}" for k, v in row.items() if k not in ("counts", "gain", "classes")
    )


class Images:
    """Pixels and labels, read once for a model."""

    def __init__(self, dense: cv.Backbone, data: Path) -> None:
        self.classified = sorted((data / "imagenet100").glob("*/*.jpg"))
        self.classes = np.array([int(path.parent.name) for path in self.classified])
        train, test = (read_masks(data / "voc", split=name) for name in ("train", "val"))
        self.train = train.select(select_evenly(len(train), LABELLED))
        self.test = test.select(select_evenly(len(test), TESTED))
        paths = [*self.classified, *self.train.images, *self.test.images]
        self.pixels = torch.cat([p.half() for p in dense.pixels(paths, size=SIZE, batch=BATCH)])


@dataclasses.dataclass(frozen=True)
class Found:
    """What a model makes of all images."""

    cls: Tensor  # (I, C), classified images
    scores: Tensor | None  # (I, K) of its own classifier
    patches: Tensor  # (V, N, C), VOC images
    grid: tuple[int, int]


@torch.inference_mode()
def tokens_of(model: Any, images: Images) -> Found:
    cls, scores, patches = [], [], []
    classifies = isinstance(getattr(model.network, "head", None), torch.nn.Linear)
    done = 0
    for half in images.pixels.split(BATCH):
        with autocast(model.device, uses_bf16(model.device, "auto")):
            tokens = model.forward(half.float())
            whole = torch.cat([tokens.prefix, tokens.patches], 1)
            if done < len(images.classified) and classifies:
                scores.append(model.network.forward_head(whole).float())
        if done < len(images.classified):
            cls.append(tokens.cls.float())
        else:
            patches.append(tokens.patches.float())
        done += len(half)
    joined = torch.cat(scores) if scores else None
    return Found(torch.cat(cls), joined, torch.cat(patches), tokens.grid)


def judge(found: Found, truth: Found, images: Images) -> dict[str, Any]:
    """Numbers of every image, so that halves and paired differences can be formed later."""
    row: dict[str, Any] = {"classes": images.classes.tolist()}
    row["class cosine"] = F.cosine_similarity(found.cls, truth.cls).tolist()
    unit = F.normalize(found.cls, dim=1)
    # neighbors are sought in the image's own half, so that the halves know nothing of each other
    other = torch.from_numpy(images.classes % 2)
    near = (unit @ unit.T).fill_diagonal_(-1)
    near = near.masked_fill(other[:, None] != other[None], -1).argmax(1).numpy()
    row["1-NN"] = (images.classes[near] == images.classes).tolist()
    if found.scores is not None:
        row["top-1"] = (found.scores.argmax(1).numpy() == images.classes).tolist()
    labelled = len(images.train)
    test, dense = found.patches[labelled:], truth.patches[labelled:]
    row["map cosine"] = F.cosine_similarity(test, dense, dim=-1).mean(1).tolist()
    row["counts"] = probe(found.patches[:labelled], test, found.grid, images).tolist()
    return row


def probe(train: Tensor, test: Tensor, grid: tuple[int, int], images: Images) -> np.ndarray:
    """Fit a ridge probe on labelled patches and count its hits in every test image, (V, 6 K)."""
    classes = len(images.train.classes)
    ridge = Ridge(train.shape[-1], classes)
    for index, patches in enumerate(train):
        fractions, weights = patch_labels(images.train.read(index), grid, classes)
        ridge.add(patches, fractions, weights)
    head = ridge.solve()
    return np.stack([hits(head(patches), images.test, i, grid) for i, patches in enumerate(test)])


def hits(scores: Tensor, split: MaskSplit, index: int, grid: tuple[int, int]) -> np.ndarray:
    mask = split.read(index)
    size = (mask.shape[0], mask.shape[1])
    chosen = upsample_scores(scores, grid, size).argmax(0).numpy()
    return segmentation_counts(chosen, mask, len(split.classes))


# --- choosing and reporting -----------------------------------------------------------------------


def collect(options: argparse.Namespace) -> dict[str, Any]:
    """Compare all rows with the dense model, on the halves that choose and on those that report."""
    names = read_masks(options.data / "voc", split="val").classes
    rows, loads = [], this_machine()
    for model in MODELS:
        paths = {one: file_of(model, one, options.work) for one in RECIPES}
        files = {one: json.loads(p.read_text()) for one, p in paths.items() if p.exists()}
        if not files:
            continue  # not among --models
        base = files[RECIPES[0]]
        for recipe, own in files.items():
            parts = {
                half: compare(own, base, part, names)
                for part, half in enumerate(("choice", "report"))
            }
            facts = {"model": model, "gain": own["gain"], **dataclasses.asdict(recipe)}
            rows.append({**facts, **parts})
    content = {"date": time.strftime("%Y-%m-%d"), "machine": str(loads), "rows": rows}
    return {**content, "ranking": ranking(rows, "choice"), "confirmed": ranking(rows, "report")}


def compare(own: Any, base: Any, part: int, names: tuple[str, ...]) -> dict[str, Any]:
    """One half: each number of a row and, paired, minus that of the dense model."""
    task = "top-1" if "top-1" in own else "1-NN"
    mine = np.array(own["classes"]) % 2 == part
    right, before = (np.array(one[task], dtype=float)[mine] for one in (own, base))
    apart = bootstrap(100 * (right - before))
    found: dict[str, Any] = {"task": task, "right": float(100 * right.mean())}
    found["minus dense"] = [apart.mean, apart.low, apart.high]
    found["class cosine"] = float(np.array(own["class cosine"])[mine].mean())
    found["map cosine"] = float(np.array(own["map cosine"])[part::2].mean())
    subset = tuple(names.index(name) for name in POPULATED)
    summary = partial(segmentation_metrics, classes=names, subset=subset)
    both = [
        resample_metrics(Result("", 0, [np.array(one["counts"])[part::2]], summary), seed=0)[MIOU]
        for one in (own, base)
    ]
    gap = (both[0] - both[1]).interval()
    found["mIoU"] = float(both[0].values.mean())
    found["mIoU minus dense"] = [gap.mean, gap.low, gap.high]
    return found


def ranking(rows: list[dict[str, Any]], half: str) -> dict[str, list[float]]:
    """Mean loss of each scorer in points: class token, map, and both, over models and fractions."""
    table = {}
    for scorer in SCORERS:
        plain = [r for r in rows if r["fill"] == "similar" and not r["control"]]
        mine = [r[half] for r in plain if r["scorer"] == scorer]
        pair = [
            float(np.mean([r[k][0] for r in mine])) for k in ("minus dense", "mIoU minus dense")
        ]
        table[scorer] = [*pair, float(np.mean(pair))]
    return table


def file_of(model: str, recipe: Recipe, work: Path) -> Path:
    return work / f"{model}-{recipe.name}.json"


if __name__ == "__main__":
    main()
