"""Blocks of README and docs that show results.

A block stands between `<!-- begin NAME -->` and `<!-- end NAME -->`, and `render.py` writes it from
the JSON files. Text outside a block links to the page that holds its numbers; a test looks them up.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cells import percent_interval
from clearvit.stats import bootstrap
from evidence import HERE, read_result
from pages import facets
from pages.segment import by_draw
from tables import numbers, tables_below

ROOT = HERE.parent
Cell = tuple[float, float, list[float]]  # raw, ours, change [mean, low, high]


def fine() -> tuple[Cell, float]:
    """Linear probe of ten views at scale 2, and of one pass at about their cost."""
    rows = read_result("finer-demo-224")["tasks"]["segmentation"]
    key = "linear, 200, mIoU of 7"
    found = {(row["row"], row["passes"]): row[key] for row in rows if key in row}
    ours = found["sub-patch views, scale 2", 10]
    larger = found["raw at 602 px (the cost of 10)", 1]["value"]
    return (found["raw", 1]["value"], ours["value"], ours["minus raw"]), larger


def cured_knn() -> Cell:
    """Compare kNN segmentation of the shipped cure with that of the raw model."""
    rows = read_result("cured-demo")["segmentation"]["kNN"]
    raw, cured = (rows[name]["mIoU of 7"] for name in ("raw", "cured"))
    return raw["seeds"][0], cured["seeds"][0], cured["minus raw"]


def high_norm() -> tuple[float, float]:
    """Largest percentage of high-norm tokens in a block at 336 px, raw and cured."""
    found = read_result("cured-demo")["norms"]["336"]
    beyond = [found[name]["beyond raw's cutoff"] for name in ("raw", "cured")]
    raw, cured = (max(one for one in blocks if one is not None) for blocks in beyond)
    return raw, cured


def places() -> Cell:
    """MAP@R of descriptors and of what the index chooses, corridor."""
    rows = read_result("facets")["demo corridor"]["rows"]
    before, after = (rows[name]["MAP@R"] for name in ("descriptors", "auto"))
    change = [after["difference"][key] for key in ("mean", "low", "high")]
    return before["value"]["mean"], after["value"]["mean"], change


def masks() -> tuple[Cell, float]:
    """Masks from five examples per class, and those of one pass at 448 px."""
    rows = read_result("segment-methods")["rows"]

    def of(features: str) -> dict[int, float]:
        return by_draw(rows, "mIoU", shots=5, features=features, method="probe")

    raw, ours, larger = map(of, ("raw", "fine, cured, sharpened", "raw at 448 px (control)"))
    change = bootstrap([ours[seed] - raw[seed] for seed in sorted(set(raw) & set(ours))])
    means = [float(np.mean(list(one.values()))) for one in (raw, ours, larger)]
    return (means[0], means[1], [change.mean, change.low, change.high]), means[2]


def boxes() -> tuple[Cell, int]:
    """CorLoc of LOST as published and of `discover`, and the number of images."""
    content = read_result("discovery")
    found = content["rows"]["demo, 224 px"]
    before, after = (100 * np.array(found[name], dtype=float) for name in ("LOST", "consensus"))
    change = bootstrap(after - before)
    cell = (float(before.mean()), float(after.mean()), [change.mean, change.low, change.high])
    return cell, content["images"]


def readme_table() -> str:
    """Six rows: task, raw, ours, change, where to read more."""
    (views, larger), (objects, images), (shapes, control) = fine(), boxes(), masks()
    raw, cured = high_norm()
    rows = [
        row(
            "ten sub-patch views, scale 2, 224 px: linear segmentation, mIoU of 7 VOC classes"
            f" (one pass at 602 px, of about that cost: {larger:.1f})",
            views,
            "finer",
        ),
        row(
            "shipped cure, one pass, 224 px: kNN segmentation, mIoU of 7 VOC classes",
            cured_knn(),
            "cured",
        ),
        "| shipped cure: high-norm tokens in blocks 6 to 10 at 336 px, at most |"
        f" {raw:.2f} % | {cured:.2f} % | | {link('cured')} |",
        row(
            'place recognition, MAP@R, index with `facet="auto"` (raw: descriptors; its constants'
            " were set while looking at this set)",
            places(),
            "facets",
        ),
        row(
            "masks from 5 examples per class, fine, cured and sharpened, mIoU"
            f" (raw at 448 px: {control:.1f})",
            shapes,
            "segment",
        ),
        row(
            f"object discovery, CorLoc of {images} VOC photos, percent (raw: LOST as published)",
            objects,
            "discovery",
        ),
    ]
    head = "| task | raw | ours | change (95 % CI) | more |\n|---|---|---|---|---|"
    return "\n".join([head, *rows])


def row(task: str, cell: Cell, page: str) -> str:
    """One line of the table."""
    raw, ours, (mean, low, high) = cell
    return (
        f"| {task} | {raw:.1f} | {ours:.1f} | {mean:+.1f} ({low:+.1f} to {high:+.1f}) |"
        f" {link(page)} |"
    )


def link(page: str) -> str:
    return f"[page](docs/results/{page}.md)"


def five_numbers() -> str:
    """The paragraph below the first example."""
    views, place, shapes, objects = fine()[0], places(), masks()[0], boxes()[0]
    raw, cured = high_norm()
    return (
        "Five numbers, each with its control and its page below: linear segmentation"
        f" **{views[0]:.1f} to {views[1]:.1f}** mIoU with ten sub-patch views;\nplace recognition"
        f" **{place[0]:.1f} to {place[1]:.1f}** MAP@R by what the index chooses without labels (a"
        f" rule tuned on this set too);\nhigh-norm tokens **{raw:.1f} to {cured:.1f} %** after the"
        f" cure; boxes of objects **{objects[0]:.0f} to {objects[1]:.0f} %** CorLoc; masks from"
        f" five examples per class\n**{shapes[0]:.1f} to {shapes[1]:.1f}** mIoU."
    )


# --- docs/evaluate.md -----------------------------------------------------------------------------

# Heading of a table of dense.md, column of the metric, name, and names of settings.
WORTH = (
    ("linear segmentation, 224 px", 6, "linear probe, mIoU of 7 VOC classes"),
    ("kNN segmentation, 224 px", 6, "kNN segmentation, mIoU of 7"),
    ("depth, 224 px", 4, "depth, RMSE in meters"),
    ("classification, 224 px", 4, "top-1 in percent"),
    ("clustering, 224 px", 4, "clusters of one image, mIoU"),
    ("semantic correspondence, 224 px", 4, "same class in another photo, percent"),
)
SETTINGS = {"knn": "1-NN, ", "prototypes": "4-shot prototypes, "}


def worth() -> str:
    """Raw values and what views and test-time registers change, at 224 px."""
    found, lines = tables_below("dense"), []
    for heading, column, name in WORTH:
        cells: dict[tuple[str, str], dict[str, list[str]]] = {}
        for one in found[heading]:
            cells.setdefault((one[0], one[1]), {})[one[2]] = one[column : column + 2]
        for (setting, labelled), models in cells.items():
            raw = re.sub(r" [(].*", "", models["raw"][0])
            apart = [beyond(models[key][1]) for key in ("denoised", "test-time")]
            first = SETTINGS.get(setting, "") + name
            lines.append(f"| {first} | {labelled.strip('0') and labelled} | {raw} |")
            lines[-1] += f" {' | '.join(apart)} |"
    return "\n".join(
        ["| | labelled | raw | 10 views | test-time |", "|---|---|---|---|---|", *lines]
    )


def beyond(cell: str) -> str:
    """Bold, where the interval excludes 0."""
    values = numbers(cell)
    if len(values) < 3 or values[1] <= 0 <= values[2]:
        return cell
    mean, rest = cell.split(" ", 1)
    return f"**{mean}** {rest}"


CORLOC = {
    "whole image": "the whole image, always",
    "LOST": "`lost`, as published",
    "LOST, mean bias": "LOST on unit queries, bias minus their mean cosine",
    "TokenCut": "`tokencut`, as published",
    "consensus": "**`consensus`**",
}


def corloc() -> str:
    """Methods of `discover` on every model that was measured at 224 px."""
    rows, size = read_result("discovery")["rows"], ", 224 px"
    models = [key for key in rows if key.endswith(size) and "views" not in key]
    lines = [f"| | {' | '.join(key.removesuffix(size) for key in models)} |"]
    lines.append("|---|" + "---|" * len(models))
    for method, name in CORLOC.items():
        cells = [percent_interval(rows[key][method]) for key in models]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


# --- docs/search.md -------------------------------------------------------------------------------


def chosen_features() -> str:
    """What an index chooses without labels, on sets that the rule was made with and on others."""
    head = "| sets | model | MAP@R, descriptors | Δ auto | P@1, descriptors | Δ auto |"
    lines = [head, "|---|---|---|---|---|---|"]
    for page in ("facets_held_out", "facets"):
        for key, content in read_result(page).items():
            model, name = key.split(" ")
            rows = content["rows"]
            shown = f"{name}{', held out' if page == 'facets_held_out' else ''}"
            cells = [shown, facets.TITLES.get(model, model)]
            for metric in ("MAP@R", "P@1"):
                cells.append(f"{rows['descriptors'][metric]['value']['mean']:.1f}")
                cells.append(facets.difference(rows["auto"][metric]))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


# --- docs/prune.md --------------------------------------------------------------------------------

PRUNED_MODELS = {
    "demo": "DINOv2-S (demo)",
    "deit_tiny_patch16_224": "DeiT-Ti",
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k": "AugReg ViT-Ti",
}
RUNTIMES = {
    "pruned": "torch",
    "ONNX Runtime pruned": "ONNX Runtime",
    "OpenVINO pruned": "OpenVINO",
    "OpenVINO bf16 pruned": "OpenVINO, bfloat16",
    "OpenVINO int8 pruned": "OpenVINO, int8",
}


def scorers() -> str:
    """Points that each scorer loses without training: class token / map."""
    content = read_result("prune_choice")
    names = list(content["ranking"])
    rows = {
        (row["model"], row["keep"], row["scorer"]): row["report"]
        for row in content["rows"]
        if row["fill"] == "similar" and not row.get("control")
    }
    lines = [f"| model | keep | {' | '.join(f'`{name}`' for name in names)} |"]
    lines.append("|---|---|" + "---|" * len(names))
    for keep in sorted({key[1] for key in rows} - {1.0}, reverse=True):
        for model, title in PRUNED_MODELS.items():
            found = [rows[model, keep, name] for name in names]
            cells = [
                f"{points(one['minus dense'][0])} / {points(one['mIoU minus dense'][0])}"
                for one in found
            ]
            lines.append(f"| {title} | {keep:g} | {' | '.join(cells)} |")
    means = [content["confirmed"][name] for name in names]
    cells = [f"{points(one[0])} / {points(one[1])}" for one in means]
    lines.append(f"| mean | | {' | '.join(cells)} |")
    return "\n".join(lines)


def points(value: float) -> str:
    """A signed number of points, without a negative zero."""
    return f"{round(value, 1) + 0.0:+.1f}"


def pruned_speed() -> str:
    """Times as fast as dense timm, keep 0.7, by model, threads and batch."""
    titles = {"deit_ti": "DeiT-Ti", "deit": "DeiT-S", "dinov2": "DINOv2-S, 518 px"}
    lines = [f"| model | threads | batch | fewer MACs | {' | '.join(RUNTIMES.values())} |"]
    lines.append("|---|---|---|---|" + "---|" * len(RUNTIMES))
    columns = read_result("prune")["columns"]
    for column in sorted(columns, key=lambda c: (list(titles).index(c["model"]), c["threads"])):
        rows = {row["row"]: row for row in column["rows"]}
        cells = [f"{rows[name]['ratio'][0]:.2f}" if name in rows else "-" for name in RUNTIMES]
        first = [titles[column["model"]], str(column["threads"]), str(column["batch"])]
        first.append(f"{rows['pruned']['macs']:.2f}")
        lines.append(f"| {' | '.join([*first, *cells])} |")
    return "\n".join(lines)


BLOCKS: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"five numbers": five_numbers, "results": readme_table},
    "docs/evaluate.md": {"worth": worth},
    "docs/discover.md": {"corloc": corloc},
    "docs/prune.md": {"scorers": scorers, "speed": pruned_speed},
    "docs/search.md": {"chosen features": chosen_features},
}


def with_blocks(file: str) -> str:
    """Give a document with its blocks written anew."""
    text = (ROOT / file).read_text("utf-8")
    for name, make in BLOCKS[file].items():
        begin, end = f"<!-- begin {name} -->\n", f"\n<!-- end {name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{file} has no block '{name}'")
        text = before + begin + make() + end + after
    return text


def blocks_differ(file: str) -> bool:
    """Whether a document is not what its results give."""
    return bool((ROOT / file).read_text("utf-8") != with_blocks(file))


def write_blocks(file: str) -> Path:
    """Write the blocks of a document."""
    path, text = ROOT / file, with_blocks(file)
    path.write_text(text, "utf-8")
    return path


def numbers_of(value: Any) -> list[float]:
    """All numbers inside a result."""
    if isinstance(value, bool) or value is None:
        return []
    if isinstance(value, (int, float)):
        return [float(value)]
    if isinstance(value, str):
        return numbers(value)
    inner = value.values() if isinstance(value, dict) else value
    return [one for part in inner for one in numbers_of(part)]
