"""The automatic mass of transport."""

from __future__ import annotations

from evidence import read_result


def page() -> str:
    content = read_result("mass")
    models = content["models"]
    lines = [
        "# How much two images share: the automatic mass of transport",
        "",
        f"{content['date']}: `{content['command']}`. Crops of half the width and height of"
        f" {content['photos']} photos, shifted; 224 px, 7 x 7 patches; mass and its 95 % interval"
        " over photos.",
        "",
        f"| two crops share | {' | '.join(models)} |",
        "|---|" + "---|" * len(models),
    ]
    for name in next(iter(models.values())):
        cells = ["{:.2f} ({:.2f} to {:.2f})".format(*rows[name]) for rows in models.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
