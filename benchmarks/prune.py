"""Pruned, exported and quantized models against dense timm: speed in interleaved rounds, quality.

    python benchmarks/prune.py --work WORK                                  # everything, hours
    python benchmarks/prune.py --work WORK --models deit_ti --threads 1     # adds to the results
    python benchmarks/prune.py --work WORK --rows 2,5,8,12 --export         # graphs only, any load
    python benchmarks/prune.py --work WORK --rows 2,5,8,12 --minutes 12 --resume    # then times
    python benchmarks/prune.py --work WORK --quality                        # top-1 and cosines
    python benchmarks/prune.py --page                                       # writes the page again

Every thread count has a process of its own, in which all rows of a model and batch size take turns;
the ratio is the median over rounds, round by round, beside the ratio of MACs. One thread is timed
in CPU seconds, which a busy machine disturbs less, two in wall-clock seconds. The load of the
machine before and after stands with each column. A row that is measured again replaces the old
one; `--resume` leaves out columns that have all rows from a quiet machine. Speed does not depend on
the values of weights: DeiT-S has random ones, DINOv2-S is the demo model, DeiT-Ti is read from
CLEARVIT_WEIGHTS if it is there.

The control cuts the sequence to the same lengths without any scoring: what a pruned model can reach
at best. With own weights, they come from memory for every image, however short its sequence is;
with one block's weights for all blocks they stay in the cache of a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import clearvit as cv
from clearvit.backbones.vit import VitBackbone
from clearvit.benchmarking.machine import this_machine
from clearvit.benchmarking.quality import measure_quality
from clearvit.pruning.cost import macs
from clearvit.timing import REST, Spread, speed_ratios, time_interleaved
from data import DATA, data_path, find_model
from evidence import read_result, write_result
from render import render

SIZES = {"deit": 224, "deit_ti": 224, "dinov2": 518}
TITLES = {
    "deit": "DeiT-S/16, 224 px",
    "deit_ti": "DeiT-Ti/16, 224 px",
    "dinov2": "DINOv2 ViT-S/14, 518 px",
}
WEIGHTS = "deit_tiny_patch16_224"
KEEP, ROUNDS = 0.7, 15
QUIET = 3.0  # load of a machine on which nothing else runs, two threads of ours included
FIRST = "dense timm"
TORCH = ("dense clearvit", "pruned", "pruned, scorer class")
GRAPHS: dict[str, tuple[str, bool, str | None]] = {  # format, pruned, quantized
    "ONNX Runtime dense": ("onnx", False, None),
    "ONNX Runtime pruned": ("onnx", True, None),
    "ONNX Runtime int8 pruned": ("onnx", True, "int8"),
    "OpenVINO dense": ("openvino", False, None),
    "OpenVINO pruned": ("openvino", True, None),
    "OpenVINO bf16 dense": ("openvino", False, "bf16"),
    "OpenVINO bf16 pruned": ("openvino", True, "bf16"),
    "OpenVINO int8 dense": ("openvino", False, "int8"),
    "OpenVINO int8 pruned": ("openvino", True, "int8"),
}
CONTROL = ("cut, own weights", "cut, one block's weights")
ROWS = (FIRST, *TORCH, *GRAPHS, *CONTROL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default=",".join(SIZES))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--rows", default="", help="numbers of rows, as 0,2,10; all by default")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--patience", type=float, default=1800, help="seconds per table column")
    parser.add_argument("--minutes", type=float, help="begin no column after so many")
    parser.add_argument("--resume", action="store_true", help="leave out what was timed quietly")
    parser.add_argument("--export", action="store_true", help="make the graphs, time nothing")
    parser.add_argument("--work", type=Path, help="keeps the exported graphs")
    parser.add_argument("--calibration", type=data_path, default=f"{DATA}/photos")
    parser.add_argument("--classes", type=data_path, default=f"{DATA}/imagenet100")
    parser.add_argument("--quality", action="store_true", help="measure that instead of speed")
    parser.add_argument("--page", action="store_true", help="only write the page again")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        measure_columns(options, int(options.threads))
    elif options.quality:
        measure_tasks(options)
    elif not options.page:
        ends = time.time() + 60 * (options.minutes or 1e6)
        for threads in options.threads.split(","):
            run_child(threads, (ends - time.time()) / 60)
    render("prune")


def run_child(threads: str, minutes: float) -> None:
    """Measure one number of threads; libraries fix theirs when they are first used."""
    line = [sys.executable, __file__, *sys.argv[1:], "--threads", threads, "--child"]
    line += ["--minutes", str(minutes)]
    surroundings = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    subprocess.run(line, check=True, env=surroundings)


def store(key: str, row: dict[str, Any], same: Sequence[str]) -> None:
    """Put a row in the place of one that agrees with it in `same`."""
    content = read_result("prune") or {"columns": [], "quality": []}
    others = [one for one in content[key] if any(one[name] != row[name] for name in same)]
    used = ("photos", "imagenet100")
    write_result("prune", {**content, key: [*others, row]}, data=used)


# --- speed ----------------------------------------------------------------------------------------


def measure_columns(options: argparse.Namespace, threads: int) -> None:
    """Measure every model and batch size with so many threads."""
    torch.set_num_threads(threads)
    chosen = [int(n) for n in options.rows.split(",")] if options.rows else range(len(ROWS))
    rows = [FIRST, *(ROWS[n] for n in chosen if n)]
    ends = time.time() + 60 * options.minutes
    for model in options.models.split(","):
        dense = load_dense(model)
        for batch in map(int, options.batches.split(",")):
            column = {"model": model, "threads": threads, "batch": batch}
            if options.export:
                [load_row(row, dense, model, batch, options) for row in rows if row in GRAPHS]
            elif time.time() < ends and not (options.resume and is_done(column, rows)):
                before = os.getloadavg()[0]
                found = measure_column(dense, model, batch, rows, options)
                facts = {**column, "load": [before, os.getloadavg()[0]]}
                facts |= {"date": time.strftime("%Y-%m-%d"), "machine": str(this_machine())}
                facts["rows"] = [*found, *earlier_rows(column, rows)]
                store("columns", facts, tuple(column))


def stored_column(column: dict[str, Any]) -> dict[str, Any] | None:
    """Give the column of an earlier run."""
    found = [
        one for one in read_result("prune").get("columns", []) if column.items() <= one.items()
    ]
    return found[0] if found else None


def is_done(column: dict[str, Any], rows: list[str]) -> bool:
    """Tell whether an earlier run timed all rows of a column on a quiet machine."""
    old = stored_column(column)
    fresh = {one["row"] for one in old["rows"] if "load" not in one} if old else set()
    return old is not None and max(old["load"]) <= QUIET and set(rows) <= fresh


def earlier_rows(column: dict[str, Any], rows: list[str]) -> list[dict[str, Any]]:
    """Give the rows of an earlier run that were not timed now, with the load they had."""
    old = stored_column(column) or {"rows": []}
    return [{"load": old["load"], **one} for one in old["rows"] if one["row"] not in rows]


def measure_column(
    dense: VitBackbone, model: str, batch: int, rows: list[str], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Time all rows in turn at one batch size."""
    pixels = torch.randn(batch, 3, *dense.fitting_size())
    plain = [row for row in rows if row != FIRST and row not in CONTROL]
    models = {row: load_row(row, dense, model, batch, options) for row in plain}
    passes: list[Callable[[], object]] = [lambda: dense.network.forward_features(pixels)]
    passes += [lambda b=one: b.forward(pixels) for one in models.values()]  # type: ignore[misc]
    cut = [row for row in rows if row in CONTROL]
    for row in cut:
        passes += make_control(dense, batch, shared=row == CONTROL[1])
    with torch.inference_mode():
        times = time_interleaved(
            passes,
            rounds=options.rounds,
            patience=options.patience,
            clock=time.process_time if torch.get_num_threads() == 1 else time.perf_counter,
            rest=REST,
        )
    found = [entry(FIRST, 1.0, times[0], times[0], batch)]
    for row, own in zip(plain, times[1:], strict=False):
        gain = macs(dense).total / cost_of(models[row])
        found.append(entry(row, gain, times[0], own, batch))
    for number, row in enumerate(cut):
        first, own = times[1 + len(plain) + 2 * number :][:2]
        found.append(entry(row, control_gain(dense), first, own, batch))
    return found


def entry(
    row: str, gain: float, first: list[float], own: list[float], batch: int
) -> dict[str, Any]:
    ratio = Spread.of(speed_ratios(first, own))
    print(f"  {row}: {ratio.median:.2f} ({gain:.2f} MACs)", file=sys.stderr, flush=True)
    return {
        "row": row,
        "ratio": [ratio.median, ratio.low, ratio.high],
        "macs": gain,
        "speed": batch / statistics.median(own),
        "rounds": len(own),
    }


def load_dense(model: str) -> VitBackbone:
    if model == "dinov2":
        loaded = cv.load("demo", size=SIZES[model])
    elif model == "deit_ti" and find_model(WEIGHTS) != WEIGHTS:
        loaded = cv.load(find_model(WEIGHTS))
    else:
        from clearvit.backbones.guarded_timm import timm

        torch.manual_seed(0)
        name = {"deit": "deit_small_patch16_224", "deit_ti": WEIGHTS}[model]
        loaded = cv.load(timm.create_model(name, dynamic_img_size=True), size=SIZES[model])
    assert isinstance(loaded, VitBackbone)
    return loaded


def load_row(
    row: str, dense: VitBackbone, model: str, batch: int, options: argparse.Namespace
) -> cv.Backbone:
    """Make the backbone of a row; graphs are exported once for each model, size and batch."""
    if row == "dense clearvit":
        return dense
    if row == "pruned, scorer class":
        return cv.prune(dense, keep=KEEP, scorer="class")
    pruned = cv.prune(dense, keep=KEEP)
    if row == "pruned":
        return pruned
    format, is_pruned, quantize = GRAPHS[row]
    out = options.work / f"{model}-{batch}-{format}-{is_pruned}-{quantize}"
    if not out.is_dir():
        source = pruned if is_pruned else dense
        images = {"calibration": str(options.calibration)}
        more = images if (format, quantize) == ("openvino", "int8") else {}
        done = cv.export(source, out, format=format, batch=batch, quantize=quantize, **more)  # type: ignore[arg-type]
        print(f"  exported {row}: {done.checks[0]}", file=sys.stderr, flush=True)
    return cv.load(f"{format}:{out}")


def cost_of(backbone: cv.Backbone) -> float:
    facts = getattr(backbone, "facts", None)
    return float(facts.macs) if facts is not None else macs(backbone).total


def lengths_of(dense: VitBackbone) -> tuple[list[int], list[int]]:
    """Tokens in every block, dense and pruned."""
    height, width = dense.fitting_size()
    patches, prefix = height // dense.patch[0] * (width // dense.patch[1]), len(dense.prefix_names)
    plan = cv.prune(dense, keep=KEEP).plan
    counts = [patches, *plan.counts(patches)]
    cut = [counts[sum(s <= block for s in plan.stages)] + prefix for block in range(dense.depth)]
    return [patches + prefix] * dense.depth, cut


def control_gain(dense: VitBackbone) -> float:
    width = dense.width
    costs = [sum(n * 12 * width**2 + 2 * n**2 * width for n in part) for part in lengths_of(dense)]
    return costs[0] / costs[1]


def make_control(dense: VitBackbone, batch: int, *, shared: bool) -> list[Callable[[], object]]:
    """Blocks on whole and on cut sequences, nothing else."""
    whole = torch.randn(batch, lengths_of(dense)[0][0], dense.width)
    blocks = [dense.network.blocks[0 if shared else index] for index in range(dense.depth)]

    def run(lengths: list[int]) -> object:
        x = whole
        for block, length in zip(blocks, lengths, strict=True):
            x = block(x[:, :length])
        return x

    return [lambda part=part: run(part) for part in lengths_of(dense)]  # type: ignore[misc]


# --- quality --------------------------------------------------------------------------------------


def measure_tasks(options: argparse.Namespace) -> None:
    """Compare DeiT-Ti, pruned and in fewer bits, with the dense model on labelled images."""
    torch.set_num_threads(1)
    dense = load_dense("deit_ti")
    chosen = [row for row in GRAPHS if "ONNX" not in row and row != "OpenVINO dense"]
    models = {"dense torch": dense, "pruned torch": cv.prune(dense, keep=KEEP)}
    models |= {row: load_row(row, dense, "deit_ti", 1, options) for row in chosen}
    found = measure_quality([*models.values()], str(options.classes), dense.fitting_size())
    own = measure_quality(
        [models["pruned torch"], *(models[row] for row in chosen if "pruned" in row)],
        str(options.classes),
        dense.fitting_size(),
    )
    near = dict(zip([row for row in chosen if "pruned" in row], own[1:], strict=True))
    for row, quality in zip(models, found, strict=True):
        facts = {"row": row, "images": quality.images, "top1": quality.top1}
        facts |= {"cls": quality.cls, "map": quality.map}
        facts["own"] = [near[row].cls, near[row].map] if row in near else None
        store("quality", facts, ("row",))


if __name__ == "__main__":
    main()
