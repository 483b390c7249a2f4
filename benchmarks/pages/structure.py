"""Structure of the patches, and what re-ranking gains."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import spearmanr

from evidence import read_result

COLLECTIONS = {"cars": "MAP@R", "flowers": "MAP@R", "corridor": "R@1"}
PERMUTATIONS = 10_000
MEASURES = ("smoothness", "separation", "corners", "background")


def changes(content: dict[str, Any]) -> np.ndarray:
    return np.array([row["re-ranked"] - row["base"] for row in content["rows"].values()])


def values_of(content: dict[str, Any], name: str) -> np.ndarray:
    return np.array([row["structure"][name] for row in content["rows"].values()])


def correlate(content: dict[str, Any], name: str) -> tuple[float, float]:
    """Rank correlation of a measure with the change, and its permutation p value."""
    values, change = values_of(content, name), changes(content)
    found = float(spearmanr(values, change).statistic)
    generator = np.random.default_rng(0)
    orders = [generator.permutation(change) for _ in range(PERMUTATIONS)]
    ranks, others = rank(values), np.array([rank(one) for one in orders])
    shuffled = (others - others.mean(1, keepdims=True)) @ (ranks - ranks.mean())
    shuffled /= np.linalg.norm(others - others.mean(1, keepdims=True), axis=1)
    shuffled /= np.linalg.norm(ranks - ranks.mean())
    return found, float(np.mean(np.abs(shuffled) >= abs(found) - 1e-9))


def rank(values: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(values)).astype(float)


def predict_signs(content: dict[str, Any], name: str) -> tuple[int, int]:
    """Rows whose sign is right by a cut and a direction learned on the other collections."""
    names = [key.rsplit(" / ", 1)[1] for key in content["rows"]]
    values, gained = values_of(content, name), changes(content) > 0
    right = 0
    for held_out in COLLECTIONS:
        inside = np.array([one == held_out for one in names])
        cuts = np.sort(values[~inside])
        best = max(
            (
                (np.mean((way * values[~inside] > way * cut) == gained[~inside]), way, cut)
                for cut in (cuts[:-1] + cuts[1:]) / 2
                for way in (1, -1)
            ),
        )
        right += int(np.sum((best[1] * values[inside] > best[1] * best[2]) == gained[inside]))
    return right, len(names)


def page() -> str:
    content = read_result("structure")
    change = changes(content)
    gained = int((change > 0).sum())
    lines = [
        "# Structure of the patches, and what re-ranking by them gains",
        "",
        f"{content['date']}: `{content['command']}`. {content['images']} images of each collection"
        f" at {content['size']} px; re-ranking by symmetric Chamfer over 49 patches, weight 1, no"
        " gate.",
        "",
        "| backbone | collection | smoothness | separation | corners | background | metric | base |"
        " re-ranked | change |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for key, row in content["rows"].items():
        name, collection = key.rsplit(" / ", 1)
        cells = [f"{row['structure'][measure]:.2f}" for measure in MEASURES]
        base, after = row["base"], row["re-ranked"]
        cells += [row["metric"], f"{base:.1f}", f"{after:.1f}", f"{after - base:+.1f}"]
        lines.append(f"| {name} | {collection} | {' | '.join(cells)} |")
    lines += ["", "## Does a measure predict the change?", ""]
    lines += [
        f"Rank correlation over the {len(change)} rows (which are not independent: backbones and"
        " collections repeat, so the p values of permutations are too small). Sign: a cut learned"
        f" on two collections, tried on the third; always guessing the commoner sign is right in"
        f" {max(gained, len(change) - gained)} of {len(change)}.",
        "",
        "| measure | rank correlation | p | sign predicted |",
        "|---|---|---|---|",
    ]
    for name in MEASURES:
        (found, p_value), (right, count) = correlate(content, name), predict_signs(content, name)
        lines.append(f"| {name} | {found:+.2f} | {p_value:.3f} | {right} of {count} |")
    return "\n".join(lines) + "\n"
