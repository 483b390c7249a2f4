"""Pruned, exported and quantized models against dense timm: speed in one interleaved run.

    python benchmarks/prune.py
    python benchmarks/prune.py --models deit --threads 1 --batches 1 --repeats 3    # a part of it

Every thread count has a process of its own, in which all rows of a model and batch size take turns;
the ratio is the median over rounds, round by round. Beside it stands the ratio of MACs. Speed does
not depend on the values of weights: DeiT-S has random ones, DINOv2-S is the demo model. Merging is
our own token merging with the same number of patches in every block as the pruned model.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import clearvit as cv
from clearvit.backbones.vit import VitBackbone
from clearvit.benchmarking.machine import sgemm, this_machine
from clearvit.pruning.cost import macs
from clearvit.pruning.prune import prune
from clearvit.timing import Spread, speed_ratios, time_interleaved
from data import RESULTS

RESULT = RESULTS / "prune.md"
SIZES = {"deit": 224, "dinov2": 518}
TITLES = {"deit": "DeiT-S/16, 224 px", "dinov2": "DINOv2 ViT-S/14, 518 px"}
KEEP = 0.7
FIRST = "dense timm"
MERGED = "merged to the same count (ours)"
ROWS = (
    FIRST,
    "dense clearvit",
    "pruned",
    "pruned, no restore",
    MERGED,
    "int8 dense (ONNX Runtime)",
    "int8 pruned (ONNX Runtime)",
    "ONNX Runtime dense",
    "ONNX Runtime pruned",
    "OpenVINO dense",
    "OpenVINO pruned",
)
GRAPHS: dict[str, tuple[str, bool, str | None]] = {  # format, pruned, quantized
    "int8 dense (ONNX Runtime)": ("onnx", False, "int8"),
    "int8 pruned (ONNX Runtime)": ("onnx", True, "int8"),
    "ONNX Runtime dense": ("onnx", False, None),
    "ONNX Runtime pruned": ("onnx", True, None),
    "OpenVINO dense": ("openvino", False, None),
    "OpenVINO pruned": ("openvino", True, None),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default="deit,dinov2")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--rows", default="", help="numbers of rows, as 0,2,10; all by default")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--patience", type=float, default=900, help="seconds per table column")
    parser.add_argument("--size", type=int, help="pixels instead of 224 and 518, to try it out")
    parser.add_argument("--work", type=Path, help="keeps the exported graphs for the next run")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(columns(options, int(options.threads))))
        return
    with workplace(options.work) as folder:
        found: list[dict[str, Any]] = []
        for threads in options.threads.split(","):
            found += in_a_process(threads, folder)
    text = report(options, found)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text)
    print(text)


@contextmanager
def workplace(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def in_a_process(threads: str, folder: Path) -> list[dict[str, Any]]:
    """Measure one number of threads; libraries fix theirs when they are first used."""
    line = [sys.executable, __file__, *sys.argv[1:]]
    line += ["--threads", threads, "--work", str(folder), "--child"]
    surroundings = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True, env=surroundings)
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def columns(options: argparse.Namespace, threads: int) -> list[dict[str, Any]]:
    """Measure every model and batch size with so many threads."""
    torch.set_num_threads(threads)
    chosen = [int(n) for n in options.rows.split(",")] if options.rows else range(len(ROWS))
    rows = [FIRST, *(ROWS[n] for n in chosen if n)]
    found = []
    for model in options.models.split(","):
        size = options.size or SIZES[model]
        dense = backbone_of(model, size)
        for batch in map(int, options.batches.split(",")):
            print(f"{model}, {threads} threads, batch {batch}", file=sys.stderr, flush=True)
            found += column(dense, model, batch, rows, options)
    return found


def column(
    dense: VitBackbone, model: str, batch: int, rows: list[str], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Time all rows in turn at one batch size, and a matrix product with them."""
    pixels = torch.randn(batch, 3, *dense.fitting_size())
    others = [row for row in rows if row != FIRST]
    backbones = {row: load_entry(row, dense, model, batch, options.work) for row in others}
    passes: list[Callable[[], object]] = [lambda: dense.network.forward_features(pixels)]
    passes += [lambda b=one: b.forward(pixels) for one in backbones.values()]  # type: ignore[misc]
    product, cost = sgemm(torch.device("cpu"))
    with torch.inference_mode():
        times = time_interleaved(
            [*passes, product], rounds=options.repeats, patience=options.patience
        )
    whole = macs(dense).total
    rate = cost / statistics.median(times[-1])
    found = []
    for row, own in zip(rows, times, strict=False):  # the last is the product
        share = whole / cost_of(backbones.get(row, dense))
        ratio = Spread.of(speed_ratios(times[0], own))
        speed = batch / statistics.median(own)
        found.append(
            {
                "model": model,
                "size": dense.fitting_size()[0],
                "threads": torch.get_num_threads(),
                "batch": batch,
                "row": row,
                "ratio": [ratio.median, ratio.low, ratio.high],
                "macs": share,
                "speed": speed,
                "of_sgemm": speed * whole / share / rate,
                "rounds": len(own),
            }
        )
        print(f"  {row}: {ratio.median:.2f} ({share:.2f} MACs)", file=sys.stderr, flush=True)
    return found


def backbone_of(model: str, size: int) -> VitBackbone:
    if model == "dinov2":
        loaded = cv.load("demo", size=size)
    else:
        from clearvit.backbones.guarded_timm import timm

        torch.manual_seed(0)
        network = timm.create_model("deit_small_patch16_224", num_classes=0, dynamic_img_size=True)
        loaded = cv.load(network, size=size)
    assert isinstance(loaded, VitBackbone)
    return loaded


def load_entry(row: str, dense: VitBackbone, model: str, batch: int, work: Path) -> cv.Backbone:
    """Make the backbone of a row; graphs are exported once for each model, size and batch."""
    pruned = prune(dense, keep=KEEP)
    if row == "dense clearvit":
        return dense
    if row == "pruned":
        return pruned
    if row == "pruned, no restore":  # no keys are compared to find who stands for the dropped
        return prune(dense, keep=KEEP, fill="mean")
    if row == MERGED:
        return prune(dense, keep=KEEP, scorer="merge")
    format, is_pruned, quantize = GRAPHS[row]
    height, width = dense.fitting_size()
    out = work / f"{model}-{height}x{width}-{batch}-{format}-{is_pruned}-{quantize}"
    if not out.is_dir():
        source = pruned if is_pruned else dense
        done = cv.export(source, out, format=format, batch=batch, quantize=quantize)  # type: ignore[arg-type]
        print(f"  exported {row}: {done.checks[0].relative:.1e}", file=sys.stderr, flush=True)
    return cv.load(f"{format}:{out}")


def cost_of(backbone: cv.Backbone) -> float:
    facts = getattr(backbone, "facts", None)
    return float(facts.macs) if facts is not None else macs(backbone).total


def report(options: argparse.Namespace, found: list[dict[str, Any]]) -> str:
    machine = this_machine()
    rounds = sorted({one["rounds"] for one in found})
    lines = [
        "# Pruned and exported models: speed",
        "",
        f"{machine.processor}, {machine.cores} cores, torch {machine.torch},"
        f" Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}.",
        f"Keep {KEEP} before blocks 3, 6, 9, class-attention scorer. Times as fast as dense timm in"
        f" the same rounds, median (range) of {rounds[0]} to {rounds[-1]} interleaved rounds;"
        " `MACs` is how many times fewer multiply-accumulates, scoring included. One process per"
        " thread count. int8: ONNX Runtime's dynamic quantisation. Graphs have a fixed batch.",
        "",
        f"Reproduce: `python benchmarks/prune.py {reproduce(options)}`",
    ]
    for model in dict.fromkeys(one["model"] for one in found):
        lines += table(model, [one for one in found if one["model"] == model])
    return "\n".join(lines) + "\n"


def reproduce(options: argparse.Namespace) -> str:
    size = "" if options.size is None else f" --size {options.size}"
    return (
        f"--models {options.models} --threads {options.threads} --batches {options.batches}"
        f" --repeats {options.repeats}{size}"
    )


def table(model: str, found: list[dict[str, Any]]) -> list[str]:
    heads = list(dict.fromkeys((one["threads"], one["batch"]) for one in found))
    cells = {(one["row"], one["threads"], one["batch"]): one for one in found}
    names = [f"{t} thread{'s' * (t > 1)}, batch {b}" for t, b in heads]
    sizes = sorted({one["size"] for one in found})
    title = TITLES[model] if sizes == [SIZES[model]] else f"{model}, {sizes} px"
    lines = ["", f"## {title}", "", f"| | MACs | {' | '.join(names)} |"]
    lines.append(f"|---|---|{'---|' * len(heads)}")
    for row in dict.fromkeys(one["row"] for one in found):
        numbers = [cell(cells[(row, *head)]) for head in heads]
        lines.append(f"| {row} | {cells[(row, *heads[0])]['macs']:.2f} | {' | '.join(numbers)} |")
    dense = [cells[(FIRST, *head)] for head in heads]
    speeds = " | ".join(f"{one['speed']:.2f}" for one in dense)
    shares = " | ".join(f"{100 * one['of_sgemm']:.0f} %" for one in dense)
    return [
        *lines,
        f"| *dense timm, images/s* | | {speeds} |",
        f"| *dense timm, share of sgemm* | | {shares} |",
    ]


def cell(one: dict[str, Any]) -> str:
    middle, low, high = one["ratio"]
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
