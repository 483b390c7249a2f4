"""Ways to classify patches from a few labelled ones, each as tensors that can be saved.

The parts are those of `clearvit.probes`. Prototypes and nearest neighbors are one weighted vote: of
a mean of each class in each example, or of labelled patches without their mean. The probe is the
fast linear probe, in few steps and with classes weighted by the root of how rare they are. From one
or two examples of a class the probe learns what is special about these images, and prototypes do
not; from many the probe is better. "mixed" averages the probabilities of both, which is better than
either from few examples and as good as the probe from many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearvit.errors import ModelError
from clearvit.options import Size
from clearvit.probes.knn import KNN, fit_knn
from clearvit.probes.linear import LinearHead
from clearvit.probes.sgd import FAST_LR, Batch, train_head
from clearvit.segmentation.config import Method
from clearvit.segmentation.patch_sets import PatchSet, Rows

METHODS: tuple[Method, ...] = ("mixed", "probe", "knn", "prototypes")
BANK = 4096  # labelled patches that vote; more cost time at every image
NEIGHBORS, TEMPERATURE = 30, 0.07
PROTOTYPE_TEMPERATURE = 0.07
BATCH, STEPS = 2048, 200  # cells per step of the probe, and steps: more overfit few examples
RARITY = 0.5  # a class weighs its frequency to the power of -RARITY in the probe
PRIOR = 2  # examples per class at which probe and prototypes weigh the same in "mixed"
LEAST = 0.5  # patches that a class must have in an example to give a prototype


@dataclass(frozen=True)
class PatchClassifier:
    """Maps patch tokens to the probability of each class."""

    method: Method
    classes: int
    tensors: Mapping[str, Tensor]

    def __call__(self, tokens: Tensor) -> Tensor:
        """Classify tokens (N, C); probabilities (N, K)."""
        if self.method == "probe":
            return self._probe(tokens)
        votes = self._votes(tokens - self.tensors["mean"])
        if self.method == "mixed":
            return votes.lerp(self._probe(tokens), self.tensors["share"])
        return votes

    def _probe(self, tokens: Tensor) -> Tensor:
        return F.softmax(self._head(tokens), dim=1)

    @property
    def _head(self) -> LinearHead:
        return LinearHead(self.tensors["weight"], self.tensors["bias"])

    @property
    def _votes(self) -> KNN:
        bank, labels = self.tensors["bank"], self.tensors["labels"]
        if self.method == "knn":
            return KNN(bank, labels, self.classes, NEIGHBORS, TEMPERATURE)
        return KNN(bank, labels, self.classes, len(bank), PROTOTYPE_TEMPERATURE)


class ClassMaps(nn.Module):
    """The classifier as a part of a graph: patch tokens (B, N, C) to probabilities (B, K, H, W)."""

    def __init__(self, classifier: PatchClassifier, grid: Size) -> None:
        super().__init__()
        self.method, self.grid = classifier.method, grid
        for name, tensor in classifier.tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, patches: Tensor) -> Tensor:
        """Classify every patch of every image."""
        if self.method == "probe":
            found = self._probe(patches)
        elif self.method == "mixed":
            found = self._votes(patches).lerp(self._probe(patches), self.get_buffer("share"))
        else:
            found = self._votes(patches)
        maps: Tensor = found.transpose(1, 2).unflatten(2, self.grid)
        return maps

    def _probe(self, patches: Tensor) -> Tensor:
        return F.softmax(F.linear(patches, self.get_buffer("weight"), self.get_buffer("bias")), -1)

    def _votes(self, patches: Tensor) -> Tensor:
        bank, labels = self.get_buffer("bank"), self.get_buffer("labels")
        similar = F.normalize(patches - self.get_buffer("mean"), dim=-1) @ bank.T  # (B, N, M)
        if self.method != "knn":
            return F.softmax(similar / PROTOTYPE_TEMPERATURE, -1) @ labels
        best, rows = similar.topk(min(NEIGHBORS, len(bank)), -1)
        return (F.softmax(best / TEMPERATURE, -1)[..., None] * labels[rows]).sum(-2)


def fit_classifier(method: Method, data: PatchSet, *, seed: int = 0) -> PatchClassifier:
    """Fit one of `METHODS` to labelled patches; the same data give the same classifier."""
    classes = data.patches.labels.shape[1]
    if method == "mixed":
        probe, prototypes = (fit_classifier(m, data, seed=seed) for m in ("probe", "prototypes"))
        return mix(probe, prototypes, data)
    if method == "probe":
        batches = _cell_batches(data.cells, seed)
        head = train_head(batches, classes=classes, steps=STEPS, lr=FAST_LR, seed=seed)
        return PatchClassifier(method, classes, {"weight": head.weight, "bias": head.bias})
    tokens, labels = data.patches.tokens, data.patches.labels
    mean = torch.zeros(tokens.shape[1])
    if method == "prototypes":
        tokens, labels = _prototypes(F.normalize(tokens, dim=1), data.patches)
    else:
        mean = data.sampled.mean(0)
        generator = torch.Generator().manual_seed(seed)
        kept = torch.randperm(len(tokens), generator=generator)[:BANK]
        tokens, labels = tokens[kept] - mean, labels[kept]
    labels = labels / labels.sum(1, keepdim=True)
    knn = fit_knn(tokens, labels, classes=classes, k=NEIGHBORS, temperature=TEMPERATURE)
    return PatchClassifier(method, classes, {"mean": mean, "bank": knn.bank, "labels": knn.labels})


def mix(probe: PatchClassifier, prototypes: PatchClassifier, data: PatchSet) -> PatchClassifier:
    """Average a probe and prototypes that were fitted to the same data."""
    few = data.examples_per_class()
    share = {"share": torch.tensor(few / (few + PRIOR))}
    tensors = {**probe.tensors, **prototypes.tensors, **share}
    return PatchClassifier("mixed", probe.classes, tensors)


def _prototypes(unit: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Average the patches of each class of each example, unit length before."""
    examples, classes = int(rows.items.max()) + 1, rows.labels.shape[1]
    weights = F.one_hot(rows.items, examples).float()  # (M, E)
    sums = torch.einsum("me,mk,mc->ekc", weights, rows.labels, unit).flatten(0, 1)
    counts = (weights.T @ rows.labels).flatten()
    best = torch.zeros_like(counts, dtype=torch.bool)
    first = counts.unflatten(0, (examples, classes)).argmax(0)  # the example with most of a class
    best[first * classes + torch.arange(classes)] = True
    kept = (counts >= LEAST) | (best & (counts > 0))
    labels = torch.eye(classes).repeat(examples, 1)
    return sums[kept], labels[kept]


def _cell_batches(rows: Rows, seed: int) -> Iterator[Batch]:
    """Sample labelled cells for ever, as maps of one row; few cells are taken all at once."""
    generator = torch.Generator().manual_seed(seed)
    weighted = rows.labels * rows.labels.mean(0).clamp(min=1e-6) ** -RARITY
    labels = weighted * (rows.labels.sum() / weighted.sum())
    while True:
        chosen = torch.arange(len(rows.tokens))
        if len(chosen) > BATCH:
            chosen = torch.randint(len(chosen), (BATCH,), generator=generator)
        yield rows.tokens[chosen].T[None, :, :, None], labels[chosen].T[None, :, :, None]


def shapes_of(method: Method, width: int, classes: int, bank: int) -> dict[str, tuple[int, ...]]:
    """Give the shapes that the tensors of a classifier must have."""
    probe: dict[str, tuple[int, ...]] = {"weight": (classes, width), "bias": (classes,)}
    votes = {"mean": (width,), "bank": (bank, width), "labels": (bank, classes)}
    if method == "mixed":
        return {**probe, **votes, "share": ()}
    return probe if method == "probe" else votes


def classifier_from(
    method: Method, classes: int, width: int, tensors: Mapping[str, Tensor], where: str
) -> PatchClassifier:
    """Make a classifier of tensors that were read from a file, and check them first."""
    bank = len(tensors["bank"]) if "bank" in tensors and tensors["bank"].ndim else 0
    wanted = shapes_of(method, width, classes, bank)
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    finite = all(t.dtype is torch.float32 and bool(t.isfinite().all()) for t in tensors.values())
    if found != wanted or not finite or (method != "probe" and not bank):
        raise ModelError(f"'{where}' holds other tensors than its description says.")
    return PatchClassifier(method, classes, dict(tensors))
