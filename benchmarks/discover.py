"""Speed and memory of LOST: ours against direct transcriptions, the same boxes.

    python benchmarks/discover.py [--grid 60 80] [--images 100] [--rounds 15] [--threads 1 2]

Two peers. "equations" writes each line of the algorithm down as one operation on whole N x N
matrices: A = F F^T, the signs, the diagonal taken out, the sums. "published" also does what the
published code does beside that: it scores on a copy of A, sets negative and positive entries one
after the other, and adds the transpose without using the sum. All see the same features: smooth
scenes with one object, width 384. Rounds are interleaved; medians of wall clock and of CPU time.
Peak memory is that of a fresh process which holds the features of all images.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.discovery.seed_expansion import lost
from tables import write_tables

WIDTH = 384  # channels of ViT-S
Box = tuple[int, int, int, int]
Method = Callable[[Tensor, tuple[int, int]], tuple[int, Box]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grid", type=int, nargs=2, default=[60, 80])
    parser.add_argument("--images", type=int, default=100, help="of the memory measurement")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--peak", choices=METHODS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    grid = (options.grid[0], options.grid[1])
    if options.peak:
        print(json.dumps(held(METHODS[options.peak], grid, options.images)))
        return
    check_boxes(grid, 6)
    rows = [timed(grid, options.rounds, threads) for threads in options.threads]
    peaks = {name: peak_of(name, options) for name in METHODS}
    text = page(grid, options, rows, peaks)
    write_tables("discover_speed", text)
    print(text)


# --- the methods ------------------------------------------------------------------------------


def equations(features: Tensor, grid: tuple[int, int]) -> tuple[int, Box]:
    """LOST, one operation per equation, on whole matrices."""
    affinity = features @ features.T
    positive = (affinity > 0).float()
    positive.fill_diagonal_(0)
    return expanded(affinity, positive.sum(1), grid)


def published(features: Tensor, grid: tuple[int, int]) -> tuple[int, Box]:
    """LOST with the steps of the published scoring, those without effect included."""
    affinity = features @ features.T
    scored = affinity.clone()
    scored.fill_diagonal_(0)
    scored[scored < 0] = 0
    scored[scored > 0] = 1
    _ = scored + scored.T  # computed there, and not used
    return expanded(affinity, scored.sum(1), grid)


def expanded(affinity: Tensor, degree: Tensor, grid: tuple[int, int]) -> tuple[int, Box]:
    """Grow the seed: the votes of similar patches among the 100 of lowest degree."""
    from scipy.ndimage import label

    order = torch.argsort(degree, stable=True)
    seed, candidates = int(order[0]), order[:100]
    similar = candidates[affinity[seed, candidates] > 0]
    votes = affinity[similar].sum(0)
    parts, _ = label((votes > 0).view(grid).numpy())
    rows, columns = np.nonzero(parts == parts.flat[seed])
    box = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    return seed, (int(box[0]), int(box[1]), int(box[2]), int(box[3]))


def ours(features: Tensor, grid: tuple[int, int]) -> tuple[int, Box]:
    found = lost(features, grid)
    return found.seed, found.box


METHODS: dict[str, Method] = {"ours": ours, "equations": equations, "published": published}


# --- features ---------------------------------------------------------------------------------


def scene(grid: tuple[int, int], seed: int) -> Tensor:
    """Make features like centred keys: smooth noise and one object, (N, C)."""
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.randn(1, WIDTH, 6, 8, generator=rng)
    smooth = F.interpolate(coarse, grid, mode="bicubic")[0]
    fine = torch.randn(WIDTH, *grid, generator=rng)
    height, width = grid[0] // 3, grid[1] // 3
    top = int(torch.randint(grid[0] - height, (1,), generator=rng))
    left = int(torch.randint(grid[1] - width, (1,), generator=rng))
    thing = torch.randn(WIDTH, 1, 1, generator=rng)
    features = 0.5 * smooth + 0.3 * fine
    features[:, top : top + height, left : left + width] += thing
    flat = features.flatten(1).T.contiguous()
    return flat - flat.mean(0)


# --- measuring --------------------------------------------------------------------------------


def check_boxes(grid: tuple[int, int], images: int) -> None:
    """Refuse to time methods that disagree."""
    for seed in range(images):
        features = scene(grid, seed)
        answers = {name: method(features, grid) for name, method in METHODS.items()}
        if len(set(answers.values())) != 1:
            sys.exit(f"scene {seed}: seeds and boxes differ: {answers}")


def timed(grid: tuple[int, int], rounds: int, threads: int) -> dict[str, dict[str, float]]:
    """Medians in milliseconds over interleaved rounds; a new scene in each."""
    torch.set_num_threads(threads)
    wall: dict[str, list[float]] = {name: [] for name in METHODS}
    cpu: dict[str, list[float]] = {name: [] for name in METHODS}
    for number in range(rounds + 1):
        features = scene(grid, 100 + number)
        for name, method in METHODS.items():
            clocks = time.perf_counter(), time.process_time()
            method(features, grid)
            if number:  # the first round warms up
                wall[name].append(1e3 * (time.perf_counter() - clocks[0]))
                cpu[name].append(1e3 * (time.process_time() - clocks[1]))
    middle = statistics.median
    return {
        "threads": {"wall": threads, "cpu": threads},
        **{name: {"wall": middle(wall[name]), "cpu": middle(cpu[name])} for name in METHODS},
    }


def held(method: Method, grid: tuple[int, int], images: int) -> dict[str, float]:
    """Search all images with their features in memory; megabytes before and at the peak."""
    torch.set_num_threads(1)
    features = torch.empty(images, grid[0] * grid[1], WIDTH)
    for seed in range(images):
        features[seed] = scene(grid, seed)
    before = most_memory()
    for one in features:
        method(one, grid)
    return {"before": before, "peak": most_memory()}


def most_memory() -> float:
    """Megabytes that this program held at most; getrusage would count what started it, too."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def peak_of(name: str, options: argparse.Namespace) -> dict[str, float]:
    words = [sys.executable, __file__, "--peak", name, "--images", str(options.images)]
    words += ["--grid", *map(str, options.grid)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def page(
    grid: tuple[int, int],
    options: argparse.Namespace,
    rows: list[dict[str, dict[str, float]]],
    peaks: dict[str, dict[str, float]],
) -> str:
    lines = [
        "# LOST: speed and memory\n",
        f"A grid of {grid[0]} x {grid[1]} patches, {WIDTH} channels; {options.rounds} interleaved"
        " rounds after a warm-up,\nmedians. Seeds and boxes of all three are equal, which the"
        f" script checks first. {time.strftime('%Y-%m-%d')},\n{platform.machine()}, torch"
        f" {torch.__version__}. Reproduce: `python benchmarks/discover.py`\n",
        "- `equations`: each line of the algorithm as one operation on whole N x N matrices.",
        "- `published`: also the copy, the two-step signs and the unused sum of the published"
        " code.\n",
        "| threads | method | wall, ms | CPU, ms | times slower than ours (wall, CPU) |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        for name in METHODS:
            ratio = {kind: row[name][kind] / row["ours"][kind] for kind in ("wall", "cpu")}
            lines.append(
                f"| {row['threads']['wall']} | {name} | {row[name]['wall']:.0f} |"
                f" {row[name]['cpu']:.0f} | {ratio['wall']:.1f}, {ratio['cpu']:.1f} |"
            )
    lines += [
        f"\nPeak memory of a process that holds the features of {options.images} images and"
        " searches them one after the\nother, in MB (`before`: libraries and features alone):\n",
        "| method | before | peak |",
        "|---|---|---|",
        *(f"| {name} | {p['before']:.0f} | {p['peak']:.0f} |" for name, p in peaks.items()),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
