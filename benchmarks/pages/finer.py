"""Finer tokens at equal passes, and what else was chosen on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evidence import read_result, read_results

MODELS = {
    "demo": "DINOv2 ViT-S/14 (demo)",
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k": "ViT-Ti/16 AugReg",
    "deit_tiny_patch16_224": "DeiT-Ti/16",
}
TASKS, SHOWN = ("linear", "kNN"), ("mIoU of 7", "boundary IoU of 7")
FINE = "fine head"  # the row of finer.py for the head of `method="fine"`


def page() -> str:
    """Render every table that has been measured."""
    parts = [HEAD, *(section(one) for one in measured("finer-[!c]*"))]
    parts += [gathering(one) for one in measured("view-speed-*")]
    parts += [projection(one) for one in measured("projection")]
    parts += [choices(one) for one in measured("finer-choices-*")]
    parts += [showcase(one) for one in measured("showcase")]
    return "\n".join(parts) + "\n"


def measured(pattern: str) -> list[dict[str, Any]]:
    """Read JSON files of results, in the order of the models and then of sizes."""
    found = read_results(pattern)
    order = list(MODELS)
    return sorted(found, key=lambda one: (order.index(one.get("model", "demo")), one.get("size")))


def section(content: dict[str, Any]) -> str:
    """All tables of one model and size."""
    name, tasks = MODELS.get(content["model"], content["model"]), content["tasks"]
    lines = [
        f"\n## {name}, {content['size']} px\n",
        f"{content['date']}: {', then '.join(f'`{one}`' for one in content['commands'])}.\n",
    ]
    lines.append(positional(content["positional"]))
    if "segmentation" in tasks:
        labels = sorted(
            {int(key.split(", ")[1]) for row in tasks["segmentation"] for key in row if ", " in key}
        )
        counted = f"{content['train']} labelled, {content['test']} test images"
        lines.append(f"\nMean IoU of 7 classes, {counted}; in brackets the difference to raw.\n")
        columns = [(t, n, "mIoU of 7") for t in ("linear", "kNN") for n in labels]
        lines += table(tasks["segmentation"], columns, "raw")
        lines.append("\nAll labels: differences to raw blurred, and boundary IoU.\n")
        lines += controls(tasks["segmentation"], labels[-1])
    for task, metric, digits in (("depth", "RMSE", 3), ("discovery", "CorLoc", 0)):
        if task in tasks:
            unit = "RMSE in meters" if task == "depth" else "CorLoc in percent, final tokens"
            lines += [
                f"\n{task.capitalize()}: {unit}.\n",
                f"| tokens | passes | {metric} | minus raw |",
                "|---|---|---|---|",
            ]
            for row in tasks[task]:
                change = interval(row["minus raw"], digits) if row["row"] != "raw" else "-"
                lines.append(
                    f"| {row['row']} | {row['passes']} | {row[metric]:.{digits}f} | {change} |"
                )
    return "\n".join(lines)


def positional(report: dict[str, Any]) -> str:
    """What was chosen without labels, and why."""
    tried = ", ".join(f"{k}: {100 * rate:.1f} %" for k, rate in report["found"].items())
    gain = [100 * report["gain"][key] for key in ("mean", "low", "high")]
    return (
        f"Chosen without labels on {report['images']} photos: **{report['directions']} directions"
        f" of position** (crop patches found by directions removed: {tried}; each half of the"
        f" photos checked what the other chose: {interval(gain)} points)."
    )


def table(
    rows: Sequence[dict[str, Any]], columns: Sequence[tuple[str, int, str]], base: str
) -> list[str]:
    heads = [f"{task}, {labels}" for task, labels, _ in columns]
    lines = [f"| tokens | passes | {' | '.join(heads)} |", f"|---|---|{'---|' * len(heads)}"]
    for row in rows:
        cells = []
        for task, labels, metric in columns:
            cell = row.get(f"{task}, {labels}, {metric}")
            if cell is None:
                cells.append("")
                continue
            apart = cell.get(f"minus {base}")
            cells.append(f"{cell['value']:.1f}" + (f" ({interval(apart)})" if apart else ""))
        lines.append(f"| {row['row']} | {row['passes']} | {' | '.join(cells)} |")
    return lines


def controls(rows: Sequence[dict[str, Any]], labels: int) -> list[str]:
    """Differences to the blurred control, and the edges."""
    columns = {
        "linear minus blurred": f"linear, {labels}, mIoU of 7",
        "kNN minus blurred": f"kNN, {labels}, mIoU of 7",
    }
    edge = f"linear, {labels}, boundary IoU of 7"
    lines = [
        f"| tokens | passes | {' | '.join(columns)} | boundary IoU, linear (minus raw) |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [interval(row.get(key, {}).get("minus blurred")) for key in columns.values()]
        cell = row.get(edge, {})
        apart = f" ({interval(cell['minus raw'])})" if "minus raw" in cell else ""
        cells.append(f"{cell['value']:.1f}{apart}" if cell else "")
        lines.append(f"| {row['row']} | {row['passes']} | {' | '.join(cells)} |")
    return lines


def showcase(content: dict[str, Any]) -> str:
    """Every cure of a model with artifacts at its output: norms by block, top-1 and tasks."""
    name = MODELS.get(content["model"], content["model"])
    blocks = range(7, 12)
    tasks = task_cells(content["model"])
    heads = [*(f"block {b}" for b in blocks), "top-1 (minus raw)", *TASKS, "CorLoc"]
    lines = [
        f"\n## Every cure of {name}\n",
        f"{content['date']}: `{content['command']}`. {content['evidence'][0]} Percent of patch"
        f" tokens above that cutoff by block (from 0), 64 photos; top-1 of the model's own head on"
        " 500 ImageNet images; mean IoU of 7 classes and CorLoc as above. No direction of position"
        " is chosen for it, so `positional` leaves it as it is and `instant` is the blur; with the"
        ' fine head (`method="fine"`, one pass) the network is the raw one.\n',
        f"| model | {' | '.join(heads)} |",
        f"|---{'|---' * len(heads)}|",
    ]
    headed = [content["rows"][0] | {"row": FINE}] if FINE in tasks else []
    rows = [*content["rows"], *distilled(content["model"], tasks), *headed, {"row": "raw, blurred"}]
    for row in rows:
        norms = row.get("high-norm, percent by block")
        cells = [f"{norms[b]:.2f}" if norms else "-" for b in blocks]
        apart = f" ({interval(row['minus raw'])})" if "minus raw" in row else ""
        cells.append(f"{row['top-1']:.1f}{apart}" if "top-1" in row else "-")
        cells += tasks.get(row["row"], ["-"] * 3)
        lines.append(f"| {row['row']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def gathering(content: dict[str, Any]) -> str:
    """What denoising costs beside its passes."""
    lines = [
        f"\n## Cost of gathering, {content['size']} px\n",
        f"{content['date']}: `{content['command']}`. Four images, ten views each, demo model: CPU"
        f" time relative to the forward passes, median (range) of {content['rounds']} interleaved"
        f" rounds on {content['threads']} thread, load {content['load']:.0f}.\n",
        "| | relative to the passes |",
        "|---|---|",
    ]
    for name, one in content["cost relative to the passes alone"].items():
        lines.append(f"| {name} | {one['median']:.3f} ({one['low']:.3f} to {one['high']:.3f}) |")
    return "\n".join(lines)


def distilled(model: str, tasks: dict[str, list[str]]) -> list[dict[str, Any]]:
    """The default cure as a row of the showcase: tasks by finer.py, the rest by cured.py."""
    known = read_result(f"cured-{model}")
    if not known:
        return []
    name = "default cure (48 VOC images for the norms)"
    top1, seen = known["class token"]["top-1"], known["segmentation"]
    cells = [seen[task]["cured"][SHOWN[0]] for task in TASKS]
    shown = [f"{one['seeds'][0]:.1f} ({interval(one['minus raw'])})" for one in cells]
    tasks[name] = tasks.get("default cure", [*shown, "-"])
    norms = known["norms"]["224"]["cured"]["beyond raw's cutoff"]
    row = {"row": name, "top-1": top1["seeds"][0], "minus raw": top1["minus raw"]}
    return [row | {"high-norm, percent by block": norms}]


def task_cells(model: str) -> dict[str, list[str]]:
    """Linear probe, kNN and CorLoc by the names that the showcase has for rows of finer.py."""
    (known,) = [one for one in measured("finer-[!c]*") if one["model"] == model]
    found: dict[str, list[str]] = {}
    names = {("sub-patch views, scale 1", 10): "10 sub-patch views"}
    boxes = {(row["row"], row["passes"]): row for row in known["tasks"].get("discovery", ())}
    for row in known["tasks"]["segmentation"]:
        key = row["row"], row["passes"]
        cells = []
        for task in TASKS:
            cell = row[f"{task}, {known['train']}, mIoU of 7"]
            apart = f" ({interval(cell['minus raw'])})" if "minus raw" in cell else ""
            cells.append(f"{cell['value']:.1f}{apart}")
        box = boxes.get(key)
        apart = f" ({interval(box['minus raw'], 0)})" if box and row["row"] != "raw" else ""
        found[names.get(key, row["row"])] = [*cells, f"{box['CorLoc']:.0f}{apart}" if box else "-"]
    return found


def projection(content: dict[str, Any]) -> str:
    """Tasks before and after directions of position are removed, one column per model."""
    models = content["models"]
    names = [
        f"{MODELS[model]}, {one['removed']} removed" + ("" if one["chosen"] else " (not chosen)")
        for model, one in models.items()
    ]
    lines = [
        f"\n## Projection before and after, {content['size']} px\n",
        f"{content['date']}: `{content['command']}`. Raw, then the change when directions"
        " of position are removed, paired over images or queries. Warps and classes: every patch"
        " looks for its nearest token (100 photos, 150 VOC images); boxes: `discover` on final"
        " tokens, 100 images; depth: RMSE in meters, 35 images; cars (360 queries) and corridor"
        " (111): the nearest 100 by class token, ranked by 49 patches alone.\n",
        f"| task | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    rows: dict[str, list[str]] = {}
    for number, one in enumerate(models.values()):
        for task, found in one["tasks"].items():
            for metric, setting, before, _, apart in found:
                how = f" ({setting.partition(',')[0]})" if task in ("cars", "corridor") else ""
                digits = 3 if metric == "RMSE" else 1
                cells = rows.setdefault(f"{task}{how}: {metric}", [""] * len(models))
                cells[number] = f"{before:.{digits}f} ({interval(apart, digits)})"
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    return "\n".join(lines)


def choices(content: dict[str, Any]) -> str:
    """What was tried on training images."""
    name = MODELS.get(content["model"], content["model"])
    lines = [
        f"\n## Choices on training images: {name}, {content['size']} px\n",
        f"{content['date']}: `{content['command']}`. Ten views.",
    ]
    if "kernels" in content:
        first = content["kernels"][1]["row"]
        lines += [
            "\nKernel and width: each third of the labelled images is measured with probes of the"
            f" others; in brackets the difference to {first}.\n",
            f"| tokens | {' | '.join(f'{t}, {m}' for t in TASKS for m in SHOWN)} |",
            f"|---|{'---|' * 4}",
        ]
        for row in content["kernels"]:
            cells = [row[task][metric] for task in TASKS for metric in SHOWN]
            texts = [
                f"{c[0]:.1f} ({interval(c[4:])})" if any(c[4:]) else f"{c[0]:.1f}" for c in cells
            ]
            lines.append(f"| {row['row']} | {' | '.join(texts)} |")
    if "guidance" in content:
        lines += [
            "\nKernel, width and guidance by the image: two thirds of the labelled images"
            " train, one third is measured; in brackets the difference to raw.\n",
            f"| tokens | {' | '.join(f'linear, {metric}' for metric in SHOWN)} |",
            "|---|---|---|",
        ]
        for row in content["guidance"]:
            texts = [f"{c[0]:.1f} ({interval(c[1:4])})" for c in row["linear"].values()]
            lines.append(f"| {row['row']} | {' | '.join(texts)} |")
    return "\n".join(lines)


def interval(values: Sequence[float] | None, digits: int = 1) -> str:
    """Write a mean with its interval."""
    if not values:
        return ""
    mean, low, high = (f"{one:+.{digits}f}" for one in values)
    return f"{mean}, {low} to {high}"


HEAD = """# Finer tokens: views, projection and smoothing at equal passes

PASCAL VOC (segmentation: linear probe and kNN with 30 neighbors in a bank of 80,000 patches), an
indoor set for depth (80 + 35 images, ridge regression), 100 VOC images with boxes (CorLoc of the
consensus of `discover`, on final tokens only). Tokens in bfloat16 arithmetic. Differences are
paired over the test images, with 95 % intervals of resampled images. Rows that gain nothing are
here too: **raw, blurred** is the control of every average, and a larger input of the same cost
that of every view. Kernel and width are those of earlier probes; what was tried on training
images since is in the last tables (at scale 2 a narrower kernel has better boundaries and a lower
mean IoU, so one patch stayed the default). The number of directions is chosen without labels. No
choice saw a test image."""
