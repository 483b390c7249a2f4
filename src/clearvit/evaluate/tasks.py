"""What each task does with one backbone: learn from the train split, measure on the test split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from clearvit.backbones.backbone import Backbone
from clearvit.dense.classification import drawn_by_class, pooled, predict
from clearvit.dense.correspondence import measure_warps
from clearvit.dense.depth import Depth, depth_batches, fit_bins, fit_log, measure_depth
from clearvit.dense.features import Features, drawn, extracted, spread, whole_picture
from clearvit.dense.metrics import depth_metrics, segmentation_metrics
from clearvit.dense.neighbours import Bank
from clearvit.dense.segmentation import (
    Scorer,
    labelled_patches,
    measure_sliding,
    measure_whole,
)
from clearvit.dense.sgd import cached_batches, fit_fast, fit_steps, live_batches
from clearvit.dense.splits import DepthSplit, LabelSplit, MaskSplit, Split
from clearvit.errors import ImageError
from clearvit.evaluate.config import EvaluateConfig
from clearvit.evaluate.table import Result
from clearvit.images import find_images
from clearvit.progress import Progress

Floats = NDArray[np.float64]
Draw = tuple[int | None, int, list[int]]  # labelled as asked, seed, places in the train split


def draws_of(total: int, config: EvaluateConfig) -> list[Draw]:
    """Draw labelled images for each number asked; all of them can be drawn in one way only."""
    found = []
    for wanted in config.labelled:
        count = 1 if wanted is None or wanted >= total else config.draws
        for draw in range(count):
            seed = config.seed + draw
            found.append((wanted, seed, drawn(total, wanted, seed)))
    return found


def _needed(draws: Sequence[Draw]) -> tuple[list[int], list[Draw]]:
    """Which images are needed at all, and the draws as places among these."""
    used = sorted({index for _, _, chosen in draws for index in chosen})
    place = {index: i for i, index in enumerate(used)}
    return used, [(wanted, seed, [place[i] for i in c]) for wanted, seed, c in draws]


def _grouped(
    draws: Sequence[Draw],
    rows: Sequence[Floats],
    name: str,
    summary: Callable[[Floats], Mapping[str, Floats]],
) -> list[Result]:
    """One result per number of labelled images."""
    results = []
    for wanted in dict.fromkeys(draw[0] for draw in draws):
        mine = [i for i, draw in enumerate(draws) if draw[0] == wanted]
        count = len(draws[mine[0]][2])
        results.append(Result(name, count, [rows[i] for i in mine], summary))
    return results


def _extract(
    backbone: Backbone, split: Split, config: EvaluateConfig, progress: Progress | None
) -> AbstractContextManager[Features]:
    return extracted(
        backbone,
        split,
        size=config.size,
        batch=config.batch,
        cache=config.cache,
        progress=progress,
    )


def segment(
    backbone: Backbone,
    train: MaskSplit,
    test: MaskSplit,
    config: EvaluateConfig,
    *,
    neighbours: bool = False,
    progress: Progress | None = None,
) -> list[Result]:
    """Segment by a linear probe or by dense neighbours."""
    shown = whole_picture(backbone)
    used, draws = _needed(draws_of(len(train), config))
    part = train.chosen(used)
    summary = partial(
        segmentation_metrics, classes=train.classes, subset=subset_of(train.classes, config.subset)
    )
    fit = _bank if neighbours else _probe
    name = "neighbours" if neighbours else f"linear, {config.recipe}"
    with _train_features(shown, part, config, neighbours, progress) as features:
        scorers = (fit(shown, features, part, draw, config) for draw in draws)
        rows: list[Floats] = []
        if config.inference == "slide":
            rows = measure_sliding(list(scorers), shown, test, config.sliding, progress)
        else:
            with _extract(shown, test, config, progress) as seen:
                for scorer in scorers:  # one at a time: a bank of patches is large
                    rows += measure_whole([scorer], seen, test)
    return _grouped(draws, rows, name, summary)


@contextmanager
def _train_features(
    backbone: Backbone,
    split: MaskSplit,
    config: EvaluateConfig,
    neighbours: bool,
    progress: Progress | None,
) -> Iterator[Features | None]:
    """Extract what the fit reads; the recipe of the paper runs the network itself."""
    if config.recipe == "paper" and not neighbours:
        yield None
        return
    with _extract(backbone, split, config, progress) as features:
        yield features


def _probe(
    backbone: Backbone,
    features: Features | None,
    split: MaskSplit,
    draw: Draw,
    config: EvaluateConfig,
) -> Scorer:
    _, seed, chosen = draw
    if features is None:
        size = backbone.fitting_size(config.size)
        batches = live_batches(backbone, split, chosen, size=size, seed=seed)
    elif config.recipe == "fast":
        steps, device = config.iterations, backbone.device
        return fit_fast(features, split, chosen, steps=steps, seed=seed, device=device)
    else:
        batches = cached_batches(features, split, chosen, seed=seed, device=backbone.device)
    return fit_steps(batches, classes=len(split.classes), steps=config.steps, seed=seed)


def _bank(
    backbone: Backbone,
    features: Features | None,
    split: MaskSplit,
    draw: Draw,
    config: EvaluateConfig,
) -> Scorer:
    _, seed, chosen = draw
    assert features is not None
    tokens, labels = labelled_patches(features, split, chosen, most=config.patches, seed=seed)
    k, temperature = config.neighbours or 30, config.temperature or 0.02
    return Bank.build(tokens, labels, neighbours=k, temperature=temperature)


def subset_of(classes: Sequence[str], names: Sequence[str]) -> tuple[int, ...]:
    """Find the places of some classes."""
    for name in names:
        if name not in classes:
            raise ImageError(f"subset names '{name}'; the classes are {', '.join(classes)}.")
    return tuple(classes.index(name) for name in names)


def estimate_depth(
    backbone: Backbone,
    train: DepthSplit,
    test: DepthSplit,
    config: EvaluateConfig,
    *,
    progress: Progress | None = None,
) -> list[Result]:
    """Estimate depth by a linear probe."""
    shown = whole_picture(backbone)
    used, draws = _needed(draws_of(len(train), config))
    part, fast = train.chosen(used), config.recipe == "fast"
    rows = []
    with (
        _extract(shown, part, config, progress) as features,
        _extract(shown, test, config, progress) as seen,
    ):
        for _, seed, chosen in draws:
            predictor: Depth
            if fast:
                predictor = fit_log(features, part, chosen, config.penalty)
            else:
                batches = depth_batches(features, part, chosen, seed=seed, device=shown.device)
                predictor = fit_bins(batches, config.depth, steps=config.steps, seed=seed)
            rows.append(measure_depth(predictor, seen, test, cls=not fast, eigen=config.eigen))
    name = "linear, log depth" if fast else "linear, 256 bins"
    return _grouped(draws, rows, name, depth_metrics)


def classify(
    backbone: Backbone,
    train: LabelSplit,
    test: LabelSplit | None,
    config: EvaluateConfig,
    *,
    progress: Progress | None = None,
) -> list[Result]:
    """Classify whole images; without a test split, on the images of each class not drawn."""
    with _extract(backbone, train, config, progress) as features:
        x = pooled(features, config.features, model=backbone.name)
    y = torch.tensor(train.labels)
    if test is not None:
        with _extract(backbone, test, config, progress) as features:
            held, answers = (
                pooled(features, config.features, model=backbone.name),
                torch.tensor(test.labels),
            )
    results = []
    for wanted in config.labelled:
        splits = []
        for draw in range(1 if wanted is None and test is not None else config.draws):
            chosen = drawn_by_class(train.labels, wanted, config.seed + draw, rest=test is None)
            if test is None:
                others = sorted(set(range(len(train))) - set(chosen))
                held, answers = x[others], y[others]
            splits.append((x[chosen], y[chosen], held, answers))
        for method in config.methods:
            rows = [_hits(method, *split, len(train.classes), config) for split in splits]
            results.append(Result(method, len(splits[0][0]), rows, _accuracy))
    return results


def _hits(
    method: str,
    x: torch.Tensor,
    y: torch.Tensor,
    held: torch.Tensor,
    answers: torch.Tensor,
    classes: int,
    config: EvaluateConfig,
) -> Floats:
    """Right or wrong for each test image, and 1, (V, 2)."""
    guess = predict(
        method,  # type: ignore[arg-type]
        x,
        y,
        held,
        classes=classes,
        k=config.neighbours or 20,
        temperature=config.temperature or 0.07,
        penalty=config.penalty,
    )
    right = (guess == answers).double()
    return torch.stack([right, torch.ones_like(right)], dim=1).numpy()


def _accuracy(sums: Floats) -> Mapping[str, Floats]:
    return {"top-1": 100 * sums[..., 0] / np.maximum(sums[..., 1], 1)}


def correspond(
    backbone: Backbone,
    folder: str | Path,
    config: EvaluateConfig,
    *,
    progress: Progress | None = None,
) -> list[Result]:
    """Match patches under known warps; draws are draws of the warps."""
    pictures = find_images(folder)
    chosen = [pictures[i] for i in spread(len(pictures), config.limit)]
    shown = whole_picture(backbone)
    rows = [
        measure_warps(
            shown,
            chosen,
            size=config.size,
            alphas=config.alphas,
            seed=config.seed + draw,
            progress=progress,
        )
        for draw in range(config.draws)
    ]
    return [Result("affine warps", 0, rows, partial(_matched, alphas=config.alphas))]


def _matched(sums: Floats, alphas: Sequence[float]) -> Mapping[str, Floats]:
    count = np.maximum(sums[..., -1], 1)
    return {f"PCK@{alpha:g}": sums[..., i] / count for i, alpha in enumerate(alphas)}
