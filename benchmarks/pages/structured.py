"""Base and re-ranked retrieval by family and patch weight."""

from __future__ import annotations

from evidence import read_result

SHOWN = ("P@1", "RP", "MAP@R", "P@1 (diml)", "RP (diml)", "MAP@R (diml)")


def page() -> str:
    content = read_result("structured")
    if not content:
        return ""
    lines = [
        "# Families of Beyond the CLS Token: base and re-ranked",
        "",
        f"{content['date']}: `{content['command']}`. Cars, 5 classes of 12 images (30 queries),"
        " 224 px, 49 patches of an image, transport of the whole mass, score = cosine + patch"
        " similarity as in the paper (no gate), all images re-ranked. Changes of MAP@R are paired,"
        " with 95 % intervals. `diml` is the convention of R of the papers' tables.",
        "",
        f"| model | ranked by | {' | '.join(SHOWN)} | change of MAP@R |",
        f"|{'---|' * (len(SHOWN) + 3)}",
    ]
    for name, rows in content["rows"].items():
        for place, row in enumerate(rows):
            setting = row["setting"].removesuffix(", weight 1").removeprefix("transport, ")
            cells = [f"{row['metrics'][one]:.1f}" for one in SHOWN]
            change = row["change"]
            last = (
                "" if change is None else f"{change[0]:+.1f} ({change[1]:+.1f} to {change[2]:+.1f})"
            )
            first = name if place == 0 else ""
            lines.append(f"| {' | '.join([first, setting, *cells, last])} |")
    return "\n".join(lines) + "\n"
