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

PAIRS = {
    "same class": "imagenet100, pairs of one class",
    "different classes": "imagenet100, pairs of different classes",
    "kinds of cars": "cars, pairs of different models, which share parts,",
}

KINDS = {"fixed": "one threshold", "null": "against random images"}


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
        " a grid twice as fine as the model's, clustered into parts. Whether a pair is explained at"
        " all was decided by one threshold until now; now a pair that does not stand out from"
        " random images of the index needs more strong matches. Chosen on the even classes of"
        " imagenet100, measured on other images of the odd ones, twice as many pairs as the heading"
        f" says. {dates}."
        " Reproduce:"
        f" `python benchmarks/explanations.py --models {' '.join(models)}`\n",
    ]
    for model, found in results.items():
        lines = ["| test | before | after |", "|---|---|---|"]
        agree = cell(found.get("parts agree"))
        for title, key in ROWS:
            cells = [cell(found.get(key.format(name))) for name in ("before", "after")]
            lines.append(f"| {title} | {cells[0]} | {cells[1]} |")
        lines.append(f"| parts whose class is the same in both images | {NONE} | {agree} |")
        lines += pair_rows(found)
        parts.append(f"## {model}, {found['limit']} pairs\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def pair_rows(found: dict[str, list[float]]) -> list[str]:
    """Rows about pairs that are explained; older results know one threshold for all pairs."""
    rows = []
    for name, title in PAIRS.items():
        for key, ending in KINDS.items():
            value = found.get(f"{name}, {key}", found.get(name) if key == "fixed" else None)
            if value is not None:
                rows.append(f"| {title} that are explained, {ending} | 100 | {cell(value)} |")
    return rows


def cell(value: list[float] | None) -> str:
    if value is None:
        return NONE
    mean, low, high = value[:3]
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"
