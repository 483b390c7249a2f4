"""The search of benchmarks/retrieval.py: which patch features make re-ranking help?

One pass per photo keeps tokens, queries, keys and values of some blocks in half precision on the
grid of the network. Then, stage by stage, the best on the selection half goes on: layer and
projection; centring, whitening and artifacts; grid; always with every comparison, calibration and
weight. The choice is measured once on the other half.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import clearvit as cv
from clearvit.artifacts.outliers import outlier_mask
from clearvit.datasets.retrieval_dataset import RetrievalDataset
from clearvit.datasets.retrieval_layouts import read_retrieval
from clearvit.files import write_json, written_whole
from clearvit.retrieval.config import Matching
from clearvit.retrieval.gate import choose_weight
from clearvit.retrieval.matching.patch_matching import LocalFeatures, match
from clearvit.retrieval.matching.pooling import pool_patches, pool_weights
from clearvit.retrieval.patch_weights import class_attention, remove_artifacts
from clearvit.retrieval.ranking_metrics import per_query_metrics
from clearvit.retrieval.whitening import Whitening
from clearvit.stats import bootstrap

BLOCKS = (6, 8, 9, 10, 11, 12)  # counted from 1
PROJECTIONS = ("token", "key", "query", "value")
COMPARISONS = {
    "transport": Matching(),
    "transport auto": Matching(mass="auto"),
    "mutual": Matching("mutual"),
    "chamfer": Matching("chamfer"),
}
CALIBRATIONS = ("raw", "z", "rank")
WEIGHTS = (0.05, 0.1, 0.25, 0.5, 1.0)
TOP, PIECE = 100, 16


@dataclass(frozen=True)
class Choice:
    """How patches are compared."""

    block: int = 12
    projection: str = "token"
    spread: str = "plain"  # or "centred", "whitened"
    clean: bool = False  # artifact tokens kept out
    grid: int = 7
    comparison: str = "transport"


@dataclass(frozen=True)
class Half:
    """Some queries of a collection, and their nearest by descriptor."""

    queries: Tensor  # (Q,)
    order: Tensor  # (Q, K): places in the gallery
    similarity: Tensor  # (Q, K)
    relevant: Tensor  # (Q, K) bool
    right: Tensor  # (Q,)


def search_page(backbones: dict[str, cv.Backbone], options: argparse.Namespace) -> str:
    from retrieval import some_classes, title_of

    parts = ["# What could make structure help\n", *(__doc__ or "").split("\n\n")[1:]]
    parts.append(
        f"MAP@R in percent at {options.size} px, {time.strftime('%Y-%m-%d')}. Reproduce:"
        f" `python benchmarks/retrieval.py --search --sets {' '.join(options.sets)}`\n"
    )
    for name in options.sets:
        collection = read_retrieval(some_classes(options.data / name, options))
        for model, backbone in backbones.items():
            bank = Bank(backbone, collection, name, options)
            parts.append(f"## {name}, {title_of(model)}\n\n{searched(bank, options)}\n")
            print(parts[-1], flush=True)
    return "\n".join(parts)


class Bank:
    """Features of a collection on disk, extracted when they are not there."""

    def __init__(
        self,
        backbone: cv.Backbone,
        collection: RetrievalDataset,
        name: str,
        options: argparse.Namespace,
    ) -> None:
        self.collection = collection
        self.blocks = [b for b in BLOCKS if b <= backbone.depth]
        count = len(collection.images)
        key = f"bank-{name}-{backbone.fingerprint()[:8]}-{options.size}-{count}"
        self.folder: Path = options.work / key
        self._extract(backbone)
        self.descriptors = self._read("descriptors").float()
        self.attention = self._read("attention").float()
        self.flags = self._read("flags").bool()
        side = round(self.flags.shape[1] ** 0.5)
        self.native = (side, side)

    def _extract(self, backbone: cv.Backbone) -> None:
        paths = self.collection.images
        for start in range(0, len(paths), PIECE):
            file = self.folder / f"{start:06d}.safetensors"
            if file.exists():
                continue
            parts = [
                self._tokens(backbone, pixels)
                for pixels in backbone.pixels(list(paths[start : start + PIECE]), batch=4)
            ]
            with written_whole(file) as temporary:
                joined = {k: torch.cat([p[k] for p in parts]).contiguous() for k in parts[0]}
                save_file(joined, temporary)
            print(f"  {file.parent.name}: {start + PIECE} of {len(paths)}", flush=True)

    @torch.no_grad()
    def _tokens(self, backbone: cv.Backbone, pixels: Tensor) -> dict[str, Tensor]:
        layers = [block - 1 for block in self.blocks]
        kinds = ("query", "key", "value", "prefix_attention")
        tokens = backbone.forward(
            pixels, layers=sorted({*layers, backbone.depth - 1}), norm=False, capture=kinds
        )
        prefix = tokens.prefix.shape[1]
        norm: Any = backbone.network.norm
        found = {
            "descriptors": F.normalize(norm(tokens.prefix)[:, 0], dim=-1),
            "attention": class_attention(tokens.prefix_attention[-1], prefix),
            "flags": outlier_mask(tokens.norms),
        }
        for block, layer in zip(self.blocks, layers, strict=True):
            found[f"{block}.token"] = norm(tokens.layers[layer].patches).half()
            for kind in kinds[:3]:
                heads = getattr(tokens, kind)[layer][:, :, prefix:]
                found[f"{block}.{kind}"] = heads.transpose(1, 2).flatten(2).half()
        return found

    def _read(self, key: str) -> Tensor:
        parts = []
        for file in sorted(self.folder.glob("*.safetensors")):
            with safe_open(file, "pt") as content:
                parts.append(content.get_tensor(key))
        return torch.cat(parts)

    def local_features(self, choice: Choice) -> LocalFeatures:
        """Unit patches (N, R, C) and weights of all images."""
        patches = self._read(f"{choice.block}.{choice.projection}").float()
        patches = spread_out(patches, choice.spread)
        keep = ~self.flags if choice.clean else None
        weights = remove_artifacts(self.attention, self.flags) if choice.clean else self.attention
        to = (choice.grid, choice.grid)
        local = F.normalize(pool_patches(patches, self.native, to, keep=keep), dim=-1)
        return LocalFeatures(local, pool_weights(weights, self.native, to))


def spread_out(patches: Tensor, how: str) -> Tensor:
    """Remove the mean patch of the collection, or also its correlations; no label is used."""
    if how == "plain":
        return patches
    if how == "whitened":
        return Whitening.fit(patches)(patches)
    return patches - patches.flatten(0, 1).mean(0)


def halves(bank: Bank) -> tuple[Half, Half]:
    """Even and odd classes, each searched among themselves; or even and odd queries."""
    collection = bank.collection
    numbers = torch.arange(collection.num_queries)
    if not collection.queries_in_gallery:
        return _half(bank, numbers[::2], None), _half(bank, numbers[1::2], None)
    classes = torch.tensor(collection.labels).unique(return_inverse=True)[1]
    return tuple(_half(bank, numbers[classes % 2 == i], classes % 2 == i) for i in (0, 1))  # type: ignore[return-value]


def _half(bank: Bank, queries: Tensor, members: Tensor | None) -> Half:
    collection = bank.collection
    count = len(collection.gallery)
    places = torch.tensor([collection.query_index(int(q)) for q in queries])
    similarity = bank.descriptors[places] @ bank.descriptors[:count].T
    if members is not None:
        similarity[:, ~members] = -torch.inf
        similarity[torch.arange(len(queries)), places] = -torch.inf
    there = count if members is None else int(members.sum()) - 1
    found = similarity.sort(dim=1, descending=True, stable=True)
    top = min(TOP, there)
    order = found.indices[:, :top]
    relevant = collection.relevant(queries, order)
    return Half(
        queries, order, found.values[:, :top], relevant, collection.count_positives(queries)
    )


def patch_similarities(
    bank: Bank, half: Half, choice: Choice, images: LocalFeatures | None = None
) -> Tensor:
    """Patch similarity of the candidates, (Q, K)."""
    images = bank.local_features(choice) if images is None else images
    matching = COMPARISONS[choice.comparison]
    places = [bank.collection.query_index(int(q)) for q in half.queries]
    return torch.stack(
        [
            match(images[p : p + 1], images[row], matching).score
            for p, row in zip(places, half.order, strict=True)
        ]
    )


def scored(half: Half, score: Tensor) -> Tensor:
    """MAP@R of each query in percent, (Q,), for scores of the candidates (Q, K)."""
    order = score.nan_to_num(-torch.inf).sort(dim=1, descending=True, stable=True).indices
    return 100 * per_query_metrics(half.relevant.gather(1, order), half.right)[:, 2]


def combined(near: Tensor, close: Tensor, how: str, weight: float) -> Tensor:
    """Put both terms on a scale and add them, (Q, K)."""
    if how == "raw":
        return near + weight * close
    if how == "z":
        scale = [(t - t.mean(1, keepdim=True)) / t.std(1, keepdim=True) for t in (near, close)]
        return scale[0] + weight * scale[1]
    ranks = [t.argsort(1, descending=True).argsort(1) for t in (near, close)]
    return 1 / (60 + ranks[0]) + weight / (60 + ranks[1])


def tried(bank: Bank, half: Half, choices: Iterable[Choice], file: Path) -> dict[str, float]:
    """MAP@R on a half, by choice, calibration and weight; what the file has is not done again."""
    known: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
    features: tuple[Choice, LocalFeatures] | None = None
    for choice in choices:
        if _key(choice, CALIBRATIONS[0], WEIGHTS[0]) in known:
            continue
        source = replace(choice, comparison="")
        if features is None or features[0] != source:
            features = (source, bank.local_features(choice))
        close = patch_similarities(bank, half, choice, features[1])
        for how in CALIBRATIONS:
            for weight in WEIGHTS:
                value = scored(half, combined(half.similarity, close, how, weight)).mean()
                known[_key(choice, how, weight)] = float(value)
        write_json(file, known)
        print(f"  {choice}: {best(known, [choice])[1]:.2f}", flush=True)
    return known


def _key(choice: Choice, how: str, weight: float) -> str:
    return json.dumps([asdict(choice), how, weight])


def best(known: dict[str, float], choices: Iterable[Choice]) -> tuple[str, float]:
    keys = [_key(c, how, w) for c in choices for how in CALIBRATIONS for w in WEIGHTS]
    top = max(keys, key=lambda key: known[key])
    return top, known[top]


def ordered(known: dict[str, float], choices: list[Choice], count: int) -> list[Choice]:
    return sorted(choices, key=lambda c: -best(known, [c])[1])[:count]


def searched(bank: Bank, options: argparse.Namespace) -> str:
    select, report = halves(bank)
    file = bank.folder / "tried.json"
    cheap = ("transport", "chamfer")
    first = [Choice(b, p, comparison=c) for b in bank.blocks for p in PROJECTIONS for c in cheap]
    known = tried(bank, select, first, file)
    clean = (False, True) if bool(bank.flags.any()) else (False,)
    second = [
        replace(c, spread=s, clean=x)
        for c in ordered(known, first, 4)
        for s in ("plain", "centred", "whitened")
        for x in clean
    ]
    known = tried(bank, select, second, file)
    third = [replace(c, comparison=m) for c in ordered(known, second, 3) for m in COMPARISONS]
    known = tried(bank, select, third, file)
    fourth = [replace(c, grid=g) for c in ordered(known, third, 2) for g in (7, 14, bank.native[0])]
    known = tried(bank, select, fourth, file)
    base = float(scored(select, select.similarity).mean())
    top, value = best(known, [*first, *second, *third, *fourth])
    settings, how, weight = json.loads(top)
    choice = Choice(**settings)
    lines = [
        f"Descriptors alone: MAP@R {base:.2f} on the selection half; best of {len(known)} settings:"
        f" {value:.2f}.\n",
        stage_table("layer and projection", known, first, base),
        stage_table("centring, whitening, artifacts", known, second, base),
        stage_table("comparison", known, third, base),
        stage_table("grid", known, fourth, base),
        f"{int(bank.flags.sum())} of {bank.flags.numel()} tokens are flagged as artifacts.\n",
        verdict(bank, report, choice, how, weight),
    ]
    return "\n".join(lines)


def stage_table(title: str, known: dict[str, float], choices: list[Choice], base: float) -> str:
    lines = [f"### {title}\n", "| features | comparison | best calibration | MAP@R | Δ |"]
    lines.append("|---|---|---|---|---|")
    for c in ordered(known, list(dict.fromkeys(choices)), len(choices)):
        key, value = best(known, [c])
        _, how, weight = json.loads(key)
        name = (
            f"block {c.block} {c.projection}, {c.spread}{', clean' * c.clean}, {c.grid} x {c.grid}"
        )
        lines.append(
            f"| {name} | {c.comparison} | {how}, {weight:g} | {value:.2f} | {value - base:+.2f} |"
        )
    return "\n".join(lines) + "\n"


def verdict(bank: Bank, half: Half, choice: Choice, how: str, weight: float) -> str:
    """Measure the choice once on the half that took no part in it, and what the gate says."""
    close = patch_similarities(bank, half, choice)
    base = scored(half, half.similarity)
    ours = scored(half, combined(half.similarity, close, how, weight))
    gain = bootstrap(ours - base)
    won, lost = int((ours > base).sum()), int((ours < base).sum())
    text = (
        f"**Other half:** descriptors {float(base.mean()):.2f}, {choice}, {how}, weight {weight:g}:"
        f" {float(ours.mean()):.2f}, difference {gain.mean:+.2f} [{gain.low:+.2f},"
        f" {gain.high:+.2f}], {won} queries won and {lost} lost.\n"
    )
    if bank.collection.queries_in_gallery:
        place = torch.full((len(bank.descriptors),), -1)
        place[half.queries] = torch.arange(len(half.queries))
        candidates = place[half.order]  # the half searches among itself
        said = choose_weight(bank.descriptors[half.queries], candidates, close)
        text += f"The gate on the same half: {said.note}\n"
    return text
