"""Speed and quality of pruned and exported models."""

from __future__ import annotations

from typing import Any

from evidence import read_result

SIZES = {"deit": 224, "deit_ti": 224, "dinov2": 518}
TITLES = {
    "deit": "DeiT-S/16, 224 px",
    "deit_ti": "DeiT-Ti/16, 224 px",
    "dinov2": "DINOv2 ViT-S/14, 518 px",
}
KEEP = 0.7
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


def page() -> str:
    content = read_result("prune")
    columns = content["columns"]
    rounds = sorted({row["rounds"] for one in columns for row in one["rows"]})
    dates = sorted({one["date"] for one in columns})
    lines = [
        "# Pruned and exported models: speed",
        "",
        f"{columns[0]['machine'].split(', ')[0]}, {dates[-1]}. Keep {KEEP} before blocks 3, 6, 9 of"
        f" 12, default scorer. Times as fast as dense timm in the same rounds, median (range) of"
        f" {rounds[0]} to {rounds[-1]} interleaved rounds; `MACs` is how many times fewer"
        " multiply-accumulates, scoring included. One process per thread count; one thread in CPU"
        " seconds, two in wall-clock seconds; graphs have a fixed batch. The load is that of the"
        " machine before and after, from other processes too:"
        " **above 2 on this machine the spread is wide and two threads mean little**; a column is"
        " measured again by its own command.",
        "",
        "The last two rows only cut the sequence, without any scoring, and compare with the same"
        " blocks on whole sequences: what a pruned model could reach at best.",
        "",
        "The rows of dense graphs show how much of a gain is the runtime's own.",
        "",
        "Reproduce: `python benchmarks/prune.py --work WORK`",
    ]
    lines += floor_table(columns)
    for model in SIZES:
        lines += table(model, [one for one in columns if one["model"] == model])
    return "\n".join(lines + quality_table(content["quality"])) + "\n"


def floor_table(columns: list[dict[str, Any]]) -> list[str]:
    """How much of the MAC ratio pruning reaches, beside cutting alone in the same rounds."""
    lines = [
        "",
        "## Speed as a fraction of the MAC ratio",
        "",
        "The goal is 0.97. Where cutting alone stays below it, no scorer can reach it.",
        "",
        "| | threads | batch | pruned | cut, own weights |",
        "|---|---|---|---|---|",
    ]
    for one in sorted(columns, key=lambda c: (list(SIZES).index(c["model"]), c["threads"])):
        rows = {row["row"]: row for row in one["rows"] if "load" not in row}
        if "pruned" in rows and CONTROL[0] in rows:
            cells = [
                f"{rows[name]['ratio'][0] / rows[name]['macs']:.2f}"
                for name in ("pruned", CONTROL[0])
            ]
            start = f"| {TITLES[one['model']]} | {one['threads']} | {one['batch']} |"
            lines.append(f"{start} {' | '.join(cells)} |")
    return lines


def table(model: str, columns: list[dict[str, Any]]) -> list[str]:
    lines = ["", f"## {TITLES[model]}", ""]
    if not columns:
        return [*lines, "Not measured since the scorer changed."]
    columns = sorted(columns, key=lambda one: (one["threads"], one["batch"]))
    names = [
        f"{c['threads']} thread{'s' * (c['threads'] > 1)}, batch {c['batch']}" for c in columns
    ]
    lines += [f"| | MACs | {' | '.join(names)} |", f"|---|---|{'---|' * len(columns)}"]
    for row in ROWS:
        cells = [{one["row"]: one for one in column["rows"]}.get(row) for column in columns]
        known = [cell for cell in cells if cell is not None]
        if known:
            shown = " | ".join(map(ratio_cell, cells))
            lines.append(f"| {row} | {known[0]['macs']:.2f} | {shown} |")
    speeds = " | ".join(f"{column['rows'][0]['speed']:.2f}" for column in columns)
    loads = " | ".join("{:.1f} to {:.1f}".format(*column["load"]) for column in columns)
    return [*lines, f"| *dense timm, images/s* | | {speeds} |", f"| *load* | | {loads} |"]


def ratio_cell(one: dict[str, Any] | None) -> str:
    if one is None:
        return "-"
    earlier = " (earlier, load {:.0f} to {:.0f})".format(*one["load"]) if "load" in one else ""
    return "{:.2f} ({:.2f} to {:.2f})".format(*one["ratio"]) + earlier


def quality_table(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    lines = [
        "",
        f"## Quality of fewer bits: DeiT-Ti, {rows[0]['images']} images of 100 ImageNet classes",
        "",
        "Cosines of class token and map to the dense torch model and, in brackets, to the pruned"
        " torch model. int8: NNCF, calibrated on 96 other photos.",
        "",
        "| | top-1, % | class token | map |",
        "|---|---|---|---|",
    ]
    for row in rows:
        own = row["own"] or ["", ""]
        cells = [
            f"{row[k]:.3f}" + (f" ({o:.3f})" if o else "")
            for k, o in zip(("cls", "map"), own, strict=True)
        ]
        lines.append(f"| {row['row']} | {row['top1']:.1f} | {' | '.join(cells)} |")
    return lines
