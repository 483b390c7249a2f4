"""What artifact tokens know."""

from __future__ import annotations

from typing import Any

from evidence import read_result


def page() -> str:
    content = read_result("token_probes")
    lines = [
        "# What artifact tokens know",
        "",
        f"{content['date']}: `{content['command']}`. The experiments of *Vision Transformers Need"
        " Registers* on models with artifact tokens, beside the paper's numbers for DINOv2"
        " ViT-g/14 (thousands of images). Mean and standard deviation over three seeds.",
    ]
    for model, entry in content["models"].items():
        found = entry["experiments"]
        lines += ["", f"## {model}, {entry['size']} px", ""]
        lines += [
            f"{found['images']} images, block {found['block']} (from 0),"
            f" {100 * found['fraction']:.2f} % of the tokens are artifacts. {entry['attention']}",
            "",
            *redundancy(found["redundancy"]),
        ]
        published = {one["name"]: one for one in found["published"]}
        for name in ("position", "pixels", "classes"):
            if found[name] is not None:
                lines += ["", *table(found[name], published.get(found[name]["name"]))]
    return "\n".join(lines) + "\n"


def redundancy(found: dict[str, Any]) -> list[str]:
    low, high = found["interval"]
    return [
        f"Cosine to the four neighbors after patch embedding: {found['outlier']:.3f} at artifact"
        f" positions, {found['normal']:.3f} at others (difference {found['difference']:+.3f},"
        f" {low:+.3f} to {high:+.3f}; AUROC {found['auroc']:.2f}). The paper's outliers pile up"
        " near 1."
    ]


def table(probe: dict[str, Any], published: dict[str, Any] | None) -> list[str]:
    theirs = {row["kind"]: row for row in published["rows"]} if published else {}
    names = list(published["metrics"]) if published and theirs else []
    lines = [
        f"| {probe['name']} probe | {' | '.join(probe['metrics'])} | tokens"
        + "".join(f" | paper: {name}" for name in names)
        + " |",
        "|" + "---|" * (2 + len(probe["metrics"]) + len(names)),
    ]
    for row in probe["rows"]:
        cells = [row["kind"], *scores(row), str(row["count"])]
        if names:
            cells += scores(theirs[row["kind"]]) if row["kind"] in theirs else [""] * len(names)
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", probe["note"]]


def scores(row: dict[str, Any]) -> list[str]:
    stds = row["sds"]
    return [
        ("" if mean is None else f"{mean:.2f}") + (f" ± {std:.2f}" if std else "")
        for mean, std in zip(row["means"], stds, strict=True)
    ]
