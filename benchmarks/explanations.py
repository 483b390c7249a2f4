"""Are explanations true? Lines and parts before (7 x 7 transport) and after (fine mutual matches).

    python benchmarks/explanations.py [--models demo NAME ...] [--limit 24]

Correspondence: a photo against a warped copy; a line counts if it ends within alpha of the longer
side of the true place. Agreement: two photos of VOC that share a class; lines that begin on an
object of that class should end on one. Deletion: hide what the explanation points at, and as a
control the same shape moved elsewhere; the cosine of the descriptors should fall more for the
first. Non-matches: pairs of the same class and of different classes of imagenet100, in an index of
the classes and with images that took no part when the thresholds were set; and pairs of different
cars, which do share parts.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import clearvit as cv
from clearvit.images import read_image
from clearvit.probes.correspondence import map_points, patch_centers, sample_warp, warp_images
from clearvit.retrieval.config import IndexConfig, Matching
from clearvit.retrieval.explanations.explanation import explain_pair
from clearvit.retrieval.explanations.fine_tokens import VIEWS, FineTokens, extract_fine
from clearvit.retrieval.explanations.null_similarity import NULL, needed_matches
from clearvit.retrieval.image_features import ImageFeatures, extract_features, make_spec
from clearvit.retrieval.matching.parts import FEWEST, find_parts
from clearvit.stats import bootstrap
from clearvit.views.denoise import denoise_pixels, views_for
from data import DATA, data_path, find_model
from evidence import read_result, write_result
from render import render

ALPHAS = (0.05, 0.1)
LINES = 9
NONE = "\N{EN DASH}"
IGNORED = 255  # label of the rim of an object


class Explainer:
    """Both explanations of pairs of normalized images, (3, height, width)."""

    def __init__(self, backbone: cv.Backbone) -> None:
        self.backbone = backbone
        self.spec = make_spec(backbone, IndexConfig(size=224))
        self.known: dict[Path, FineTokens] = {}

    def read(self, path: Path) -> Tensor:
        """Read an image as the network sees it."""
        return self.backbone.preprocessing(read_image(path), self.spec.size)

    def fine(self, path: Path) -> FineTokens:
        """Tokens of a file on a fine grid."""
        if path not in self.known:
            self.known[path] = extract_fine(self.backbone, read_image(path), self.spec.size)
        return self.known[path]

    def before(self, query: Tensor, hit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Lines of the coarse transport plan, each patch once, and contributions of its rows."""
        local = [
            extract_features(self.backbone, one[None], self.spec).local_features(self.spec)
            for one in (query, hit)
        ]
        found = explain_pair(
            *local,
            self.spec.grid,
            matching=Matching("transport"),
            global_similarity=0.0,
            weight=1.0,
        )
        left = found.contributions.clone()
        lines = []
        for _ in range(LINES):
            row, column = divmod(int(left.argmax()), left.shape[1])
            lines.append((row, column))
            left[row], left[:, column] = -torch.inf, -torch.inf
        centers = patch_centers(self.spec.grid)
        ends = torch.tensor(lines)
        return centers[ends[:, 0]], centers[ends[:, 1]], found.contributions.sum(1)

    def after(self, query: Tensor, hit: Tensor) -> tuple[Tensor, Tensor, Any]:
        """Lines of fine mutual matches, and the parts."""
        both = torch.stack([query, hit])
        with torch.no_grad():
            chosen = views_for(self.backbone, both, VIEWS)
            tokens = denoise_pixels(self.backbone, both, chosen, VIEWS)
        parts = find_parts(tokens.patches[0].float(), tokens.patches[1].float(), (tokens.grid,) * 2)
        centers = patch_centers(tokens.grid)
        return centers[parts.lines.query], centers[parts.lines.hit], parts


def correspondence(explainer: Explainer, files: list[Path]) -> dict[str, list[float]]:
    """Percent of the lines that end at the true place, per photo."""
    found: dict[str, list[float]] = {}
    for number, file in enumerate(files):
        image = explainer.read(file)
        warp = sample_warp(number)
        copy = warp_images(image[None], warp)[0]
        for name, explain in (("before", explainer.before), ("after", explainer.after)):
            start, end, _ = explain(image, copy)
            if not len(start):
                continue
            true = map_points(start, warp)
            distance = (end - true).norm(dim=1) / 2
            inside = (true.abs() <= 1).all(1)
            for alpha in ALPHAS:
                right = (distance <= alpha) & inside
                found.setdefault(f"{name} {alpha}", []).append(100 * float(right.double().mean()))
            found.setdefault(f"{name} lines", []).append(len(start))
    return found


def agreement(explainer: Explainer, folder: Path, limit: int) -> dict[str, list[float]]:
    """Percent of the lines from an object of the shared class that end on one; and deletion."""
    pairs = same_class_pairs(explainer, folder, limit)
    found: dict[str, list[float]] = {}
    contributions = torch.zeros(0)
    for (query, labels), (hit, others), label in pairs:
        covered = 100 * float((others == label).mean())
        for name, explain in (("before", explainer.before), ("after", explainer.after)):
            start, end, extra = explain(query, hit)
            if not len(start):
                found.setdefault(f"{name} none", []).append(100.0)
                continue
            found.setdefault(f"{name} none", []).append(0.0)
            ours, theirs = look_up(labels, start), look_up(others, end)
            on = ours == label
            if on.any():
                found.setdefault(f"{name} same", []).append(
                    100 * float((theirs[on] == label).mean())
                )
                found.setdefault(f"{name} chance", []).append(covered)
            found.setdefault(f"{name} on object", []).append(100 * float(on.mean()))
            if name == "after":
                agree = part_agreement(extra, labels, others)
                if agree is not None:
                    found.setdefault("parts agree", []).append(agree)
                parts = (extra.query_parts >= 0).double()
                area = float(parts.mean())
                if area < 0.7:  # else there is nowhere to move it to
                    drop = deletion(explainer, query, hit, parts > 0)
                    found.setdefault("after drop", []).append(drop)
                    mask = strongest_cells(contributions, area).reshape(explainer.spec.grid)
                    drop = deletion(explainer, query, hit, mask)
                    found.setdefault("before drop", []).append(drop)
            else:
                contributions = extra
    return found


def strongest_cells(contributions: Tensor, area: float) -> Tensor:
    """Mark the cells that contribute most, as many as cover a fraction of the image, (R,) bool."""
    mask = torch.zeros(len(contributions), dtype=torch.bool)
    mask[contributions.topk(max(1, round(area * len(contributions)))).indices] = True
    return mask


def part_agreement(parts: Any, labels: np.ndarray, others: np.ndarray) -> float | None:
    """Percent of the parts, by area, whose most frequent label is the same in both images."""
    maps = [
        resize_labels(one, grid) for one, grid in zip((labels, others), parts.grids, strict=True)
    ]
    total = agreed = 0.0
    for number in range(parts.count):
        inside = [
            m[p.numpy() == number]
            for m, p in zip(maps, (parts.query_parts, parts.hit_parts), strict=True)
        ]
        inside = [one[one != IGNORED] for one in inside]
        if not all(len(one) for one in inside):
            continue
        most = [np.bincount(one).argmax() for one in inside]
        total += len(inside[0])
        agreed += len(inside[0]) * float(most[0] == most[1])
    return 100 * agreed / total if total else None


def deletion(explainer: Explainer, query: Tensor, hit: Tensor, mask: Tensor) -> float:
    """How many hundredths the cosine falls more if the mask is hidden than if it is moved."""
    height, width = query.shape[1:]
    shifts = [
        (mask.shape[0] // 2, 0),
        (0, mask.shape[1] // 2),
        (mask.shape[0] // 2, mask.shape[1] // 2),
    ]
    masks = [mask, *(mask.roll(shift, (0, 1)) for shift in shifts)]
    copies = [query]
    for one in masks:
        large = F.interpolate(one[None, None].float(), (height, width))[0] > 0.5
        copies.append(query.masked_fill(large, 0.0))
    stacked = torch.stack([*copies, hit])
    vectors = extract_features(explainer.backbone, stacked, explainer.spec).descriptors
    cosines = vectors[:-1] @ vectors[-1]
    return 100 * float(cosines[2:].mean() - cosines[1])


def same_class_pairs(explainer: Explainer, folder: Path, limit: int) -> list[Any]:
    """Photos of VOC val and the most similar one that shows the same class, with their labels."""
    names = (folder / "ImageSets/Segmentation/val.txt").read_text().split()
    read = []
    for name in names[: 5 * limit]:
        labels = np.asarray(Image.open(folder / f"SegmentationClass/{name}.png"))
        read.append((explainer.read(folder / f"JPEGImages/{name}.jpg"), labels))
    with torch.no_grad():
        vectors = torch.cat(
            [
                extract_features(explainer.backbone, one[None], explainer.spec).descriptors
                for one, _ in read
            ]
        )
    shown = [set(np.unique(labels)) - {0, IGNORED} for _, labels in read]
    pairs = []
    for i in range(len(read)):
        order = (vectors @ vectors[i]).argsort(descending=True).tolist()
        partner = next((j for j in order if j != i and shown[i] & shown[j]), None)
        if partner is not None and len(pairs) < limit:
            label = max(shown[i] & shown[partner], key=lambda c: int((read[i][1] == c).sum()))
            pairs.append((read[i], read[partner], label))
    return pairs


def non_matches(explainer: Explainer, data: Path, limit: int) -> dict[str, list[float]]:
    """Percent of the pairs that are explained: of one class, of two, and of two kinds of cars."""
    classes = sorted(p for p in (data / "imagenet100").iterdir() if p.is_dir())[1::2][: 2 * limit]
    files = {c: sorted(c.iterdir()) for c in classes}
    pairs: dict[str, list[tuple[Path, Path]]] = {"same class": [], "different classes": []}
    for number, label in enumerate(classes):
        other = classes[(number + 1) % len(classes)]
        pairs["same class"].append((files[label][2], files[label][3]))
        pairs["different classes"].append((files[label][2], files[other][3]))
    found = explained(explainer, [f for some in files.values() for f in some], pairs)
    cars = [sorted(c.iterdir())[:4] for c in sorted((data / "cars").iterdir()) if c.is_dir()]
    two = [(one[0], other[0]) for one, other in zip(cars, cars[1:] + cars[:1], strict=True)]
    return found | explained(explainer, [f for some in cars for f in some], {"kinds of cars": two})


def explained(
    explainer: Explainer, collection: list[Path], pairs: dict[str, list[tuple[Path, Path]]]
) -> dict[str, list[float]]:
    """Percent of the pairs with parts: by one threshold for all, and against random images."""
    with tempfile.TemporaryDirectory() as folder:
        index = cv.Index.build(
            explainer.backbone, collection, out=Path(folder) / "index", size=224, facet="token"
        )
        rows = index.store.fetch(index.names)
        null, spec = index.store.sample(NULL), index.spec
    assert rows.features is not None
    place = {entry.path: number for number, entry in enumerate(rows.entries)}

    def features(path: Path) -> ImageFeatures:
        own = slice(place[str(path)], place[str(path)] + 1)
        found = rows.features
        return ImageFeatures(found.descriptors[own], found.patches[own], found.weights[own])

    result: dict[str, list[float]] = {}
    for name, some in pairs.items():
        for one, other in some:
            needed = needed_matches(features(one), features(other), null, spec)
            fine = [explainer.fine(path) for path in (one, other)]
            tokens, grids = [f.patches for f in fine], tuple(f.grid for f in fine)
            for kind, fraction in (("fixed", FEWEST), ("null", needed)):
                parts = find_parts(*tokens, grids, needed=fraction)
                result.setdefault(f"{name}, {kind}", []).append(100 * float(parts.count > 0))
    return result


def look_up(labels: np.ndarray, points: Tensor) -> np.ndarray:
    """Labels (height, width) at points (M, 2): x, y from -1 to 1."""
    x, y = ((points + 1) / 2).clamp(0, 0.9999).numpy().T
    return labels[(y * labels.shape[0]).astype(int), (x * labels.shape[1]).astype(int)]


def resize_labels(labels: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    return look_up(labels, patch_centers(grid)).reshape(grid)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["demo"])
    parser.add_argument("--data", type=data_path, default=DATA)
    parser.add_argument("--limit", type=int, default=24, help="photos, or pairs, of each test")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    results = read_result("explanations")
    used = ("photos", "voc", "imagenet100", "cars")
    photos = sorted((options.data / "photos").iterdir())[7 :: 480 // options.limit][: options.limit]
    for model in options.models:
        known = results.get(model, {})
        if "same class, null" in known:
            continue
        explainer = Explainer(cv.load(find_model(model), size=224))
        found = non_matches(explainer, options.data, options.limit)
        if not known:
            found |= {f"warp {k}": v for k, v in correspondence(explainer, photos).items()}
            found |= agreement(explainer, options.data / "voc", options.limit)
        results[model] = known | {k: summarize(v) for k, v in found.items()}
        results[model]["limit"] = options.limit
        results[model]["date"] = time.strftime("%Y-%m-%d")
        write_result("explanations", results, data=used, seeds=[0], models=options.models)
        print(model, json.dumps(results[model], indent=1), flush=True)
    render("explanations")


def summarize(values: list[float]) -> list[float]:
    interval = bootstrap(values)
    return [interval.mean, interval.low, interval.high, len(values)]


if __name__ == "__main__":
    main()
