"""Ranks, trained parts and recipes of the cure."""

from __future__ import annotations

from typing import Any

from evidence import read_results
from pages.cured import cell

JUDGES = {"ranks": "test images", "classifiers": "test images"}
JUDGES |= dict.fromkeys(
    ("recipes", "students"), "labelled images that train no probe, for a choice"
)
FACTS = {"file MB": 1, "peak GB": 2, "CPU s per step": 2, "distance gone": 0, "class cosine": 3}
SAME = "same class"  # of held-out photos, by a classifier's own head


def page() -> str:
    """Render every table that has been measured."""
    found = [one for table in JUDGES for one in read_results(f"cure-{table}-*")]
    heads = [heads_section(one) for one in read_results("cure-heads-*")]
    return "\n".join([HEAD, *map(section, found), *heads]) + "\n"


def section(content: dict[str, Any]) -> str:
    """One table; cells of facts are means over seeds."""
    photos, epochs, seeds = (content[key] for key in ("photos", "epochs", "seeds"))
    many = f"{len(seeds)} seed{'s' * (len(seeds) > 1)}"
    numbers = f"{content.get('labelled', 200)} labelled, {content.get('tested', 100)} judging"
    if "linear" not in content["raw"]:
        numbers = "class tokens only, 500 images"
    judged = f"judged on {JUDGES[content['table']]} ({numbers})"
    if not content["raw"]:
        judged = "judged on held-out photos alone, by no task"
    tasks = [task for task in ("linear", "kNN", "1-NN", "top-1") if task in content["raw"]]
    facts = FACTS | ({SAME: 0} if "top-1" in tasks and SAME in content["rows"][0] else {})
    lines = [
        f"\n## {content['model']}: {content['table']}\n",
        f"{content['date']}: `{content['command']}`. {photos} photos, {epochs} epochs at"
        f" {content['size']} px, {many}; {judged}.\n",
        f"| cure | {' | '.join([*facts, *tasks])} |",
        f"|---{'|---' * (len(facts) + len(tasks))}|",
    ]
    raw = [f"{_found(content['raw'], task)['seeds'][0]:.1f}" for task in tasks]
    lines.append(f"| none | {' | '.join(['-'] * len(facts) + raw)} |")
    for row in content["rows"]:
        means = [f"{sum(row[k]) / len(row[k]):.{digits}f}" for k, digits in facts.items()]
        cells = [cell(_found(row, task)) for task in tasks]
        lines.append(f"| {row['row']} | {' | '.join(means + cells)} |")
    return "\n".join(lines)


def heads_section(content: dict[str, Any]) -> str:
    """What became of the predictions of a classifier's own head, from cure_heads.py."""
    lines = [
        f"\n## {content['model']}: what keeps the head\n",
        f"{content['photos']} photos, {content['epochs']} epochs, 1 seed; raw top-1"
        f" {content['raw']:.1f}. A part of the weight change (WiSE-FT), and a linear map back to"
        " the raw features, fitted without labels and merged into the head. Top-1 less that of"
        " the raw model: on the 50 classes that may choose, on the 50 others, and on all;"
        " divergence of the predictions from raw in nats. 95 % intervals over images.\n",
        "| cure | distance gone | divergence | top-1, choice | top-1, report | top-1, all |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in content["rows"].items():
        drift = "{:.4f} ({:.4f} to {:.4f})".format(*row["divergence"])
        tops = [
            "{:+.1f} ({:+.1f} to {:+.1f})".format(*row[part])
            for part in ("choice", "report", "all")
        ]
        lines.append(f"| {name} | {row['distance gone']:.0f} | {drift} | {' | '.join(tops)} |")
    return "\n".join(lines)


def _found(row: dict[str, Any], task: str) -> dict[str, Any]:
    found: dict[str, Any] = row[task]
    return found.get("mIoU of 7", found)


HEAD = """# Cure: ranks, trained parts and recipes

Short cures, far from the default's length: they compare, and do not show what a cure can do. Cosine
distance to ten half-patch views that is gone on 24 held-out photos (percent); linear probe and kNN:
mean IoU of 7 VOC classes; 1-NN and top-1 of the model's own head: class tokens, 500 images; same
class: percent of the photos held out of the training that this head gives the class it gave before.
In brackets the paired difference to the raw model with its 95 % interval over images; of several
seeds, the means. File: what has to be passed on (the whole model where matrices train whole). Peak
memory is that of the process, its libraries included. CPU time grows with other
work on the machine: compare it within a table."""
