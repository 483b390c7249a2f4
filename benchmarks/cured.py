"""What a finished cure is worth in one forward pass, beside its teacher and the raw model.

    python benchmarks/cured.py demo --cure demo-cured --work WORK [--directions 20]
    python benchmarks/cured.py MODEL --work WORK      # of CLEARVIT_WEIGHTS: cures it first
    python benchmarks/cured.py --page                 # docs/results/cured.md

Segmentation on PASCAL VOC as in finer.py (test images took no part in any choice), class-token 1-NN
and, of a classifier, top-1 of its own head on imagenet100; high-norm tokens by block at several
sizes, on images that no cure saw, by the definition of `diagnose`. WORK keeps what is finished.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import clearvit as cv
from clearvit.files import write_json
from data import DATA, RESULTS, data_path, find_model
from judging import (
    RAW,
    compare_counts,
    compare_right,
    count_segmentation,
    high_norm_tokens,
    judge_class_token,
    norms_by_block,
    part_of_gain,
    splits_of,
)
from view_features import Recipe

OUT = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--cure", help="a finished cure, for cv.load; else one is trained")
    parser.add_argument("--work", type=Path, default=Path("build/cured"))
    parser.add_argument("--data", type=data_path, default=DATA)
    parser.add_argument("--directions", type=int, default=0, help="that the teacher removed")
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 336, 448, 518])
    parser.add_argument("--images", type=int, default=16, help="whose norms are measured")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if options.page:
        return write_page()
    torch.set_num_threads(1)
    name = Path(options.model).name
    work, raw = options.work / f"{name}-224", cv.load(find_model(options.model), size=224)
    path, report = options.cure, None
    if path is None:
        photos = options.data / "photos"
        report = str(cv.cure(raw, photos, out=work / "cured", keep_anyway=True).report)
        path = f"dir:{work / 'cured'}"
    cured = cv.load(path, size=224)
    models = {"raw": raw, "cured": cured}
    command = f"python benchmarks/cured.py {options.model}"
    if options.cure:
        command += f" --cure {options.cure} --directions {options.directions}"
    content: dict[str, Any] = {"model": options.model, "date": time.strftime("%Y-%m-%d")}
    content |= {"command": command, "directions": options.directions, "report": report}
    content["segmentation"] = segmentation(raw, path, options, work)
    right = {key: judge_class_token(model, options.data, 224) for key, model in models.items()}
    content["class token"] = {
        task: {"raw": float(100 * values.mean()), **compare_right([right["cured"][task]], values)}
        for task, values in right["raw"].items()
    }
    write_json(OUT / f"cured-{name}.json", content)
    images = splits_of(options.data, "report")[1].images[:: 150 // options.images][: options.images]
    content["norms"] = {}
    for size in options.sizes:
        norms = {key: norms_by_block(model, images, size) for key, model in models.items()}
        content["norms"][str(size)] = high_norm_tokens(norms)
        content["norm images"] = len(images)
        write_json(OUT / f"cured-{name}.json", content)
        print(size, content["norms"][str(size)], flush=True)


def segmentation(
    raw: cv.Backbone, path: str, options: argparse.Namespace, work: Path
) -> dict[str, Any]:
    """Rows by name: the model, its teacher, the cured one, with differences to raw."""
    splits, removed = splits_of(options.data, "report"), options.directions
    teacher = Recipe("teacher", 10, "lattice", directions=removed)
    rows = [RAW, teacher, Recipe("cured", model=path)]
    counts = count_segmentation(raw, rows, splits, work, 224)
    classes, table = splits[1].classes, {}
    for task in ("linear", "kNN"):
        base, best, own = (counts[row.name][task] for row in rows)
        table[task] = {
            row.name: compare_counts(counts[row.name][task], base, classes) for row in rows
        }
        table[task]["part of the gain"] = part_of_gain(own, best, base, classes)
        print(task, json.dumps(table[task]), flush=True)
    return table


# --- the page -------------------------------------------------------------------------------------


def write_page() -> None:
    """Render what has been measured."""
    parts = [HEAD]
    for path in sorted(OUT.glob("cured-*.json")):
        parts.append(section(json.loads(path.read_text())))
    (RESULTS / "cured.md").write_text("\n".join(parts) + "\n")


def section(content: dict[str, Any]) -> str:
    """All tables of one model."""
    removed = content["directions"]
    less = f", less {removed} directions of position" if removed else ""
    lines = [f"\n## {content['model']}\n", f"{content['date']}: `{content['command']}`. Teacher:"]
    lines += [f"ten half-patch views{less}. {content['report'] or ''}".rstrip() + "\n"]
    lines += ["| task | raw | teacher, 10 passes | cured, 1 pass | part of the teacher's gain |"]
    lines += ["|---|---|---|---|---|"]
    for task, rows in content["segmentation"].items():
        part = [f"{100 * one:.0f}" for one in rows["part of the gain"]]
        for metric in ("mIoU of 7", "boundary IoU of 7"):
            raw = rows["raw"][metric]["seeds"][0]
            cells = [cell(rows[name][metric]) for name in ("teacher", "cured")]
            last = f"{part[0]} % ({part[1]} to {part[2]})" if metric == "mIoU of 7" else ""
            lines.append(f"| {task}, {metric} | {raw:.1f} | {' | '.join(cells)} | {last} |")
    for task, found in content["class token"].items():
        lines.append(f"| class token, {task} | {found['raw']:.1f} | - | {cell(found)} | |")
    if content.get("norms"):
        lines += norm_lines(content)
    return "\n".join(lines)


def norm_lines(content: dict[str, Any]) -> list[str]:
    count = content["norm images"]
    lines = [
        f"\nHigh-norm tokens in percent, blocks from 0, {count} VOC images; in blocks not named"
    ]
    lines += ["the raw model has none. What is found anew is a mode of its own of 0.1 % or more."]
    lines += ["", "| size | blocks | raw | cured, raw's cutoffs |"]
    lines[-1] += " cured, found anew | largest norm, times the median: raw, cured |"
    lines += ["|---|---|---|---|---|---|"]
    for size, found in content["norms"].items():
        blocks = [b for b, cutoff in enumerate(found["cutoffs"]) if cutoff]
        raw, cured = (found[name] for name in ("raw", "cured"))
        texts = [", ".join(map(str, blocks)) or "none"]
        for row in (raw, cured):
            texts.append(" / ".join(f"{row[BEYOND][b]:.2f}" for b in blocks) or "-")
        texts.append(f"{max(cured['own']):.2f} at most")
        worst = [max([row["largest"][b] for b in blocks] or row["largest"]) for row in (raw, cured)]
        texts.append(f"{worst[0]:.1f}, {worst[1]:.1f}")
        lines.append(f"| {size} | {' | '.join(texts)} |")
    return lines


def cell(found: dict[str, Any]) -> str:
    value = sum(found["seeds"]) / len(found["seeds"])
    mean, low, high = (f"{one:+.1f}" for one in found["minus raw"])
    return f"{value:.1f} ({mean}, {low} to {high})"


BEYOND = "beyond raw's cutoff"
HEAD = """# Cured models: one pass beside the teacher's ten

At 224 px: linear probe and kNN (30 neighbors) on PASCAL VOC, 200 labelled and 150 test images, mean
IoU and boundary IoU of 7 classes; leave-one-out 1-NN of class tokens, and top-1 of a classifier's
own head, on 500 images of 100 ImageNet classes. In brackets the paired difference to raw with its
95 % interval over images. No choice saw a test image."""


if __name__ == "__main__":
    main()
