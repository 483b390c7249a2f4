"""Are explanations true?"""

from __future__ import annotations

from evidence import read_result

NONE = "\N{EN DASH}"

ROWS = (
    ("PCK@0.05 of the lines, warped copy", "warp {} 0.05"),
    ("PCK@0.1 of the lines, warped copy", "warp {} 0.1"),
    ("lines drawn, warped copy", "warp {} lines"),
    ("lines that begin on the shared object", "{} on object"),
    ("lines from the shared object that end on it", "{} same"),
    ("… by chance: area of the object", "{} chance"),
    (
        "cosine lost by hiding what is shown, more than by hiding the same shape elsewhere (1/100)",
        "{} drop",
    ),
    ("pairs of one class (VOC) left unexplained", "{} none"),
)


def page() -> str:
    results = read_result("explanations")
    if not results:
        return ""
    models = list(results)
    dates = max(found["date"] for found in results.values())
    parts = [
        "# Are explanations true?\n",
        "224 px, 95 % CI over photos or pairs, at most as many as the heading says; percent unless"
        " said. Before: the strongest pairs of the 7 x 7 transport plan, as explanations drew them"
        " until now, which always draw something. After: mutual nearest neighbors of four views on"
        f" a grid twice as fine as the model's, clustered into parts. {dates}. Reproduce:"
        f" `python benchmarks/explanations.py --models {' '.join(models)}`\n",
    ]
    for model, found in results.items():
        lines = ["| test | before | after |", "|---|---|---|"]
        agree = cell(found.get("parts agree"))
        for title, key in ROWS:
            cells = [cell(found.get(key.format(name))) for name in ("before", "after")]
            lines.append(f"| {title} | {cells[0]} | {cells[1]} |")
        lines.append(f"| parts whose class is the same in both images | {NONE} | {agree} |")
        for name in ("same class", "different classes"):
            lines.append(
                f"| imagenet100, pairs of {name} that are explained | 100 | {cell(found[name])} |"
            )
        parts.append(f"## {model}, {found['limit']} pairs\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def cell(value: list[float] | None) -> str:
    if value is None:
        return NONE
    mean, low, high = value[:3]
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"
