"""Which vectors should an index keep? Whitening, facets and what is chosen without labels.

    python benchmarks/facets.py [--models demo ...] [--sets cars flowers corridor imagenet100]
    python benchmarks/facets.py --held-out --data FOLDER --sets essex pets clothing
    python benchmarks/facets.py --page          # only write the pages from the results

Every image of a set is in the gallery; whitening, facet, patch weights and weight are fitted on the
gallery, which needs no labels, by the code of `clearvit index`. The row that chooses by labels does
so on queries of the even classes (even queries of places). All rows are measured on the odd ones.

The constants of the automatic choice were set while looking at cars, flowers, corridor and
imagenet100. Sets of --held-out were first looked at when the rule was final: voc (photos by the
class of their largest mask) and the folders that held_out_sets.py makes of public repositories.

Features are extracted once into --work, and a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

import clearvit as cv
from clearvit.datasets.retrieval_dataset import RetrievalDataset
from clearvit.datasets.retrieval_layouts import read_retrieval
from clearvit.files import written_whole
from clearvit.precision import autocast
from clearvit.progress import Meter
from clearvit.retrieval.config import IndexConfig, Matching
from clearvit.retrieval.facets.choice import DESCRIPTORS, Choice, choose
from clearvit.retrieval.facets.crops import CroppedSample, extract_sample
from clearvit.retrieval.facets.facet import FINAL, Facet, short_list
from clearvit.retrieval.facets.patch_codes import dequantize, quantize
from clearvit.retrieval.facets.planning import QUERIES, SAMPLE
from clearvit.retrieval.gate import gate_reranking
from clearvit.retrieval.image_features import RawFeatures, make_spec
from clearvit.retrieval.matching.patch_matching import LocalFeatures
from clearvit.retrieval.ranking_metrics import per_query_metrics
from clearvit.retrieval.reranking import rerank
from clearvit.retrieval.whitening import Whitening
from clearvit.stats import bootstrap
from data import DATA, data_path, find_model
from evidence import read_result, write_result
from render import render

MODELS = (
    "demo",
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    "deit_tiny_patch16_224",
)
SETS = ("cars", "flowers", "corridor", "imagenet100")
TOP, CHANNELS = 100, 64
METRICS = ("P@1", "MAP@R", "R@5")
CHAMFER = Matching("chamfer")
FACET_TITLES = ("values of the last block", "values of an inner block")
CHOSEN_BY_LABELS = "best of all on the even half, by labels"


@dataclass(frozen=True)
class Collection:
    """Features of a labelled set, the gallery first, and the queries that count."""

    data: RetrievalDataset
    sample: CroppedSample  # of the gallery, as the automatic choice sees it
    raw: RawFeatures  # of all images
    queries: Tensor  # (Q,): numbers of queries

    @property
    def gallery(self) -> int:
        """How many images can be found."""
        return len(self.data.gallery)

    @property
    def rows(self) -> Tensor:
        """Images of the queries, (Q,)."""
        return torch.tensor([self.data.query_index(int(q)) for q in self.queries])

    @property
    def facets(self) -> list[Facet]:
        """What was extracted: values of the last and of an inner block, final tokens."""
        return list(self.raw.patches)

    def cosines(self, whitening: Whitening | None) -> Tensor:
        """Similarities (Q, G), -inf for the query itself."""
        units = self.raw.descriptors
        if whitening is not None:
            units = F.normalize(whitening(units), dim=-1)
        similarity = units[self.rows] @ units[: self.gallery].T
        if self.data.queries_in_gallery:
            similarity[torch.arange(len(self.rows)), self.rows] = -torch.inf
        return similarity

    def local_features(
        self, facet: Facet, whitening: Whitening | None, *, uniform: bool = False
    ) -> LocalFeatures:
        """Patches of all images as an index keeps them."""
        patches = self.raw.patches[facet].float()
        weights = self.raw.weights
        weights = torch.full_like(weights, 1 / weights.shape[1]) if uniform else weights
        if whitening is None:
            return LocalFeatures(F.normalize(patches, dim=-1), weights)
        whitened = F.normalize(whitening(patches), dim=-1)
        return LocalFeatures(dequantize(quantize(whitened)), weights)

    def reranked(self, similarity: Tensor, images: LocalFeatures, weight: Any) -> Tensor:
        """Re-rank the nearest by Chamfer."""
        gallery = images[torch.arange(self.gallery)]
        return rerank(
            similarity, images[self.rows], gallery, matching=CHAMFER, weight=weight, top=TOP
        ).order

    def by_choice(self, choice: Choice) -> Tensor:
        """Rank as an index does that made this choice."""
        similarity = self.cosines(choice.descriptor)
        if not choice.weight:
            return similarity.sort(dim=1, descending=True, stable=True).indices
        images = self.local_features(choice.facet, choice.patches, uniform=choice.uniform)
        return self.reranked(similarity, images, choice.weight)

    @cached_property
    def choice(self) -> Choice:
        """What `clearvit index` would choose."""
        facets = dict.fromkeys([f for f in self.facets if f != FINAL], CHANNELS)
        return choose(self.sample, whiten="auto", facets=facets, weigh=True, uniform=True)


def by_descriptors(one: Collection, whitening: Whitening | None = None) -> Tensor:
    return one.cosines(whitening).sort(dim=1, descending=True, stable=True).indices


def whitened(one: Collection) -> dict[str, Tensor]:
    """Rank by whitened descriptors."""
    units = one.raw.descriptors[: one.gallery]
    return {
        f"whitened to {channels}, power {power:g}": by_descriptors(
            one, Whitening.fit(units, channels=channels, power=power)
        )
        for channels, power in DESCRIPTORS
        if channels < units.shape[1]
    }


def by_facets(one: Collection) -> dict[str, Tensor]:
    """Re-rank by each facet and weighting.

    The spread of the patch similarities, between 40 images, is `ratio` times that of the cosines.
    """
    similarity, found = one.cosines(None), {}
    for facet, title in zip(one.facets, FACET_TITLES, strict=False):
        fitted = Whitening.fit(one.raw.patches[facet][: one.gallery].float(), channels=CHANNELS)
        for uniform in (False, True):
            images = one.local_features(facet, fitted, uniform=uniform)
            order = torch.randperm(one.gallery, generator=torch.Generator().manual_seed(0))
            some = images[order[:40]]
            close = rerank(torch.zeros(40, 40), some, some, matching=CHAMFER, top=40)
            near = similarity[similarity.isfinite()].std()
            apart = close.patch_similarity[close.patch_similarity < 0.999].std()
            gallery = images[torch.arange(one.gallery)]
            reranked = rerank(similarity, images[one.rows], gallery, matching=CHAMFER, top=TOP)
            for ratio in (0.5, 8.0):
                name = f"{title}{', patches alike' if uniform else ''}, ratio {ratio:g}"
                found[name] = reranked.reweight(float(ratio * near / apart)).order
    return found


def gated(one: Collection) -> Tensor:
    """What an index did before: final tokens, and the gate."""
    images = one.local_features(FINAL, None)
    gallery = images[torch.arange(one.gallery)]
    decided = gate_reranking(one.raw.descriptors[: one.gallery], gallery, CHAMFER)
    return one.reranked(one.cosines(None), images, decided)


def by_fixed_settings(one: Collection) -> dict[str, Tensor]:
    """Rank by everything that is not chosen without labels."""
    plain = {"descriptors": by_descriptors(one), "gate on final tokens": gated(one)}
    return plain | whitened(one) | by_facets(one)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--held-out", action="store_true", help="write the table of held-out sets")
    parser.add_argument("--data", type=data_path, default=DATA)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--work", type=Path, default=Path("facets-work"))
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = "facets_held_out" if options.held_out else "facets"
    if not options.page:
        for model in options.models:
            backbone = cv.load(find_model(model), size=options.size).in_precision("auto")
            for name in options.sets:
                found = measured(backbone, model, name, options)
                known = read_result(result) | {f"{model} {name}": found}
                write_result(result, known, data=[name], models=[model], seeds=[0])
    render(result)


def collect(
    backbone: cv.Backbone, model: str, name: str, options: argparse.Namespace
) -> Collection:
    """Read a set and its features; all queries that have an answer."""
    folder = options.data / name
    data = dominant_classes(folder) if name == "voc" else read_retrieval(folder)
    sample, raw = extracted(backbone, data, f"{model}-{name}-{options.size}", options)
    numbers = torch.arange(data.num_queries)
    return Collection(data, sample, raw, numbers[data.count_positives(numbers) > 0])


def split(one: Collection) -> Tensor:
    """Mark the odd half of the queries, (Q,) bool: of the classes, where there are any."""
    labels = torch.tensor(one.data.labels)[one.queries] if one.data.queries_in_gallery else None
    return (one.queries if labels is None else labels) % 2 == 1


def measured(
    backbone: cv.Backbone, model: str, name: str, options: argparse.Namespace
) -> dict[str, Any]:
    whole = collect(backbone, model, name, options)
    data, sample = whole.data, whole.sample
    chosen = split(whole)
    even, odd = (replace(whole, queries=whole.queries[chosen == half]) for half in (False, True))
    start = time.perf_counter()
    scores = [
        {title: scored(one, order) for title, order in by_fixed_settings(one).items()}
        for one in (even, odd)
    ]
    best = max(scores[0], key=lambda title: float(scores[0][title][:, 1].mean()))
    rows = scores[1] | {
        "auto": scored(odd, odd.by_choice(odd.choice)),
        CHOSEN_BY_LABELS: scores[1][best],
    }
    for title, found in rows.items():
        shown = zip(METRICS, found.mean(0).tolist(), strict=True)
        print(f"{model} {name} {title}: {', '.join(f'{m} {v:.1f}' for m, v in shown)}", flush=True)
    print(f"{time.perf_counter() - start:.0f} s", flush=True)
    groups = np.asarray(data.labels)[odd.queries] if data.queries_in_gallery else None
    return {
        "images": len(data.images),
        "queries": len(odd.queries),
        "crops": len(sample.crops[0].descriptors),
        "note": odd.choice.note,
        "best": best,
        "date": time.strftime("%Y-%m-%d"),
        "rows": {
            title: summarized(found, rows["descriptors"], groups) for title, found in rows.items()
        },
        "auto less best": summarized(rows["auto"], rows[CHOSEN_BY_LABELS], groups),
    }


def scored(one: Collection, order: Tensor) -> Tensor:
    """P@1, MAP@R and Recall@5 of each query in percent, (Q, 3)."""
    if one.data.queries_in_gallery:
        order = order[:, : one.gallery - 1]  # the query itself ends the list
    relevant = one.data.relevant(one.queries, order)
    found = per_query_metrics(relevant, one.data.count_positives(one.queries))
    recall = relevant[:, :5].any(1).double()
    return 100 * torch.stack([found[:, 0], found[:, 2], recall], 1)


def summarized(ours: Tensor, base: Tensor, groups: Any) -> dict[str, Any]:
    return {
        metric: {
            "value": asdict(bootstrap(ours[:, i], groups=groups)),
            "difference": asdict(bootstrap(ours[:, i] - base[:, i], groups=groups)),
        }
        for i, metric in enumerate(METRICS)
    }


def dominant_classes(folder: Path) -> RetrievalDataset:
    """Photos of VOC by the class of their largest mask; classes of one photo are left out."""
    found: list[tuple[Path, int]] = []
    for mask in sorted((folder / "SegmentationClass").glob("*.png")):
        counts = np.bincount(np.asarray(Image.open(mask)).ravel(), minlength=256)
        counts[[0, 255]] = 0
        image = folder / "JPEGImages" / f"{mask.stem}.jpg"
        if counts.max() and image.is_file():
            found.append((image, int(counts.argmax())))
    sizes = np.bincount([label for _, label in found])
    kept = [(image, label) for image, label in found if sizes[label] > 1]
    images, labels = zip(*kept, strict=True)
    return RetrievalDataset("voc", folder, tuple(images), tuple(labels))


def extracted(
    backbone: cv.Backbone, data: RetrievalDataset, key: str, options: argparse.Namespace
) -> tuple[CroppedSample, RawFeatures]:
    """Raw features of all images and of crops of some, from --work where they are."""
    facets = [*short_list(backbone), FINAL]
    file = options.work / f"{key}.safetensors"
    cropped, seen = min(QUERIES, len(data.gallery)), min(SAMPLE, len(data.gallery))
    order = torch.randperm(len(data.gallery), generator=torch.Generator().manual_seed(0))
    if not file.exists():
        start = time.perf_counter()
        rest = [i for i in range(len(data.images)) if i not in set(order.tolist())]
        listed = [data.sources[i] for i in [*order.tolist(), *rest]]
        spec = make_spec(backbone, IndexConfig(size=options.size))
        with autocast(backbone.device, backbone.bf16):
            found = extract_sample(
                backbone, listed, spec, facets, queries=cropped, meter=Meter(None, len(listed))
            )
        assert found is not None and len(found.images.descriptors) == len(listed)
        tensors = {}
        for i, one in enumerate((found.images, *found.crops)):
            tensors |= {f"{i}.descriptors": one.descriptors, f"{i}.weights": one.weights}
            tensors |= {f"{i}.{f}": one.patches[f].half() for f in facets}
        with written_whole(file) as temporary:
            save_file({k: v.contiguous() for k, v in tensors.items()}, temporary)
        print(f"{file.name}: {time.perf_counter() - start:.0f} s", flush=True)
    tensors = load_file(file)
    whole, *crops = (
        RawFeatures(
            tensors[f"{i}.descriptors"].float(),
            {f: tensors[f"{i}.{f}"].float() for f in facets},
            tensors[f"{i}.weights"].float(),
        )
        for i in range(3)
    )
    inverse = torch.cat([order, torch.arange(len(order), len(data.images))]).argsort()
    return CroppedSample(_some(whole, slice(seen)), tuple(crops)), _some(whole, inverse)


def _some(raw: RawFeatures, index: Any) -> RawFeatures:
    patches = {facet: values[index] for facet, values in raw.patches.items()}
    return RawFeatures(raw.descriptors[index], patches, raw.weights[index])


if __name__ == "__main__":
    main()
