"""What do artifact tokens know? Linear probes on frozen tokens, scored by kind of token.

The local and global probes of "Vision Transformers Need Registers" (Darcet et al., arXiv
2309.16588, section 2.2). The paper discloses no recipe; each `Probe.protocol` states ours.

An image is either trained or tested on, never both: neighboring tokens are near copies.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearvit.artifacts.neighbors import NAN, shortage
from clearvit.probes.linear import LinearHead, Ridge, fit_logistic

TOKENS = 40_000  # most tokens a probe is trained on
HELD = 8_000  # most tokens that decide when to stop, or how much to regularise
EPOCHS = 30
PATIENCE = 3  # epochs without progress on held-out images
BATCH = 512  # tokens per step
RATE = 2e-3  # of Adam, at its start
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # L2 penalties tried, per training token
PENALTIES = (1.0, 1e-1, 1e-2, 1e-3)  # L2 penalties tried for classes, strongest first
STEPS = 60  # of L-BFGS, at most
MIDDLE = PENALTIES[2]  # where no image is left to choose with
FOLDS = 4  # of the images, for classes
CLASS_PROTOCOL = (
    f"Logistic regression (L-BFGS) on one token per image; {FOLDS}-fold cross-validation over {{}}"
    " images of {} classes (chance {:.2g} %), L2 penalty chosen within the training part,"
    " standardized features; seeds change the tokens drawn and the folds."
)
# Part that the n-th image of a group goes to: of 8 images 5 train, 1 is held out, 2 are tested.
PARTS = torch.tensor([0, 2, 0, 1, 0, 2, 0, 0])
SPLIT = (
    f"Of 8 images 5 train (at most {TOKENS} tokens, standardized, outliers as rare as they are),"
    " 1 is held out and 2 are tested; seeds change the split."
)


@dataclass(frozen=True)
class Row:
    """The scores of one kind of token, one per metric of its table.

    Attributes:
        kind: "normal", "outlier", "class" and so on.
        means: Mean over the seeds; NaN where there was nothing to score.
        sds: Standard deviation over the seeds; NaN if it is not known.
        count: Tokens scored, in the run with the fewest; None if it is not known.
    """

    kind: str
    means: tuple[float, ...]
    sds: tuple[float, ...]
    count: int | None


@dataclass(frozen=True)
class Probe:
    """The result of one probe.

    Attributes:
        name: What is predicted.
        metrics: Names of the scores, with their units.
        rows: One per kind of token.
        conclusive: Whether enough tokens of both kinds were scored to conclude, either way.
        note: Why not, or how many there were.
        protocol: How the numbers were made.
    """

    name: str
    metrics: tuple[str, ...]
    rows: tuple[Row, ...] = ()
    conclusive: bool = False
    note: str = ""
    protocol: str = ""

    def row(self, kind: str) -> Row:
        """Return the scores of one kind of token."""
        return next(row for row in self.rows if row.kind == kind)


@dataclass(frozen=True)
class _Part:
    """Tokens drawn from the images of one part."""

    x: Tensor  # (T, C)
    image: Tensor  # (T,)
    position: Tensor  # (T,), 0..N-1


Scores = tuple[Tensor, ...]  # for each metric one score per token, (N,)
Scorer = Callable[[int], Scores]  # scores the tokens of one image, given its number
Fit = Callable[[_Part, _Part, torch.Generator], Scorer]  # of training and held-out tokens


def position_probe(
    tokens: Tensor, outlier: Tensor, grid: tuple[int, int], *, seeds: int = 3
) -> Probe:
    """Predict from each token in which cell of the grid it sits.

    Args:
        tokens: Patch tokens, (I, N, C), row by row.
        outlier: Which of them are outliers, (I, N) bool.
        grid: (H, W) in patches, H * W = N.
        seeds: Runs, each with another split of the images.
    """
    height, width = grid
    cells = torch.arange(height * width)

    def fit(train: _Part, held: _Part, rng: torch.Generator) -> Scorer:
        scale = _scaling(train.x)
        data, check = (scale(train.x), train.position), (scale(held.x), held.position)
        linear = _fit_cells(data, check, len(cells), rng)

        def score(image: int) -> Scores:
            with torch.no_grad():
                found = linear(scale(tokens[image].float())).argmax(dim=1)
            rows, columns = found // width - cells // width, found % width - cells % width
            return 100.0 * (found == cells), torch.hypot(rows.float(), columns.float())

        return score

    protocol = (
        f"One linear layer for all tokens, {height} x {width} cells (chance"
        f" {100 / len(cells):.2g} %); cross-entropy, Adam at {RATE:g} with a cosine schedule, at"
        f" most {EPOCHS} epochs, patience {PATIENCE} on held-out images. {SPLIT}"
    )
    metrics = ("position top-1 %", "mean distance in patches")
    return _token_probe(tokens, outlier, fit, seeds, Probe("position", metrics, protocol=protocol))


def pixel_probe(tokens: Tensor, pixels: Tensor, outlier: Tensor, *, seeds: int = 3) -> Probe:
    """Reconstruct from each token the pixels of its patch.

    The first metric is the L2 error ||y - f(x)|| / sqrt(D) of a patch, in the units of `pixels`,
    averaged over patches. The second is that error if the answer is always the mean patch: kinds
    of token may sit on patches of different difficulty.

    Args:
        tokens: Patch tokens, (I, N, C).
        pixels: The D values of each patch, 0..255, (I, N, D) of any number format.
        outlier: Which tokens are outliers, (I, N) bool.
        seeds: Runs, each with another split of the images.
    """

    def fit(train: _Part, held: _Part, rng: torch.Generator) -> Scorer:
        y, held_y = (pixels[part.image, part.position].float() for part in (train, held))
        head, mean = _fit_pixels((train.x, y), (held.x, held_y)), y.mean(dim=0)

        def score(image: int) -> Scores:
            truth = pixels[image].float()
            errors = (truth - head(tokens[image].float()), truth - mean)
            return tuple(error.square().mean(dim=1).sqrt() for error in errors)

        return score

    protocol = (
        "One ridge regression in closed form for all tokens, penalty chosen on held-out images;"
        f" error in 8-bit levels per pixel and channel. {SPLIT}"
    )
    metrics = ("pixel L2 error in 0..255", "error of the mean patch in 0..255")
    return _token_probe(tokens, outlier, fit, seeds, Probe("pixels", metrics, protocol=protocol))


def class_probe(
    tokens: Tensor,
    outlier: Tensor,
    labels: Tensor,
    *,
    descriptors: Mapping[str, Tensor] | None = None,
    seeds: int = 3,
) -> Probe:
    """Classify images from one random patch token of a kind.

    Only images that have both kinds count, for every row, so that rows can be compared. If too
    few images have outliers to train on, the other rows are computed on all images.

    Args:
        tokens: Patch tokens, (I, N, C).
        outlier: Which of them are outliers, (I, N) bool.
        labels: Class of each image, (I,) whole numbers.
        descriptors: Further rows: one descriptor per image, (I, C), as the class token.
        seeds: Runs, each with other tokens and other folds of the images.
    """
    both = _in_classes(outlier.any(dim=1) & (~outlier).any(dim=1), labels)
    kept = both if both.any() else _in_classes((~outlier).any(dim=1), labels)
    tokens, outlier = tokens[kept], outlier[kept]
    masks = {"normal": ~outlier} | ({"outlier": outlier} if both.any() else {})
    whole = {kind: values[kept].float() for kind, values in (descriptors or {}).items()}
    _, classes = labels[kept].unique(return_inverse=True)
    runs: dict[str, list[Scores]] = {kind: [] for kind in (*whole, "normal", "outlier")}
    for seed in range(seeds if len(classes) else 0):
        rng = torch.Generator().manual_seed(seed)
        sampled = {kind: _sample_tokens(tokens, mask, rng) for kind, mask in masks.items()}
        folds = _rank_in_group(classes, rng) % FOLDS
        for kind, x in (whole | sampled).items():
            runs[kind].append((_cross_validate(x, classes, folds),))
    short, count = shortage("outlier", int(both.sum()), int(both.sum())), len(classes.unique())
    probe = Probe(
        "class",
        ("class top-1 %",),
        conclusive=not short,
        note=short or f"{len(classes)} images with outliers tested.",
        protocol=CLASS_PROTOCOL.format(len(classes), count, 100 / max(count, 1)),
    )
    return replace(probe, rows=tuple(_row(kind, scores, probe) for kind, scores in runs.items()))


def split_images(outlier: Tensor, rng: torch.Generator) -> Tensor:
    """Send each image to part 0 (training), 1 (held out) or 2 (test), (I,).

    Images with and without outliers are split alike, so that rare ones reach every part.

    Args:
        outlier: Which tokens are outliers, (I, N) bool.
        rng: Decides which images go where.
    """
    return PARTS[_rank_in_group(outlier.any(dim=1), rng) % len(PARTS)]


def _rank_in_group(groups: Tensor, rng: torch.Generator) -> Tensor:
    """Number the members of each group from 0, in random order; (I,)."""
    order = torch.randperm(len(groups), generator=rng)
    order = order[groups[order].long().argsort(stable=True)]
    _, counts = groups[order].unique_consecutive(return_counts=True)
    starts = (counts.cumsum(0) - counts).repeat_interleave(counts)
    return torch.empty_like(order).scatter(0, order, torch.arange(len(order)) - starts)


def _token_probe(tokens: Tensor, outlier: Tensor, fit: Fit, seeds: int, probe: Probe) -> Probe:
    """Fit on some images and score the tokens of others, by kind, once per seed."""
    masks = {"normal": ~outlier, "outlier": outlier}
    runs: dict[str, list[Scores]] = {kind: [] for kind in masks}
    images = dict.fromkeys(masks, len(tokens))  # tested that have the kind, in the worst run
    for seed in range(seeds):
        rng = torch.Generator().manual_seed(seed)
        part = split_images(outlier, rng)
        test = part.eq(2).nonzero().flatten()
        if not len(test) or not part.eq(0).any():
            note = f"{len(tokens)} images are too few to train on some and test on others."
            return replace(probe, rows=tuple(_row(k, [], probe) for k in masks), note=note)
        train = _sample(tokens, part == 0, TOKENS, rng)
        # Without an image to hold out (two or three in all) the training tokens stand in.
        held = _sample(tokens, part == 1, HELD, rng) if part.eq(1).any() else train
        score = fit(train, held, rng)
        columns = [torch.stack(column) for column in zip(*map(score, test.tolist()), strict=True)]
        for kind, mask in masks.items():
            runs[kind].append(tuple(column[mask[test]] for column in columns))
            images[kind] = min(images[kind], int(mask[test].any(dim=1).sum()))
    rows = {kind: _row(kind, scores, probe) for kind, scores in runs.items()}
    short = [shortage(kind, row.count or 0, images[kind]) for kind, row in rows.items()]
    note = short[1] or short[0] or f"{rows['outlier'].count} outlier tokens tested."
    return replace(probe, rows=tuple(rows.values()), conclusive=not any(short), note=note)


def _sample(tokens: Tensor, chosen: Tensor, most: int, rng: torch.Generator) -> _Part:
    images, length = chosen.nonzero().flatten(), tokens.shape[1]
    sampled = torch.randperm(len(images) * length, generator=rng)[:most]
    image, position = images[sampled // length], sampled % length
    return _Part(tokens[image, position].float(), image, position)


def _row(kind: str, runs: Sequence[Scores], probe: Probe) -> Row:
    """Average over tokens, then over runs; runs without tokens of the kind are left out."""
    means, sds = [], []
    for metric in range(len(probe.metrics)):
        found = [float(run[metric].mean()) for run in runs if len(run[metric])]
        means.append(statistics.fmean(found) if found else NAN)
        sds.append(statistics.stdev(found) if len(found) > 1 else NAN)
    return Row(kind, tuple(means), tuple(sds), min((len(run[0]) for run in runs), default=0))


def _scaling(x: Tensor) -> Callable[[Tensor], Tensor]:
    """Give the function that standardizes features as those in training, (T, C)."""
    sd, mean = torch.std_mean(x, dim=0, correction=0)
    sd = sd.where(sd > 1e-6 * sd.max(), 1)  # what is constant in training must not explode later
    return lambda features: (features - mean) / sd


@torch.enable_grad()  # callers measure without gradients
def _fit_cells(
    train: tuple[Tensor, Tensor], held: tuple[Tensor, Tensor], cells: int, rng: torch.Generator
) -> nn.Linear:
    """Fit a linear classifier by Adam and return it as it was at its best on held-out tokens."""
    x, y = train
    linear: nn.Linear = nn.utils.skip_init(nn.Linear, x.shape[1], cells)  # spares the global seed
    for parameter in linear.parameters():
        nn.init.zeros_(parameter)  # the problem is convex
    adam = torch.optim.Adam(linear.parameters(), RATE)
    steps = EPOCHS * math.ceil(len(x) / BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    best, least, waited = copy.deepcopy(linear), math.inf, 0
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(x), generator=rng).split(BATCH):
            loss = F.cross_entropy(linear(x[chosen]), y[chosen])
            adam.zero_grad()
            loss.backward()
            adam.step()
            schedule.step()
        with torch.no_grad():
            now = float(F.cross_entropy(linear(held[0]), held[1]))
        waited = 0 if now < least else waited + 1
        if now < least:
            best, least = copy.deepcopy(linear), now
        if waited == PATIENCE:
            break
    return best


def _fit_pixels(train: tuple[Tensor, Tensor], held: tuple[Tensor, Tensor]) -> LinearHead:
    """Fit ridge regression with the penalty that is best on held-out tokens."""
    x, y = train
    ridge = Ridge(x.shape[1], y.shape[1])
    ridge.add(x, y, torch.ones(len(x)))
    heads = [ridge.solve(penalty) for penalty in RIDGES]
    return min(heads, key=lambda head: float((head(held[0]) - held[1]).square().mean()))


def _cross_validate(x: Tensor, classes: Tensor, folds: Tensor) -> Tensor:
    """Classify each image by a model that has not seen it; 100 if right else 0, (I,)."""
    right = torch.zeros(len(x))
    count = int(classes.max()) + 1
    last = int(folds.max())
    for fold in range(last + 1):
        test, held = folds == fold, folds == (fold + 1) % (last + 1)
        train = ~(test | held)
        chosen = (x[train], classes[train], x[held], classes[held])
        penalty = _best_penalty(*chosen, count) if train.any() else MIDDLE
        head = fit_logistic(x[~test], classes[~test], count, penalty=penalty, steps=STEPS)
        right[test] = 100.0 * (head(x[test]).argmax(dim=1) == classes[test])
    return right


def _best_penalty(x: Tensor, y: Tensor, held_x: Tensor, held_y: Tensor, count: int) -> float:
    def loss(penalty: float) -> float:
        head = fit_logistic(x, y, count, penalty=penalty, steps=STEPS)
        return float(F.cross_entropy(head(held_x), held_y))

    return min(PENALTIES, key=loss)


def _in_classes(chosen: Tensor, labels: Tensor) -> Tensor:
    """Keep chosen images whose class has two of them at least; none if one class is left."""
    _, position, counts = labels.unique(return_inverse=True, return_counts=True)
    held = torch.zeros_like(counts).scatter_add(0, position, chosen.long())
    kept = chosen & (held[position] > 1)
    return kept if int((held > 1).sum()) > 1 else torch.zeros_like(kept)


def _sample_tokens(tokens: Tensor, mask: Tensor, rng: torch.Generator) -> Tensor:
    """Draw one of the marked tokens of each image, (I, C)."""
    position = torch.multinomial(mask.float(), 1, generator=rng)[:, 0]
    return tokens[torch.arange(len(tokens)), position].float()
