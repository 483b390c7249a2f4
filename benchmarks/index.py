"""How an index grows: seconds to build, time of a search, bytes on disk.

    python benchmarks/index.py [--counts 1000 10000 100000] [--queries 200] [--work DIR]
    python benchmarks/index.py --counts            # only the comparison with the published loop
    python benchmarks/index.py --page              # only write the page

Descriptors (384 channels, mixtures of clusters) and 7 x 7 whitened patches of 64 bytes are
synthetic, so that no network is measured; they are written as `clearvit index` writes them, 1000
per commit, joined and, for 100,000 and more, given the structure of an approximate search. A search
is timed with 10 hits, with the patches of 100 candidates read and compared by Chamfer, and with the
patches of a region compared with those of all images (above 20,000 images those of the nearest
2,000), by the clock and in CPU time; p50 and p99 over the queries. An index that was built in
--work stays there, so that it can be timed again. A million images take 5 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.retrieval.config import IndexConfig, Matching, SearchConfig
from clearvit.retrieval.image_features import OLDER, FeatureSpec, ImageFeatures
from clearvit.retrieval.index.arrow_rows import Entry
from clearvit.retrieval.index.hits import Query
from clearvit.retrieval.index.store import Rows, Store
from clearvit.retrieval.matching.patch_matching import LocalFeatures
from clearvit.retrieval.regions.region_search import search_region
from clearvit.retrieval.reranking import Nearest, rerank_nearest
from clearvit.retrieval.whitening import Whitening
from clearvit.timing import Spread, speed_ratios, time_interleaved
from data import DATA, data_path
from evidence import read_result, write_result
from render import render
from rerank import Images, converged_loop, photographed, synthetic

DONE = "built.json"  # marks an index that is whole, and says what it took
SIDE, CHANNELS, WIDTH, CLUSTERS, HITS, CANDIDATES = 7, 384, 64, 300, 10, 100
SPEC = FeatureSpec(
    model="synthetic",
    fingerprint="",
    size=(224, 224),
    patches=(16, 16),
    grid=(SIDE, SIDE),
    descriptor="class",
    patch_weights="uniform",
    channels=CHANNELS,
    width=WIDTH,
    token_width=CHANNELS,
    facet="value:7",
    patch_format="int8",
)
MATCHING = Matching("chamfer")
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
BEFORE = replace(  # what the published loop reads: final tokens in half precision
    SPEC, format=OLDER, facet="token", patch_format="float16", width=CHANNELS, token_width=0
)
COMPARED, ROUNDS = 2000, 25  # images, and searches of each kind
REGIONS = 20  # searches for a region, which take longer
ENOUGH = 1_000_000  # images from which exact searches are timed with fewer queries
Percentiles = dict[str, list[float]]  # p50 and p99 in seconds, by clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs="*", default=[1000, 10_000, 100_000])
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--commit", type=int, default=1000, help="images per write")
    parser.add_argument("--approximate-from", type=int, default=IndexConfig().ann_above)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", type=Path, help="where indexes are built, and stay")
    parser.add_argument("--photos", type=data_path, default=f"{DATA}/cars", help="class folders")
    parser.add_argument("--rows-only", action="store_true", help="keep the comparison as it is")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    known = read_result("search_index")
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        for count in [] if options.page else options.counts:
            known[str(count)] = measured(count, work / str(count), options)
            write_result("search_index", known, seeds=[0])
            print(known[str(count)], flush=True)
        if not (options.page or options.rows_only):
            sources = {"synthetic": synthetic(SIDE)}
            if options.photos.is_dir():
                sources["photos"] = photographed(options.photos, SIDE)
            for name, images in sources.items():
                known[f"compared, {name}"] = compared(Path(temporary) / name, images)
            write_result("search_index", known, seeds=[0])
    render("search_index")


def measured(count: int, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Build an index of so many images, unless it is there, and time searches in it."""
    built = built_index(count, folder, options)
    store = Store.open(folder, None)
    approximate = store.has_ann_index
    queries = near(options.queries, seed=-1)
    kinds = {"10 hits, exact": (False, True), "re-ranking 100, exact": (True, True)}
    if approximate:
        kinds |= {"10 hits": (False, False), "re-ranking 100": (True, False)}
    times: dict[str, Percentiles] = {}
    for name, (heavy, exact) in kinds.items():
        some = queries[:REGIONS] if exact and count >= ENOUGH else queries
        run = partial(search, store, heavy=heavy, exact=exact)
        times[name] = timed([partial(run, query) for query in some])
    times["a region"] = timed(
        [partial(find_region, store, q, n) for n, q in enumerate(queries[:REGIONS])]
    )
    asked = queries[: REGIONS * 5] if count >= ENOUGH else queries
    return built | {
        "times": times,
        "queries": options.queries,
        "recall": recall(store, asked, approximate),
        "load": os.getloadavg()[0],
        "threads": options.threads,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "date": time.strftime("%Y-%m-%d"),
    }


def built_index(count: int, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Write an index, unless it is there; seconds and bytes it took."""
    if (folder / DONE).exists():
        found: dict[str, Any] = json.loads((folder / DONE).read_text())
        return found
    shutil.rmtree(folder, ignore_errors=True)
    store = Store.create(folder, SPEC, None)
    seconds = dict.fromkeys(CLOCKS, 0.0)

    def add(action: Callable[[], object]) -> None:
        begun = {name: clock() for name, clock in CLOCKS.items()}
        action()
        for name, clock in CLOCKS.items():
            seconds[name] += clock() - begun[name]

    for entries, described in pieces(count, options.commit):
        add(partial(store.put, entries, described))
    add(lambda: store.compact(keep=timedelta(0), always=True))
    build, seconds = seconds, dict.fromkeys(CLOCKS, 0.0)
    if count >= options.approximate_from:
        add(store.build_ann_index)
    disk = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    found = {"build": build, "structure": seconds, "disk": disk, "commit": options.commit}
    (folder / DONE).write_text(json.dumps(found))
    return found


def pieces(
    count: int, size: int, width: int = WIDTH
) -> Iterator[tuple[list[Entry], ImageFeatures]]:
    """Images of a made-up collection, some at a time."""
    for start in range(0, count, size):
        number = min(size, count - start)
        descriptors = near(number, seed=start)
        generator = torch.Generator().manual_seed(start)
        patches = torch.randn(number, SIDE * SIDE, width, generator=generator)
        patches = F.normalize(patches, dim=-1)
        entries = [
            Entry(f"{i % 100:02d}/{i:08d}.jpg", "", f"{i % 100:02d}", f"{i % 100:02d}", i, i, 9, 9)
            for i in range(start, start + number)
        ]
        weights = torch.full((number, SIDE * SIDE), 1 / SIDE**2)
        yield entries, ImageFeatures(descriptors, patches, weights)


def near(number: int, *, seed: int) -> Tensor:
    """Descriptors around shared centres."""
    centres = torch.randn(CLUSTERS, CHANNELS, generator=torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(seed + 10_000_019)
    chosen = torch.randint(CLUSTERS, (number,), generator=generator)
    noise = torch.randn(number, CHANNELS, generator=generator)
    return F.normalize(centres[chosen] + noise, dim=-1)


def timed(runs: Sequence[Callable[[], object]]) -> Percentiles:
    """Time each run once; the first one only warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in CLOCKS}
    for run in runs:
        begun = {name: clock() for name, clock in CLOCKS.items()}
        run()
        for name, clock in CLOCKS.items():
            seconds[name].append(clock() - begun[name])
    return {name: np.percentile(found[1:], (50, 99)).tolist() for name, found in seconds.items()}


def search(
    store: Store,
    query: Tensor,
    asked: LocalFeatures | None = None,
    *,
    matching: Matching = MATCHING,
    heavy: bool = True,
    exact: bool = True,
) -> None:
    count = CANDIDATES if heavy else HITS
    rows = store.nearest(query, count, where=None, with_features=heavy, exact=exact)
    if heavy and rows.features is not None:
        images = rows.features.local_features(store.spec)
        nearest = Nearest(torch.arange(len(images))[None], rows.similarity[None])
        rerank_nearest(nearest, asked or images[:1], images, matching=matching, weight=0.3)


def search_by_loop(store: Store, query: Tensor, asked: LocalFeatures) -> None:
    """Re-rank as the published codes do: final tokens, Sinkhorn in a loop until it converges."""
    rows = store.nearest(query, CANDIDATES, where=None, with_features=True, exact=True)
    assert rows.features is not None and asked.weights is not None
    patches, weights = rows.features.patches, rows.features.weights
    u = asked.weights.expand(len(patches), -1)
    scores = converged_loop(asked.patches[0] @ patches.transpose(1, 2), u, weights)[1]
    (rows.similarity + scores).sort(descending=True, stable=True)


def compared(work: Path, images: Images) -> dict[str, Any]:
    """How many times as fast as the published loop a re-ranking of 100 is, reading included."""
    patches, stores = images.patches, {}
    whitening = Whitening.fit(patches, channels=WIDTH)
    whitened = F.normalize(whitening(patches), dim=-1)
    for name, spec, kept in (("before", BEFORE, patches), ("now", SPEC, whitened)):
        stores[name] = Store.create(work / name, spec, None)
        for entries, described in pieces(COMPARED, 500, 1):
            chosen = 1 + torch.arange(len(entries)) % (len(kept) - 1)  # the first one asks
            features = replace(described, patches=kept[chosen], weights=images.weights[chosen])
            stores[name].put(entries, features)
        stores[name].compact(keep=timedelta(0), always=True)
    query = near(1, seed=-1)[0]
    plain, short = (LocalFeatures(one[:1], images.weights[:1]) for one in (patches, whitened))
    old, moved = stores["before"], Matching("transport")
    passes = {
        "the published loop on final tokens": partial(search_by_loop, old, query, plain),
        "transport on final tokens": partial(search, old, query, plain, matching=moved),
        "Chamfer on whitened patches": partial(
            search, stores["now"], query, short, matching=MATCHING
        ),
    }
    found: dict[str, Any] = {"load": os.getloadavg()[0], "rounds": ROUNDS, "images": COMPARED}
    for clock in CLOCKS:
        times = time_interleaved(list(passes.values()), rounds=ROUNDS, clock=CLOCKS[clock])
        found[clock] = {
            name: {
                "ms": 1000 * float(np.median(mine)),
                "ratio": asdict(Spread.of(speed_ratios(times[0], mine))),
            }
            for name, mine in zip(passes, times, strict=True)
        }
    return found


def find_region(store: Store, query: Tensor, number: int) -> None:
    """Search for a part whose patches are random: the time does not depend on what they are."""
    generator = torch.Generator().manual_seed(number)
    patches = F.normalize(torch.randn(1, SIDE * SIDE, WIDTH, generator=generator), dim=-1)
    weights = torch.full((1, SIDE * SIDE), 1 / SIDE**2)
    asked = Query("synthetic", ImageFeatures(query[None], patches, weights))
    search_region(store, asked, SearchConfig(k=HITS))


def first_hits(store: Store, query: Tensor, *, exact: bool) -> Rows:
    return store.nearest(query, HITS, where=None, with_features=False, exact=exact)


def recall(store: Store, queries: Tensor, approximate: bool) -> float:
    if not approximate:
        return 1.0
    found = 0
    for query in queries:
        sets = [
            {hit.name for hit in first_hits(store, query, exact=x).entries} for x in (False, True)
        ]
        found += len(sets[0] & sets[1])
    return found / (HITS * len(queries))


if __name__ == "__main__":
    main()
