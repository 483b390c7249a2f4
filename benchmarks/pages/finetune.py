"""Metric learning on classes that were never seen."""

from __future__ import annotations

from typing import Any

from evidence import read_result


def page() -> str:
    content = read_result("finetune")
    if not content:
        return ""
    lines = [
        "# Metric learning: classes that were never seen",
        "",
        f"{content['date']}: `{content['command']}`. Every second class to train"
        " and judge, the others to search (cars: 30 classes of 12 images; flowers: 30 of 14;"
        " imagenet100: 100 of 5), 224 px, projection to 128 channels."
        " Differences are paired, with 95 % intervals. The verdict is what the verb says from the"
        " training half alone; where it is no, `clearvit finetune` writes nothing, and the unseen"
        " columns show what `--keep-anyway` would have done.",
        "",
        "| data | model | trains | held-out classes of the training half: P@1, MAP@R | verdict |"
        " unseen, ranked by | P@1 | MAP@R | CPU minutes |",
        f"|{'---|' * 9}",
    ]
    for key, row in content["rows"].items():
        model, unfreeze, *other = key.split(" / ")
        report, unseen = row["report"], row["unseen"]
        judged = ", ".join(
            f"{100 * report['before'][name]:.1f} to {100 * report['after'][name]:.1f}"
            f" ({100 * low:+.1f} to {100 * high:+.1f})"
            for name, (_, low, high) in report["change"].items()
        )
        chosen = {-1: "as it came", 0: "fitted projection"}.get(
            report["chosen"], f"epoch {report['chosen']}"
        )
        trains = "projection" if unfreeze == "none" else f"projection, {unfreeze}"
        verdict = f"{'yes' if report['better'] else 'no'} ({chosen})"
        for place in range(0, len(unseen), 2):
            cells = [show(one) for one in unseen[place : place + 2]]
            known = (other[0] if other else "cars", model, trains, judged, verdict)
            first = known if place == 0 else ("",) * len(known)
            minutes = f"{row['cpu minutes']:.1f}" if place == 0 else ""
            whole = (*first, unseen[place][0], *cells, minutes)
            lines.append(f"| {' | '.join(whole)} |")
    return "\n".join(lines) + "\n"


def show(found: list[Any]) -> str:
    _, _, old, new, change = found
    if change is None:
        return f"{old:.1f} to {new:.1f}"
    mean, low, high = change
    return f"{old:.1f} to {new:.1f} ({mean:+.1f}, {low:+.1f} to {high:+.1f})"
