"""The fast segmentation probe against the stepwise one: mean IoU, and the time of the fit.

    python benchmarks/probe_recipes.py --work WORK [--size 224] [--labelled 60 300]

Both fit the head of the linear-probing protocol to the same cached tokens of the demo model on
DATA/voc. WORK keeps the tokens and may be the one of `dense.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import clearvit as cv
from clearvit.dense.features import Features, drawn, extracted, whole_picture
from clearvit.dense.layouts import read_masks
from clearvit.dense.linear import LinearHead
from clearvit.dense.metrics import segmentation_metrics
from clearvit.dense.segmentation import measure_whole
from clearvit.dense.sgd import cached_batches, fit_fast, fit_steps
from clearvit.dense.splits import MaskSplit
from clearvit.files import written_whole

DATA = Path(os.environ.get("CLEARVIT_DATA", Path(__file__).parents[2] / "shared" / "data"))
RESULT = Path(__file__).parents[1] / "docs" / "results" / "probe_recipes.md"
POPULATED = ("background", "cat", "dog", "horse", "cow", "sheep", "person")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=DATA / "voc")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--labelled", type=int, nargs="+", default=[60, 300])
    parser.add_argument("--iterations", type=int, default=2000, help="of the stepwise probe")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"'{options.data}' is not there; pass --data.")
    torch.set_num_threads(options.threads)
    backbone = whole_picture(cv.load("demo"))
    train, test = (read_masks(options.data, split=split) for split in ("train", "val"))
    kept = {"size": options.size, "cache": options.work / "tokens"}
    lines = []
    with extracted(backbone, train, **kept) as seen, extracted(backbone, test, **kept) as held:
        for wanted in options.labelled:
            chosen = drawn(len(train), wanted, 0)
            lines += compared(seen, held, train, test, chosen, options.iterations)
    text = PAGE.format(
        size=options.size,
        steps=options.iterations,
        tested=len(test),
        threads=options.threads,
        date=time.strftime("%Y-%m-%d"),
        lines="\n".join(lines),
    )
    with written_whole(RESULT) as temporary:
        temporary.write_text(text)
    print(text)


def compared(
    seen: Features,
    held: Features,
    train: MaskSplit,
    test: MaskSplit,
    chosen: list[int],
    steps: int,
) -> list[str]:
    """Lines of the table for some labelled images."""

    def stepwise() -> LinearHead:
        batches = cached_batches(seen, train, chosen, seed=0, device=torch.device("cpu"))
        return fit_steps(batches, classes=len(train.classes), steps=steps)

    fits: dict[str, Callable[[], LinearHead]] = {
        "fast": lambda: fit_fast(seen, train, chosen),
        "sgd": stepwise,
    }
    heads, seconds = {}, {}
    for recipe, fit in fits.items():
        wall, cpu = time.perf_counter(), time.process_time()
        heads[recipe] = fit()
        seconds[recipe] = time.perf_counter() - wall, time.process_time() - cpu
    rows = measure_whole(list(heads.values()), held, test)
    subset = tuple(train.classes.index(name) for name in POPULATED)
    lines = []
    for recipe, found in zip(heads, rows, strict=True):
        scores = segmentation_metrics(found.sum(0), train.classes, subset)
        ratio = [seconds["sgd"][i] / seconds[recipe][i] for i in (0, 1)]
        lines.append(
            f"| {len(chosen)} | {recipe} | {float(scores['mIoU']):.1f} |"
            f" {float(scores[f'mIoU of {len(subset)}']):.1f} | {seconds[recipe][0]:.1f} |"
            f" {seconds[recipe][1]:.1f} | {ratio[0]:.1f}, {ratio[1]:.1f} |"
        )
    return lines


PAGE = """# The fast segmentation probe against the stepwise one

The raw model at {size} px, tokens cached, {tested} test images, {threads} thread(s). `sgd`: {steps}
steps of AdamW, batch 8, the published head and loss without augmentation. `fast`: the same head,
half the steps at twice the rate, and the shares of the classes in four cells of each patch instead
of pixels. Seconds are those of the fit alone. One draw and one seed, a
lucky one for `fast` ([three seeds](../evaluate.md#recipes)); its settings were chosen on these
test images. {date}. Reproduce:
`python benchmarks/probe_recipes.py --work WORK --threads {threads}`

| labelled | recipe | mIoU | mIoU of 7 | wall, s | CPU, s | times as fast as sgd (wall, CPU) |
|---|---|---|---|---|---|---|
{lines}
"""


if __name__ == "__main__":
    main()
