"""How an index grows: seconds to build, time of a search, bytes on disk.

    python benchmarks/index.py [--counts 1000 10000 100000] [--queries 200] [--work DIR]

Descriptors (384 channels, mixtures of clusters) and 7 x 7 whitened patches of 64 bytes are
synthetic, so that no network is measured; they are written as `clearvit index` writes them, 64 or
more per commit, joined and, for 100,000 and more, given the structure of an approximate search. A
search is timed with 10 hits, with the patches of 100 candidates read and compared by Chamfer, and
with the patches of a region compared with those of all images (above 20,000 images those of the
nearest 2,000); p50 and p99 over the queries. The largest index takes 0.5 GB in --work, which is
emptied after each count.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.retrieval.config import IndexConfig, Matching, SearchConfig
from clearvit.retrieval.image_features import OLDER, FeatureSpec, ImageFeatures
from clearvit.retrieval.index.arrow_rows import Entry
from clearvit.retrieval.index.hits import Query
from clearvit.retrieval.index.store import Rows, Store
from clearvit.retrieval.regions.region_search import search_region
from clearvit.retrieval.reranking import Nearest, rerank_nearest
from clearvit.timing import Spread, speed_ratios, time_interleaved
from tables import write_tables

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
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
BEFORE = replace(  # what an index kept until now: final tokens in half precision, by transport
    SPEC, format=OLDER, facet="token", patch_format="float16", width=CHANNELS, token_width=0
)
COMPARED, ROUNDS = 2000, 25  # images, and searches of each kind
REGIONS = 20  # searches for a region, which take longer


@dataclass(frozen=True)
class Measured:
    """One size of index; times in seconds."""

    images: int
    build: float  # writing and joining
    structure: float  # of an approximate search; 0 if there is none
    disk: int  # bytes
    times: dict[str, tuple[float, float]]  # p50 and p99
    recall: float  # of the exact hits by the approximate search; 1 if there is none


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--commit", type=int, default=1000, help="images per write")
    parser.add_argument("--approximate-from", type=int, default=IndexConfig().ann_above)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: of the process, for busy machines"
    )
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path, help="write the page there, and no result")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    for count in options.counts:
        if options.work is not None:
            options.work.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=options.work))
        try:
            rows.append(measured(count, work, options))
            print(rows[-1], flush=True)
        finally:
            shutil.rmtree(work)
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        ratio = compared(Path(work), options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    text = page(rows, ratio, options)
    if options.out:
        options.out.write_text(text)
    else:
        write_tables("search_index", text, seeds=[0])
    print(options.out.read_text())


def measured(count: int, work: Path, options: argparse.Namespace) -> Measured:
    store = Store.create(work / "index", SPEC, None)
    seconds = 0.0
    for entries, described in pieces(count, options.commit):
        start = time.perf_counter()
        store.put(entries, described)
        seconds += time.perf_counter() - start
    start = time.perf_counter()
    store.compact(keep=timedelta(0), always=True)
    seconds += time.perf_counter() - start
    structure = 0.0
    if count >= options.approximate_from:
        start = time.perf_counter()
        store.build_ann_index()
        structure = time.perf_counter() - start
    disk = sum(file.stat().st_size for file in work.rglob("*") if file.is_file())
    queries = near(options.queries, seed=-1)
    times = {}
    kinds = {"10 hits, exact": (False, True), "re-ranking 100, exact": (True, True)}
    if structure:
        kinds |= {"10 hits": (False, False), "re-ranking 100": (True, False)}
    for name, (heavy, exact) in kinds.items():
        times[name] = timed(store, queries, options, heavy=heavy, exact=exact)
    times["a region"] = timed_regions(store, queries[:REGIONS], options)
    return Measured(count, seconds, structure, disk, times, recall(store, queries, structure > 0))


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


def timed(
    store: Store, queries: Tensor, options: argparse.Namespace, *, heavy: bool, exact: bool
) -> tuple[float, float]:
    seconds, clock = [], CLOCKS[options.clock]
    for query in queries:
        start = clock()
        search(store, query, MATCHING, heavy=heavy, exact=exact)
        seconds.append(clock() - start)
    p50, p99 = np.percentile(seconds[1:], (50, 99))  # the first one warms up
    return float(p50), float(p99)


def search(
    store: Store, query: Tensor, matching: Matching, *, heavy: bool = True, exact: bool = True
) -> None:
    count = CANDIDATES if heavy else HITS
    rows = store.nearest(query, count, where=None, with_features=heavy, exact=exact)
    if heavy and rows.features is not None:
        images = rows.features.local_features(store.spec)
        nearest = Nearest(torch.arange(len(images))[None], rows.similarity[None])
        rerank_nearest(nearest, images[:1], images, matching=matching, weight=0.3)


def compared(work: Path, options: argparse.Namespace) -> Spread:
    """How many times as fast as before a re-ranking of 100 is, reading included."""
    passes, query = [], near(1, seed=-1)[0]
    for name, spec, matching in (("old", BEFORE, Matching()), ("new", SPEC, MATCHING)):
        store = Store.create(work / name, spec, None)
        for entries, described in pieces(COMPARED, 500, spec.width):
            store.put(entries, described)
        store.compact(keep=timedelta(0), always=True)
        passes.append(partial(search, store, query, matching))
    old, new = time_interleaved(passes, rounds=ROUNDS, clock=CLOCKS[options.clock])
    return Spread.of(speed_ratios(old, new))


def timed_regions(
    store: Store, queries: Tensor, options: argparse.Namespace
) -> tuple[float, float]:
    """Search for parts whose patches are random: the time does not depend on what they are."""
    seconds, clock = [], CLOCKS[options.clock]
    for number, query in enumerate(queries):
        generator = torch.Generator().manual_seed(number)
        patches = F.normalize(torch.randn(1, SIDE * SIDE, WIDTH, generator=generator), dim=-1)
        weights = torch.full((1, SIDE * SIDE), 1 / SIDE**2)
        asked = Query("synthetic", ImageFeatures(query[None], patches, weights))
        start = clock()
        search_region(store, asked, SearchConfig(k=HITS))
        seconds.append(clock() - start)
    p50, p99 = np.percentile(seconds[1:], (50, 99))
    return float(p50), float(p99)


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


def command(options: argparse.Namespace) -> str:
    """The command that makes the page again."""
    counts = " ".join(map(str, options.counts))
    return (
        f"python benchmarks/index.py --counts {counts} --queries {options.queries}"
        f" --approximate-from {options.approximate_from} --clock {options.clock}"
    )


def page(rows: list[Measured], ratio: Spread, options: argparse.Namespace) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row.times))
    lines = []
    for row in rows:
        cells = [
            f"{1000 * row.times[n][0]:.1f} / {1000 * row.times[n][1]:.1f}"
            if n in row.times
            else "\N{EN DASH}"
            for n in names
        ]
        structure = f"{row.structure:.1f}" if row.structure else "\N{EN DASH}"
        size = f"{row.disk / 1e6:.0f} MB ({row.disk / row.images / 1e3:.1f} kB each)"
        lines.append(
            f"| {row.images:,} | {row.build:.1f} | {structure} | {size} | {' | '.join(cells)} |"
            f" {row.recall:.3f} |"
        )
    head = " | ".join(f"{name}, ms" for name in names)
    return f"""# How an index grows

{time.strftime("%Y-%m-%d")}, {platform.machine()}, {os.cpu_count()} cores, {options.threads}
threads, local disk, load of the machine {os.getloadavg()[0]:.1f}. Synthetic descriptors of
{CHANNELS} channels in half precision and {SIDE} x {SIDE} patches of {WIDTH} bytes.
Reproduce: `{command(options)}`. Build: seconds of writing and joining, without the network,
{options.commit} images per write. Structure: seconds to prepare an approximate search. Times are
{"of the clock" if options.clock == "wall" else "CPU time of all threads, on a busy machine"},
p50 / p99 of {options.queries - 1} searches; "re-ranking 100" reads the patches of 100 candidates
and compares them by Chamfer; "a region" compares 49 patches with those of all images, above 20,000
with those of the nearest 2,000. Recall: share of the exact 10 hits that an approximate search
finds.

| images | build, s | structure, s | disk | {head} | recall |
|---|---|---|---|{"---|" * len(names)}---|
{chr(10).join(lines)}

Re-ranking of 100, reading included, among {COMPARED:,} images: {ratio.median:.1f} times as fast as
with the final tokens in half precision and transport that an index kept before (interleaved,
{ROUNDS} rounds, {ratio.low:.1f} to {ratio.high:.1f}).
"""


if __name__ == "__main__":
    main()
