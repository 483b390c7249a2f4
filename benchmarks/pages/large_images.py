"""Pruning at 518 px beside the dense model on a smaller image."""

from __future__ import annotations

from typing import Any

from evidence import read_result


def page() -> str:
    content = read_result("large-images")
    lines = []
    for row in content["rows"]:
        cells = [row["name"], row["setting"], f"{row['gain']:.2f}"]
        if row["name"] == "dense":
            cells += ["1", "1", "1", "-", percentage(row), "-", "-"]
        else:
            cells += ["{:.2f} ({:.2f} to {:.2f})".format(*row["speed"])]
            cells += [f"{row['class token']:.3f}", f"{row['map']:.3f}"]
            cells += [apart(row, "map minus fuse", ".3f")]
            cells += [percentage(row)]
            cells += [apart(row, f"mIoU minus {other}", ".1f") for other in ("fuse", "dense")]
        lines.append("| " + " | ".join(cells) + " |")
    probe = "Segmentation was not measured."
    if any("mIoU" in row for row in content["rows"]):
        probe = (
            "mIoU: linear probe on seven well-populated classes of VOC,"
            f" {content['train']} labelled and {content['test']} test images, fitted and tested"
            " with the same model."
        )
    return HEAD.format(**content, probe=probe, table="\n".join(lines))


def percentage(row: dict[str, Any]) -> str:
    return f"{row['mIoU']:.1f}" if "mIoU" in row else "-"


def apart(row: dict[str, Any], name: str, form: str) -> str:
    if name not in row or (row["name"] == "fuse" and name.endswith("fuse")):
        return "-"
    mean, low, high = (format(value, f"+{form}") for value in row[name])
    return f"{mean} ({low} to {high})"


HEAD = """# Large images: prune, or use a smaller image

`demo` (DINOv2 ViT-S/14) at 518 px, nothing trained. `fuse` and `merge` merge before blocks 3, 6 and
9; "smaller image" is the dense model on a smaller image, its map upsampled. All have about as many
MACs. {date}, {machine}. Reproduce: `{command}`

Cosines to the dense model at 518 px on {photos} photos. {probe} In brackets 95 % intervals of
paired differences over images. Speed: CPU time of one image in float32, {rounds} interleaved rounds
on {threads} thread, median and range; the machine was busy (load {load:.0f} on two cores).

| | setting | gain in MACs | times as fast | class token | map | map minus `fuse` | mIoU of 7, % \
| minus `fuse` | minus dense |
|---|---|---|---|---|---|---|---|---|---|
{table}

"-": not measured.
"""
