"""Quality of tokens against views and registers."""

from __future__ import annotations

from typing import Any

import numpy as np

from clearvit.comparison.curves import Curve, Series
from evidence import read_result


def figure_name(key: str) -> str:
    over, model = key.split(" / ")
    return f"curve-{over}-{model.split('.')[0]}"


def read_curve(row: dict[str, Any]) -> Curve:
    lists = ("counts", "quality", "low", "high")
    series = [
        Series(**{k: tuple(v) if k in lists else v for k, v in s.items()}) for s in row["series"]
    ]
    return Curve(row["model"], row["over"], tuple(series), row["images"])


def page() -> str:
    content = read_result("curves")
    if not content:
        return ""
    lines = [
        "# Curves over views and registers",
        "",
        f"{content['date']}: `{content['command']}`, 224 px, on one thread. Quality is the mean"
        " cosine of patch tokens to clean ones: for views, to 64 other views of the same kind; for"
        " registers, of one forward pass of the cured model to its teacher, on held-out photos.",
    ]
    for key, row in content["rows"].items():
        found = read_curve(row)
        photos = f"{found.images} photos, {row['cpu minutes']:.0f} CPU minutes"
        names = [one.name for one in found.series]
        lines += ["", f"## {found.over.capitalize()}: {found.model}", "", f"{photos}.", ""]
        lines += [f"| {found.over} | {' | '.join(names)} |", f"|{'---|' * (1 + len(names))}"]
        for place, count in enumerate(found.series[0].counts):
            cells = [cell(one, place) for one in found.series]
            lines.append(f"| {count} | {' | '.join(cells)} |")
        lines += ["", f"Fit of {found.formula}:", ""]
        for one in found.series:
            shown = ", ".join(f"{name} = {value:.4g}" for name, value in one.parameters.items())
            lines.append(f"- {one.name}: {shown}; largest residual {residual(one):.4f}")
        lines += ["", f"![{found.over} of {found.model}](../images/{figure_name(key)}.png)"]
    return "\n".join(lines) + "\n"


def cell(one: Series, place: int) -> str:
    if not one.low:
        return f"{one.quality[place]:.4f}"
    return f"{one.quality[place]:.4f} ({one.low[place]:.4f} to {one.high[place]:.4f})"


def residual(one: Series) -> float:
    return float(abs(one.fit_at(np.array(one.counts, dtype=float)) - one.quality).max())
