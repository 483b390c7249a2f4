"""Transport at equal, converged accuracy: ours, POT's batched solver, the reference's loop.

    python benchmarks/rerank.py [--data CLASSES] [--rounds 9] [--threads 1 2] [--patches 49 196]

Every solver gets the same 100 pairs (one query, 100 candidates) and runs until the worst pair has a
marginal error of 1e-6: ours, by default, and a transcription of the published loop in the sum of
absolute row errors, POT (`ot.solve_batch`, in the log domain, its default, and not) in its own
measure, the root of the sum of squares, which is looser. Runs are interleaved; numbers are medians.
"Query" is a whole re-ranking: candidates read from an index on disk, compared, sorted. Features are
synthetic, and real ones where --data and the demo weights are there. Each number of threads runs in
a process of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data import DATA, data_path
from tables import write_tables

EPSILON, GOAL, CANDIDATES, LIMIT = 0.05, 1e-6, 100, 20_000
OURS = "clearvit"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=data_path, default=f"{DATA}/cars", help="class folders")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--patches", type=int, nargs="+", default=[49, 196])
    parser.add_argument("--synthetic", action="store_true", help="leave the real photos out")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(worker(options)))
        return
    rows: list[dict[str, Any]] = []
    for threads in options.threads:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        line = [sys.executable, __file__, *sys.argv[1:], "--worker", str(threads)]
        done = subprocess.run(line, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        rows += json.loads(done.stdout.splitlines()[-1])
    write_tables("rerank", page(rows, options), data=["cars"], models=["demo"])


def worker(options: argparse.Namespace) -> list[dict[str, Any]]:
    import torch

    torch.set_num_threads(options.worker)
    rows = []
    for count in options.patches:
        side = math.isqrt(count)
        sources = {"synthetic": synthetic(side)}
        if not options.synthetic and options.data.is_dir():
            sources[options.data.name] = photographed(options.data, side)
        for name, images in sources.items():
            about = {"features": name, "patches": count, "threads": options.worker}
            rows.append(about | {"kind": "pairs", **timed_pairs(images, options.rounds)})
            rows.append(about | {"kind": "query", **timed_queries(images, side, options.rounds)})
            print(rows[-2:], file=sys.stderr, flush=True)
    return rows


@dataclass(frozen=True)
class Images:
    """The first image asks, the others answer."""

    descriptors: Any  # (1 + K, D)
    patches: Any  # (1 + K, R, C)
    weights: Any  # (1 + K, R)


def synthetic(side: int, channels: int = 384) -> Images:
    """Smooth regions of a few shared parts, with cosines like those of a DINOv2 on one subject."""
    import torch
    import torch.nn.functional as F

    generator = torch.Generator().manual_seed(0)
    count = 1 + CANDIDATES

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator)

    common, parts = normal(channels), normal(12, channels)
    field = F.interpolate(normal(count, 12, 4, 4), (side, side), mode="bicubic")
    share = (2 * field).softmax(1).flatten(2).transpose(1, 2)  # (N, R, parts)
    noise = normal(count, side * side, channels)
    patches = F.normalize(0.6 * common + 1.2 * share @ parts + 0.7 * noise, dim=-1)
    weights = F.interpolate(normal(count, 1, 4, 4), (side, side), mode="bicubic").flatten(1)
    descriptors = F.normalize(patches.mean(1), dim=-1)
    return Images(descriptors, patches, weights.softmax(1))


def photographed(folder: Path, side: int) -> Images:
    """Photos as an index describes them, at 224 px."""
    import torch

    import clearvit as cv
    from clearvit.images import find_images
    from clearvit.retrieval.config import IndexConfig
    from clearvit.retrieval.image_features import extract_features, make_spec

    backbone = cv.load("demo", size=224)
    everything = find_images(folder)
    chosen = everything[:: max(1, len(everything) // (1 + CANDIDATES))][: 1 + CANDIDATES]
    spec = make_spec(backbone, IndexConfig(grid=side))
    paths = [str(image.source) for image in chosen]
    parts = [extract_features(backbone, pixels, spec) for pixels in backbone.pixels(paths)]
    return Images(*(torch.cat([getattr(p, n) for p in parts]) for n in Images.__annotations__))


Solver = Callable[[Any, Any, Any], tuple[Any, Any]]
"""Similarity (K, R, Q), u (K, R), v (K, Q) -> plans and scores."""


def solvers() -> dict[str, Solver]:
    from clearvit.retrieval.matching.optimal_transport import transport

    def ours(similarity: Any, u: Any, v: Any) -> tuple[Any, Any]:
        found = transport(similarity, u, v, EPSILON)
        return found.plan, found.score

    known: dict[str, Solver] = {OURS: ours, "published loop, converged": converged_loop}
    try:
        import ot
    except ImportError:
        print("POT is not installed: pip install pot", file=sys.stderr)
        return known

    def pot(method: str) -> Solver:
        def solve(similarity: Any, u: Any, v: Any) -> tuple[Any, Any]:
            found = ot.solve_batch(
                1 - similarity, EPSILON, u, v, LIMIT, GOAL, method=method, grad="detach"
            )
            return found.plan, (found.plan * similarity).sum((1, 2))

        return solve

    methods = {"POT, log_sinkhorn": "log_sinkhorn", "POT, sinkhorn": "sinkhorn"}
    return known | {name: pot(method) for name, method in methods.items()}


def converged_loop(similarity: Any, u: Any, v: Any) -> tuple[Any, Any]:
    """The loop of the published codes, with a stop rule that means something."""
    import torch

    kernel = ((similarity - 1) / EPSILON).exp()
    rows, columns = torch.ones_like(u), torch.ones_like(v)
    for _ in range(LIMIT):
        mixed = (kernel @ columns[..., None]).squeeze(2)
        if float((rows * mixed - u).abs().sum(1).max()) < GOAL:
            break
        rows = u / mixed
        columns = v / (rows[:, None] @ kernel).squeeze(1)
    plan = rows[..., None] * kernel * columns[:, None]
    return plan, (plan * similarity).sum((1, 2))


def interleaved(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each, taken in turns that begin with another one every time."""
    names = list(runs)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for run in runs.values():
        run()
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.perf_counter()
            runs[name]()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def timed_pairs(images: Images, rounds: int) -> dict[str, Any]:
    """Pairs per second, and how exact: score against double precision, error of the marginals."""
    from clearvit.retrieval.matching.optimal_transport import transport

    similarity = images.patches[:1] @ images.patches[1:].transpose(1, 2)
    u = images.weights[:1].expand(CANDIDATES, -1).contiguous()
    v = images.weights[1:].contiguous()
    exact = transport(similarity.double(), u.double(), v.double(), EPSILON).score
    exactness, runs = {}, {}
    for name, solve in solvers().items():
        plan, score = solve(similarity, u, v)
        errors = [(plan.sum(2) - u).abs().sum(1).max(), (plan.sum(1) - v).abs().sum(1).max()]
        difference = float((score.double() - exact).abs().max())
        exactness[name] = {"score": difference, "marginals": float(max(errors))}
        runs[name] = lambda solve=solve: solve(similarity, u, v)
    seconds = interleaved(runs, rounds)
    return {"seconds": seconds, "exact": exactness, "cosine": float(similarity.mean())}


def timed_queries(images: Images, side: int, rounds: int) -> dict[str, Any]:
    """Seconds to read 100 candidates of an index, compare and sort them."""
    import torch

    from clearvit.retrieval.image_features import FeatureSpec, ImageFeatures
    from clearvit.retrieval.index.arrow_rows import Entry
    from clearvit.retrieval.index.store import Store

    cells, width = images.patches.shape[1:]
    channels = images.descriptors.shape[1]
    spec = FeatureSpec(
        "none", "", (224, 224), (side, side), (side, side), "class", "uniform", channels, width
    )
    assert spec.cells == cells
    entries = [Entry(f"{i:03d}", "", "", "", 0, 0, 0, 0) for i in range(CANDIDATES)]
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "index", spec, None)
        kept = (images.descriptors[1:], images.patches[1:], images.weights[1:])
        store.put(entries, ImageFeatures(*kept))

        def query(solve: Solver) -> object:
            rows = store.nearest(
                images.descriptors[0], CANDIDATES, where=None, with_features=True, exact=True
            )
            assert rows.features is not None
            similarity = images.patches[0] @ rows.features.patches.transpose(1, 2)
            u = images.weights[:1].expand(CANDIDATES, -1)
            score = rows.similarity + solve(similarity, u, rows.features.weights)[1]
            return torch.sort(score, descending=True, stable=True).indices

        runs = {name: lambda s=solve: query(s) for name, solve in solvers().items()}
        return {"seconds": interleaved(runs, rounds)}


def page(rows: list[dict[str, Any]], options: argparse.Namespace) -> str:
    import torch

    pairs, queries = ([r for r in rows if r["kind"] == kind] for kind in ("pairs", "query"))
    peers = [name for name in pairs[0]["seconds"] if name != OURS]
    lines = []
    for row in pairs:
        rates = {name: CANDIDATES / s for name, s in row["seconds"].items()}
        cells = [f"{rates[name]:.0f} ({rates[OURS] / rates[name]:.1f}x)" for name in peers]
        lines.append(f"| {_about(row)} | {rates[OURS]:.0f} | {' | '.join(cells)} |")
    whole = []
    for row in queries:
        ms = {name: 1000 * s for name, s in row["seconds"].items()}
        cells = [f"{ms[name]:.0f} ({ms[name] / ms[OURS]:.1f}x)" for name in peers]
        whole.append(f"| {_about(row)} | {ms[OURS]:.0f} | {' | '.join(cells)} |")
    exact = [
        f"| {_about(row)} | {name} | {found['score']:.1e} | {found['marginals']:.1e} |"
        for row in pairs
        for name, found in row["exact"].items()
    ]
    head = "| features | patches | threads | clearvit | " + " | ".join(peers) + " |"
    rule = "|---" * (4 + len(peers)) + "|"
    return f"""# Transport: speed at equal accuracy

{time.strftime("%Y-%m-%d")}, {platform.machine()}, {os.cpu_count()} cores, torch
{torch.__version__}. Reproduce:
`python benchmarks/rerank.py --rounds {options.rounds}`, as many interleaved rounds,
medians. All solvers run until the worst of 100 pairs has converged; in brackets, how much faster
clearvit is.

## Pairs per second

{head}
{rule}
{chr(10).join(lines)}

## Re-ranking 100 candidates, milliseconds

Read from an index on disk, compared, sorted.

{head}
{rule}
{chr(10).join(whole)}

## How exact

Largest error of the score against double precision, and of the sums of rows and columns.

| features | patches | threads | solver | score | marginals |
|---|---|---|---|---|---|
{chr(10).join(exact)}
"""


def _about(row: dict[str, Any]) -> str:
    return f"{row['features']} | {row['patches']} | {row['threads']}"


if __name__ == "__main__":
    main()
