"""Fluidity and size of the microscope."""

from __future__ import annotations

from evidence import read_result

GOAL = 30  # frames a second


def page() -> str:
    found = read_result("microscope")
    hover, hundred, twelve = found["hover"], found["hundred"], found["twelve"]
    rate = hover["frames a second"]
    reached = "reached" if rate > GOAL else "missed"
    rows = [
        ("pointer over 74 x 74 patches, two models", hover),
        ("scrolling 100 images, two models", hundred),
    ]
    table = "\n".join(
        f"| {name} | {one['frames a second']:.1f} | {one['median ms']:.1f} |"
        f" {one['95 % within ms']:.1f} | {one['seconds until shown']:.1f} |"
        for name, one in rows
    )
    machine = f"{hover['cores']} cores"
    loads = ", ".join(f"{found[part]['load']:.1f}" for part in ("hover", "hundred"))
    size = f"{twelve['bytes'] / 1e6:.1f} MB; the goal was less than 10"
    return f"""# Microscope, fluidity and size

Headless chromium without a GPU, {machine}, load while it ran {loads}, {hover["date"]};
the demo model, raw and cured. Every frame moves the pointer and draws both maps anew
({hover["maps drawn a frame"]:.2f} drawings a frame). Reproduce: `python benchmarks/microscope.py`

| page | frames a second | median, ms | 95 % within, ms | shown after, s |
|---|---|---|---|---|
{table}

The goal of more than {GOAL:.0f} frames a second is {reached}; a browser draws 60 at most. Computing
and drawing takes the script {hover["script ms, fastest tenth"]:.1f} ms in the fastest tenth of the
frames and {hover["script ms, median"]:.1f} ms in the median; 33 ms are 30 frames a second.

Twelve images at the model's own size (518 px), two models, {twelve["blocks"]} blocks each:
{size}. A hundred images at 224 px: {hundred["bytes"] / 1e6:.1f} MB.
"""
