"""The automatic mass of transport."""

from __future__ import annotations

from evidence import read_result


def page() -> str:
    content = read_result("mass")
    lines = [
        "# How much two images share: the automatic mass of transport",
        "",
        f"{content['date']}: `{content['command']}`. Crops of half the width and height of"
        f" {content['photos']} photos, shifted; demo model, 224 px, 7 x 7 patches.",
        "",
        "| two crops share | mass | 95 % interval |",
        "|---|---|---|",
    ]
    for name, (mean, low, high) in content["rows"].items():
        lines.append(f"| {name} | {mean:.2f} | {low:.2f} to {high:.2f} |")
    return "\n".join(lines) + "\n"
