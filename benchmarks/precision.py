"""What bfloat16 saves on this CPU: the choice of `--precision auto`, timed.

    python benchmarks/precision.py [--rounds 7]

Interleaved rounds on the demo model, 224 px, four images, one thread, CPU seconds: a forward pass
and a step of the cure's training (forward and backward) in float32 and in bfloat16, beside what
`auto` answers here. Writes benchmarks/results/precision.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from functools import partial

import torch

import clearvit as cv
from clearvit.precision import autocast, uses_bf16
from clearvit.timing import Spread, speed_ratios, time_interleaved
from evidence import write_result
from render import render

IMAGES, SIZE = 4, 224


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    backbone = cv.load("demo", size=SIZE)
    pixels = torch.randn(IMAGES, 3, SIZE, SIZE)

    def forward(half: bool) -> None:
        with torch.inference_mode(), autocast(backbone.device, half):
            backbone.forward(pixels)

    def step(half: bool) -> None:
        with autocast(backbone.device, half):
            loss = backbone.forward(pixels).patches.float().square().mean()
        loss.backward()
        backbone.network.zero_grad()

    works: dict[str, Callable[[bool], None]] = {"forward pass": forward, "training step": step}
    rows = {}
    for name, work in works.items():
        passes = [partial(work, half) for half in (False, True)]
        times = time_interleaved(passes, rounds=options.rounds, clock=time.process_time)
        ratios = Spread.of(speed_ratios(*times))
        rows[name] = {"float32, s": Spread.of(times[0]).median, **dataclasses.asdict(ratios)}
        print(name, rows[name], flush=True)
    content = {
        "auto": "bf16" if uses_bf16(backbone.device, "auto") else "float32",
        "images": IMAGES,
        "size": SIZE,
        "rounds": options.rounds,
        "command": "python benchmarks/precision.py",
        "rows": rows,
    }
    write_result("precision", content, models=["demo"])
    render("precision")


if __name__ == "__main__":
    main()
