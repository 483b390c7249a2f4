"""What does pruning without training cost in features? Scorers and fills on the demo model.

    python benchmarks/prune_features.py --images PHOTOS [--size 224] [--photos 16]
        [--learned dir:PRUNED]

Class token: mean cosine of the pruned to the dense class token. Map: mean cosine over all patches,
both after the final norm, mean over photos. Scale: two random patches of the same photo. A second
table varies what `fuse` is made of: how much scores weigh against similarity, and whether pairs are
merged or the scores alone choose; with `--learned` by the predictors of a trained model too.
"""

from __future__ import annotations

import argparse
import platform
import sys

import torch
from torch import Tensor

import clearvit as cv
from clearvit.images import find_images
from clearvit.pruning import macs, selection
from clearvit.pruning.config import FILLS, SCORERS, Fill, Scorer
from clearvit.pruning.prune import prune
from clearvit.pruning.pruned import PrunedBackbone
from data import DATA, data_path, find_model
from tables import write_tables

KEEPS = (0.7, 0.9, 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=data_path, default=f"{DATA}/voc/JPEGImages")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--photos", type=int, default=16)
    parser.add_argument("--learned", help="trained predictors: dir:PATH or recipe:NAME")
    options = parser.parse_args()
    if not options.images.is_dir():
        sys.exit(f"'{options.images}' is not there; pass --images FOLDER with some photos.")
    backbone = cv.load("demo", size=options.size)
    sources = find_images(options.images)
    chosen = sources[:: max(1, len(sources) // options.photos)][: options.photos]
    pixels = torch.cat(list(backbone.pixels([p.source for p in chosen])))
    text = table(options, backbone, pixels) + merging(options, backbone, pixels)
    write_tables("prune_features", text, data=["voc"], models=["demo"])
    print(text)


def table(options: argparse.Namespace, backbone: cv.Backbone, pixels: Tensor) -> str:
    dense = backbone.tokens(pixels, batch=8)
    shuffled = dense.patches[:, torch.randperm(dense.patches.shape[1])]
    lines = [
        "# Features of a pruned model, without training",
        "",
        f"Demo model (DINOv2 ViT-S/14), {options.size} px, {len(pixels)} photos, stages before"
        " blocks 3, 6, 9. Mean cosine to the dense model; dropped patches show what `fill` says."
        f" Two random patches of one photo: {cosine(dense.patches, shuffled):.3f}.",
        f"`python benchmarks/prune_features.py --size {options.size} --photos {options.photos}"
        f"{' --learned dir:PRUNED' if options.learned else ''}`,"
        f" torch {torch.__version__}, {platform.machine()}.",
        "",
        "| keep | scorer | fill | gain in MACs | class token | map |",
        "|---|---|---|---|---|---|",
    ]
    for keep, scorer, fill in rows():
        pruned = prune(backbone, keep=keep, scorer=scorer, fill=fill)
        tokens = pruned.tokens(pixels, batch=8)
        assert tokens.cls is not None and dense.cls is not None
        lines.append(
            f"| {keep} | {scorer} | {fill} | {macs(pruned).gain:.2f} |"
            f" {cosine(tokens.cls, dense.cls):.3f} | {cosine(tokens.patches, dense.patches):.3f} |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines) + "\n"


def merging(options: argparse.Namespace, backbone: cv.Backbone, pixels: Tensor) -> str:
    """Vary the two constants of `fuse`, which were chosen so."""
    dense = backbone.tokens(pixels, batch=8)
    models = {"class attention": prune(backbone, keep=0.7, scorer="fuse")}
    if options.learned:
        learned = cv.load(find_model(options.learned), size=options.size)
        assert isinstance(learned, PrunedBackbone)
        models["learned"] = learned
    found, settings = (selection.SCORE_WEIGHT, selection.PAIR_LIMIT), []
    settings += [(0.7, worth, 1.0) for worth in (0.0, 0.1, 0.2, 0.4, 0.8)]
    settings += [(keep, found[0], few) for keep in (0.65, 0.6, 0.55, 0.5) for few in (1.0, 0.0)]
    lines = ["", "Merging by scores, class token / map:", ""]
    lines += [f"| keep | weight of scores | who leaves | {' | '.join(models)} |"]
    lines += ["|---" * (3 + len(models)) + "|"]
    for keep, worth, few in settings:
        selection.SCORE_WEIGHT, selection.PAIR_LIMIT = worth, few
        cells = []
        for pruned in models.values():
            tokens = pruned.with_keep(keep).tokens(pixels, batch=8)
            assert tokens.cls is not None and dense.cls is not None
            pairs = (tokens.cls, dense.cls), (tokens.patches, dense.patches)
            cells.append(" / ".join(f"{cosine(*pair):.3f}" for pair in pairs))
        chosen = "of pairs" if few else "by scores"
        lines.append(f"| {keep} | {worth} | {chosen} | {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    selection.SCORE_WEIGHT, selection.PAIR_LIMIT = found
    return "\n".join(lines) + "\n"


def rows() -> list[tuple[float, Scorer, Fill]]:
    every: list[tuple[float, Scorer, Fill]] = [
        (keep, scorer, "similar") for keep in KEEPS for scorer in SCORERS
    ]
    others = [fill for fill in FILLS if fill != "similar"]
    return every + [(0.7, s, fill) for s in ("class", "merge") for fill in others]


def cosine(one: Tensor, other: Tensor) -> float:
    return float(torch.cosine_similarity(one, other, dim=-1).mean())


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
