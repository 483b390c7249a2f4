"""Metric learning on classes that were never seen."""

from __future__ import annotations

from evidence import read_result


def page() -> str:
    content = read_result("finetune")
    lines = [
        "# Metric learning: classes that were never seen",
        "",
        f"{content['date']}: `{content['command']}`. Cars: 15 classes to train (three of them"
        " choose the epoch), 15 others to search, 12 images each, 224 px; low-rank changes, 10"
        " epochs at most. In brackets the paired difference with its 95 % interval.",
        "",
        "| model | loss | ranked by | metric | raw | finetuned | CPU minutes, epoch |",
        "|---|---|---|---|---|---|---|",
    ]
    for key, row in content["rows"].items():
        model, loss = key.split(" / ")
        for setting, metric, old, new, (mean, low, high) in row["unseen"]:
            apart = f"({mean:+.1f}, {low:+.1f} to {high:+.1f})"
            cost = f"{row['cpu minutes']:.0f}, {row['report']['best_epoch']}"
            cells = (
                model,
                loss,
                setting,
                metric,
                f"{old:.1f}",
                f"{new:.1f} {apart}",
                cost,
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
