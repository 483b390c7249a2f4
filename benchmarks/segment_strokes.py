"""What could make strokes worth more? Ways to use the unlabelled pixels of an example.

    python benchmarks/segment_strokes.py --work WORK     # goes on where it was stopped

One example per class, three strokes per class in each, as in segment.py, on fine, cured tokens.
Draws 10 to 13 and every second validation image choose; the numbers come from draws 0 to 5 and the
other validation images. WORK is that of segment.py, whose features are used; `render.py` makes the
page.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.probes.patches import patch_labels, resize_nearest
from clearvit.segmentation.class_maps import enlarge, map_classes
from clearvit.segmentation.method_choice import count_pixels, mean_iou
from clearvit.segmentation.patch_classifiers import fit_classifier
from clearvit.segmentation.patch_sets import collect
from data import DATA, data_path
from evidence import read_result, write_result
from segment import DRAWS, K, Voc, strokes_of

KIND = "fine, cured"
CHOOSING, REPORTING = range(DRAWS, DRAWS + 4), range(6)
BETA = {"centered": 0.1, "plain": 0.03}  # of the affinity exp((cosine - 1) / beta)


class Strokes:
    """Labels of the examples, spread in several ways."""

    def __init__(self, voc: Voc) -> None:
        self.voc, self.features = voc, voc.features(KIND, "train")
        self.grid = self.features.grid

    @cache  # noqa: B019
    def walk(self, index: int, kind: str) -> Tensor:
        """Where a random walk over the tokens of an example first meets a stroke, (N, K)."""
        labels, weights = patch_labels(strokes_of(self.voc, index), self.grid, K)
        labels = labels * weights[:, None]
        tokens = self.features.patches([index])[0].float()
        unit = F.normalize(tokens - tokens.mean(0) if kind == "centered" else tokens, dim=1)
        affinity = ((unit @ unit.T - 1) / BETA[kind]).exp().fill_diagonal_(0)
        seeds = labels.sum(1) > 0
        found = labels / labels.sum(1, keepdim=True).clamp(min=1e-6)
        open_ = ~seeds
        laplacian = affinity.sum(1).diag() - affinity
        system = laplacian[open_][:, open_] + 1e-4 * torch.eye(int(open_.sum()))
        found[open_] = torch.linalg.solve(system, affinity[open_][:, seeds] @ found[seeds])
        return found / found.sum(1, keepdim=True).clamp(min=1e-9)

    def spread(self, kind: str, margin: float, *, background: bool = True) -> Any:
        """Labels where the walk is sure, beside the strokes."""

        def read(index: int) -> Any:
            found = self.walk(index, kind)
            return self._fill(index, found, margin, background)

        return read

    def own_guess(self, classify: Any, margin: float) -> Any:
        """Labels where a first fit is sure, among the classes that have strokes in the image."""

        def read(index: int) -> Any:
            strokes = strokes_of(self.voc, index)
            here = np.unique(strokes[strokes >= 0])
            found = torch.zeros(self.grid[0] * self.grid[1], K)
            found[:, here] = classify(self.features.patches([index])[0])[:, here]
            return self._fill(index, found / found.sum(1, keepdim=True), margin, True)

        return read

    def _fill(self, index: int, found: Tensor, margin: float, background: bool) -> Any:
        strokes, best = strokes_of(self.voc, index), found.topk(2, 1).values
        sure, places = best[:, 0] - best[:, 1] >= margin, found.argmax(1)
        kept = sure & (places > 0) if not background else sure
        spread = torch.where(kept, places, -1).view(self.grid).numpy()
        wide = resize_nearest(spread, strokes.shape).astype(np.int64)
        return np.where(strokes >= 0, strokes, wide)

    def fit(self, read: Any, chosen: list[int]) -> Any:
        """Fit as `segment` does to so few examples."""
        return fit_classifier("mixed", collect(self.features, [(i, read) for i in chosen], K))


def ways(strokes: Strokes, chosen: list[int]) -> dict[str, Callable[[], Any]]:
    """Classifiers of one draw, by name."""
    plain = cache(lambda: strokes.fit(lambda i: strokes_of(strokes.voc, i), chosen))

    def more_background(factor: float) -> Any:
        def classify(tokens: Tensor) -> Tensor:
            found = plain()(tokens) * torch.tensor([factor] + [1.0] * (K - 1))
            return found / found.sum(1, keepdim=True)

        return classify

    found: dict[str, Callable[[], Any]] = {
        "masks": lambda: strokes.fit(lambda i: strokes.voc.mask("train", i), chosen),
        "strokes": plain,
        "background 1.5 times as probable": lambda: more_background(1.5),
    }
    for kind, margin in (("centered", 0.5), ("plain", 0.0), ("plain", 0.5)):
        name = f"random walk, {kind} tokens, margin {margin:g}"
        read = strokes.spread(kind, margin)
        found[name] = lambda read=read: strokes.fit(read, chosen)  # type: ignore[misc]
    objects = strokes.spread("plain", 0.5, background=False)
    found["random walk, plain tokens, margin 0.5, objects only"] = lambda: strokes.fit(
        objects, chosen
    )
    found["self-training, margin 0.3"] = lambda: strokes.fit(
        strokes.own_guess(plain(), 0.3), chosen
    )
    return found


def measure(voc: Voc, classify: Any, tested: range) -> float:
    """Mean IoU over validation images."""
    features = voc.features(KIND, "val")
    sums = np.zeros(3 * K)
    for index in tested:
        truth = voc.mask("val", index)
        maps = map_classes(classify, features.patches([index])[0], features.grid)
        sums += count_pixels(enlarge(maps, truth.shape), truth, K)
    return float(mean_iou(sums))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("build/segment"))
    parser.add_argument("--data", type=data_path, default=DATA)
    parser.add_argument("--limit", type=int, help="samples of examples, to try it out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.shots, options.features, options.draws = [1], [KIND], DRAWS
    voc = Voc(options)
    strokes = Strokes(voc)
    rows = read_result("segment_strokes").get("rows", [])
    done = {row["seed"] for row in rows}
    for seed in [s for s in (*CHOOSING, *REPORTING) if s not in done][: options.limit]:
        chosen = voc.draw(1, seed)
        tested = range(int(seed in CHOOSING), len(voc.splits["val"]), 2)
        found = {name: measure(voc, make(), tested) for name, make in ways(strokes, chosen).items()}
        rows.append({"seed": seed, "chooses": seed in CHOOSING, "mIoU": found})
        write_result("segment_strokes", {"rows": rows}, data=["voc"], models=["demo"])
        print(rows[-1], flush=True)


if __name__ == "__main__":
    main()
