"""Segmentation by example."""

from __future__ import annotations

from typing import Any

import numpy as np

from clearvit.segmentation.patch_classifiers import METHODS
from clearvit.stats import bootstrap
from evidence import read_result

Row = dict[str, Any]


def read(part: str) -> list[Row]:
    """The rows of one part; none if it was not measured."""
    return read_result(f"segment-{part}").get("rows", [])


def by_draw(rows: list[Row], key: str, **wanted: Any) -> dict[int, float]:
    """One number of every draw."""
    return {r["seed"]: r[key] for r in rows if all(r[k] == v for k, v in wanted.items())}


def shown(values: dict[int, float], minus: dict[int, float] | None = None) -> str:
    """Mean over draws, and the interval; of the paired difference if there is one."""
    if not values:
        return "-"
    mean = f"{np.mean(list(values.values())):.1f}"
    both = sorted(set(values) & set(minus or {}))
    if not both:
        found = bootstrap(list(values.values()))
        return f"{mean} ({found.low:.1f} to {found.high:.1f})"
    found = bootstrap([values[s] - minus[s] for s in both])  # type: ignore[index]
    return f"{mean} ({found.mean:+.1f}, {found.low:+.1f} to {found.high:+.1f})"


def table(head: list[str], lines: list[list[str]]) -> str:
    """A Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def feature_table(rows: list[Row], shots: list[int], key: str) -> str:
    """The probe on every kind of features, with the paired difference to raw."""
    lines = []
    for kind in dict.fromkeys(row["features"] for row in rows):
        cells = []
        for n in shots:
            own = by_draw(rows, key, shots=n, features=kind, method="probe")
            base = by_draw(rows, key, shots=n, features="raw", method="probe")
            cells.append(shown(own, None if kind == "raw" else base))
        lines.append([kind, *cells])
    return table(["tokens, probe", *(f"{n} per class" for n in shots)], lines)


def method_table(rows: list[Row], shots: list[int]) -> str:
    """Every method on raw and on the best tokens."""
    lines = []
    for kind in ("raw", "fine, cured"):
        for method in METHODS:
            cells = [
                shown(by_draw(rows, "mIoU", shots=n, features=kind, method=method)) for n in shots
            ]
            lines.append([kind, method, *cells])
    return table(["tokens", "method", *(f"{n} per class" for n in shots)], lines)


def auto_table(rows: list[Row], chosen: list[Row]) -> str:
    """How far the chosen method is from the best one in hindsight."""
    lines = []
    for n in sorted({r["shots"] for r in chosen}):
        gaps, names = [], []
        for one in (r for r in chosen if r["shots"] == n):
            case = {"shots": n, "features": "raw"}
            found = {m: by_draw(rows, "mIoU", method=m, **case).get(one["seed"]) for m in METHODS}
            if None not in found.values():
                gaps.append(max(found.values()) - found[one["chosen"]])  # type: ignore[type-var,operator]
                names.append(one["chosen"])
        if gaps:
            within = sum(gap <= 1 for gap in gaps)
            picked = ", ".join(f"{m} {names.count(m)}" for m in dict.fromkeys(names))
            mean, most = f"{np.mean(gaps):.1f}", f"{max(gaps):.1f}"
            lines.append([str(n), f"{within} of {len(gaps)}", mean, most, picked])
    head = ["examples per class", "draws within 1 point of the best", "mean gap", "largest"]
    return table([*head, "chosen"], lines)


def largest_gap(rows: list[Row], shots: int) -> float:
    """How far the mixed classifier is from the best method, at most, on raw tokens."""
    found = [by_draw(rows, "mIoU", shots=shots, features="raw", method=m) for m in METHODS]
    return max(max(one[seed] for one in found) - found[0][seed] for seed in found[0])


def confidence_line(rows: list[Row]) -> str:
    """Error of the fifth of the images that is least certain, relative to the mean."""
    parts = []
    for n in sorted({r["shots"] for r in rows}):
        own = by_draw(rows, "ratio", shots=n, features="fine, cured", method="mixed")
        if own:
            found = bootstrap(list(own.values()))
            parts.append(f"{found.mean:.2f} x ({found.low:.2f} to {found.high:.2f}) from {n}")
    return "; ".join(parts)


def strokes_table(rows: list[Row]) -> str:
    """Strokes beside full masks."""
    lines = []
    for n in sorted({r["shots"] for r in rows}):
        full = by_draw(rows, "mIoU", shots=n, labels="masks")
        few = by_draw(rows, "mIoU", shots=n, labels="strokes")
        both = sorted(set(full) & set(few))
        if not both:
            continue
        ratio = bootstrap([100 * few[s] / full[s] for s in both])
        method = next(r["method"] for r in rows if r["shots"] == n)
        lines.append(
            [
                str(n),
                method,
                shown(full),
                shown(few),
                f"{ratio.mean:.0f} % ({ratio.low:.0f} to {ratio.high:.0f})",
            ]
        )
    return table(["examples per class", "method", "masks", "strokes", "ratio"], lines)


def folder_part() -> list[str]:
    """Cost and memory of a folder; nothing if it was not measured."""
    found = read_result("segment-folder")
    if not found:
        return []
    setting = found["setting"]
    named = {"none": "masks", "image": "sharpened masks"}
    lines = [
        [
            named[part],
            "{:.2f} ({:.2f} to {:.2f})".format(*found[part]["ratio"]),
            f"{found[part]['CPU s per image']:.2f}",
        ]
        for part in named
        if part in found
    ]
    flags = " ".join(f"--{name} {setting[name]}" for name in ("model", "size", "folder"))
    return [
        "## A folder",
        f"{found['date']}: `python benchmarks/segment_folder.py --work WORK {flags} --images"
        f" {setting['images']} --rounds {setting['rounds']}`. CPU time of `segment` with a fitted"
        f" model, relative to `tokens` on the same {setting['images']} images at"
        f" {setting['size']} px in {setting['rounds']} interleaved rounds, one thread.",
        table(["made", "ratio to extraction", "CPU seconds per image"], lines),
        *([whole_folder(found["folder"], setting["folder"])] if "folder" in found else []),
    ]


def whole_folder(whole: Row, images: int) -> str:
    """Tell the story of the run over the whole folder."""
    first, second = whole["masks"]
    sizes = [mb for run in (first, second) for written, mb in run["MB"] if written]
    early = [mb for written, mb in first["MB"] if 0 < written <= images // 10]
    late = [mb for written, mb in second["MB"] if written >= images - images // 10]
    return (
        f"A folder of {images} crops of all sizes, killed (-9) with {whole['masks at the kill']}"
        f" masks written: the same command made the rest, {whole['made again after it']} masks were"
        f" made twice, {whole['readable']} of {whole['masks in all']} can be read. Both goes"
        f" together took {whole['ratio']:.2f} times the CPU time of `tokens` in one go"
        f" ({whole['tokens']['CPU s'] / images:.2f} seconds per image; the load of the machine"
        f" changed meanwhile). Resident memory: {np.median(early):.0f} MB in the first tenth,"
        f" {np.median(late):.0f} MB in the last, {max(sizes)} MB at most."
    )


def page() -> str:
    """Write the page."""
    rows, chosen, strokes = read("methods"), read("auto"), read("strokes")
    date = read_result("segment-methods")["date"]
    shots = sorted({r["shots"] for r in rows})
    draws = ", ".join(
        f"{len(by_draw(rows, 'mIoU', shots=n, features='raw', method='probe'))} of {n}"
        for n in shots
    )
    parts = [
        "# Segmentation by example",
        f"{date}: `python benchmarks/segment.py --part methods`, then `auto`, "
        f"`strokes` and `--page`. DINOv2"
        " ViT-S/14 (demo) at 224 px in bfloat16, seven classes of PASCAL VOC (all"
        " else is background), examples"
        " drawn from 300 training images, measured on 75 validation images at 320"
        " px; mean over draws"
        f" ({draws} examples per class), in brackets the paired difference to raw "
        f"tokens or the mean itself with"
        " its 95 % interval over draws. Fine is scale 2 from four views; the "
        "control costs the same passes.",
        "## Tokens",
        "mIoU:",
        feature_table(rows, shots, "mIoU"),
        "Boundary IoU:",
        feature_table(rows, shots, "boundary"),
        "## Methods",
        method_table(rows, shots),
    ]
    if chosen:
        parts += [
            "## What auto chooses",
            "Raw tokens; the best of the four methods in hindsight on the validation images. From"
            " one example per class nothing is chosen: halves of one image do not tell the methods"
            " apart (they took the probe in one of six draws, and 5.3 points were lost), so the"
            " mixed classifier stays, as it was better than the probe in all five draws on training"
            " images."
            f" From five, the mixed classifier is within {largest_gap(rows, 5):.1f} points of the"
            f" best in every draw, from twenty within {largest_gap(rows, 20):.1f}.",
            auto_table(rows, chosen),
        ]
    parts += [
        "## Confidence",
        "Pixel error of the 20 % least confident images, relative to the mean error (mixed, on"
        f" fine, cured tokens): {confidence_line(rows)} examples per class. The margin of the"
        " less certain half of an image was chosen among 25 measures on training images; with all"
        " errors known the ratio would be 2.4 there.",
    ]
    if strokes:
        parts += [
            "## Strokes",
            "Three straight pieces of the skeleton of each class in each example, radius 3 px at"
            " 320 px; fine, cured tokens. A first fit labels the patches of the examples that it is"
            " sure of, as `segment` does ([what else was tried](segment_strokes.md)).",
            strokes_table(strokes),
        ]
    parts += folder_part()
    parts += ["## How the weight was chosen", WEIGHT]
    return "\n\n".join(parts) + "\n"


WEIGHT = (
    "In `mixed` the probe weighs n / (n + 2) with n examples per class, chosen on training images"
    " with other draws, by a script that is not kept; so the weight itself has no table here."
)
