"""Which scorer and fill prune best without training."""

from __future__ import annotations

from typing import Any

from evidence import read_result

MODELS = (
    "demo",
    "deit_tiny_patch16_224",
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k",
)
TITLES = ("DINOv2 ViT-S/14 (demo)", "DeiT-Ti/16", "AugReg ViT-Ti/16")


def page() -> str:
    content = read_result("prune_choice")
    order = sorted(content["ranking"], key=lambda scorer: -content["ranking"][scorer][2])
    lines = [
        "# Which scorer, which fill: pruning without training",
        "",
        f"The choosing halves prefer `{order[0]}`, then {', '.join(f'`{o}`' for o in order[1:])}."
        " Mean difference to the dense model over three models and keep 0.9, 0.7, 0.5, in points"
        " (class token: top-1 or 1-NN; map: mIoU of seven VOC classes):",
        "",
        "| scorer | class token | map | mean | class token, reporting half | map | mean |",
        "|---|---|---|---|---|---|---|",
    ]
    for scorer in order:
        numbers = [*content["ranking"][scorer], *content["confirmed"][scorer]]
        lines.append(f"| `{scorer}` | {' | '.join(f'{n:+.1f}' for n in numbers)} |")
    lines += ["", *METHOD.splitlines(), "", f"{content['machine']}, {content['date']}."]
    lines.append("Reproduce: `python benchmarks/prune_choice.py --work WORK`")
    for model, title in zip(MODELS, TITLES, strict=True):
        lines += section(title, [row for row in content["rows"] if row["model"] == model])
    return "\n".join(lines) + "\n"


def section(title: str, rows: list[dict[str, Any]]) -> list[str]:
    task = rows[0]["report"]["task"]
    lines = ["", f"## {title}", ""]
    lines += [
        f"| keep | scorer | fill | draws | MACs | {task}, % | minus dense | class cosine |"
        " mIoU, % | minus dense | map cosine |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        half = row["report"]
        draws = row["control"] or ("as √n" if row["scorer"] in ("fuse", "merge") else "-")
        lines.append(
            f"| {row['keep']:g} | {row['scorer']} | {row['fill']} | {draws} | {row['gain']:.2f} |"
            f" {half['right']:.1f} | {interval(half['minus dense'])} |"
            f" {half['class cosine']:.3f} | {half['mIoU']:.1f} |"
            f" {interval(half['mIoU minus dense'])} | {half['map cosine']:.3f} |"
        )
    return lines


def interval(numbers: list[float]) -> str:
    return "{:+.1f} ({:+.1f} to {:+.1f})".format(*numbers)


METHOD = """\
Class token: 245 images of 49 ImageNet classes for the choice, 255 images of 51 others for the
numbers; top-1 of the model's own classifier, of DINOv2 leave-one-out 1-NN within the half. Map:
ridge probe on the restored map at 224 px, fitted on 100 labelled VOC images with the same pruned
model, 75 test images for the choice and 75 others for the numbers. Differences are paired, with
their 95 % interval over images. MACs: how many times fewer, scoring included. Draws: a patch that
holds n draws the attention of the square root of n equal ones (the default), of one, or of n as in
ToMe; the ranking has the default. The square root was chosen by `fuse` at 0.7 and 0.5 after means
over both halves had been seen, so between the three ways of drawing no half is untouched."""
