"""Cured models beside their teachers."""

from __future__ import annotations

from typing import Any

from evidence import read_results

BEYOND = "beyond raw's cutoff"


def page() -> str:
    """Render what has been measured."""
    parts = [HEAD]
    parts += [section(one) for one in read_results("cured-*")]
    return "\n".join(parts) + "\n"


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


HEAD = """# Cured models: one pass beside the teacher's ten

At 224 px: linear probe and kNN (30 neighbors) on PASCAL VOC, 200 labelled and 150 test images, mean
IoU and boundary IoU of 7 classes; leave-one-out 1-NN of class tokens, and top-1 of a classifier's
own head, on 500 images of 100 ImageNet classes. In brackets the paired difference to raw with its
95 % interval over images. No choice saw a test image."""
