"""What gathering costs beside the forward passes, and a batch of views beside plain extraction.

    python benchmarks/view_speed.py [--size 224] [--rounds 15] [--threads 1]

Interleaved rounds on the demo model: ten views of four images by `cv.denoise` at scale 1 and 2,
against the same forty forward passes alone. The ratio includes shifting, gathering and variance.
Writes benchmarks/results/view-speed-SIZE.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time

import torch

import clearvit as cv
from clearvit.precision import autocast, uses_bf16
from clearvit.timing import Spread, speed_ratios, time_interleaved
from clearvit.views import gather
from clearvit.views.sampling import sample_views
from evidence import write_result

IMAGES, VIEWS, BATCH = 4, 10, 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    backbone = cv.load("demo", size=options.size)
    pixels = torch.randn(IMAGES, 3, options.size, options.size)
    grid = backbone.grid_of((options.size, options.size))
    rule = {"patch": backbone.patch, "sampler": "lattice", "fraction": 0.15, "seed": 0}
    views = sample_views(grid, VIEWS, scale=2, **rule)
    features = torch.randn(IMAGES, VIEWS, *grid, backbone.width)
    passes = torch.randn(IMAGES * VIEWS, 3, options.size, options.size)

    def plain() -> None:  # in the number format that `cv.denoise` takes here
        half = uses_bf16(backbone.device, "auto")
        with torch.no_grad(), autocast(backbone.device, half):
            for some in passes.split(BATCH):
                backbone.forward(some)

    def denoise(scale: int) -> None:
        cv.denoise(backbone, pixels, views=VIEWS, scale=scale, batch=BATCH)

    jobs = {
        "passes": plain,
        "denoise, scale 1": lambda: denoise(1),
        "denoise, scale 2": lambda: denoise(2),
        "gather, scale 1": lambda: gather(features, views, patch=backbone.patch, scale=1),
        "gather, scale 2": lambda: gather(features, views, patch=backbone.patch, scale=2),
    }
    # CPU seconds of one thread: other work on the machine does not count.
    clock = time.process_time if options.threads == 1 else time.perf_counter
    times = time_interleaved(list(jobs.values()), rounds=options.rounds, clock=clock)
    ratios = {
        name: dataclasses.asdict(Spread.of(speed_ratios(own, times[0])))
        for name, own in zip(jobs, times, strict=True)
    }
    print(ratios)
    content = {
        "size": options.size,
        "rounds": options.rounds,
        "threads": options.threads,
        "date": time.strftime("%Y-%m-%d"),
        "load": os.getloadavg()[0],
        "command": f"python benchmarks/view_speed.py --size {options.size}",
        "cost relative to the passes alone": ratios,
    }
    write_result(f"view-speed-{options.size}", content, models=["demo"])


if __name__ == "__main__":
    main()
