"""Facets and whitening of an index, on the sets that its constants were set with."""

from __future__ import annotations

from typing import Any

from evidence import read_result

TITLES = {
    "demo": "DINOv2 ViT-S/14 (demo)",
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k": "ViT-Ti/16 AugReg",
    "deit_tiny_patch16_224": "DeiT-Ti/16",
}
HOW = """Every image of a set is in the gallery; 224 px, 7 x 7 patches, whitened ones of 64 bytes
each; the nearest 100 re-ranked by Chamfer. Whitening, facet, patch weights and weight are fitted on
the gallery by the code of `clearvit index`. Measured on the queries of the odd classes (odd queries
of places), percent; Δ is the paired difference to descriptors with its 95 % interval over classes
(queries of places). "Ratio" is the spread of the patch similarities in the score over that of the
cosines, "patches alike" means uniform patch weights instead of the attention of the class token.
The best by labels had the largest MAP@R on the even half. {date}. Reproduce: `{command}`
"""
PAGES = {
    "facets": (
        "# Facets and whitening of an index\n\nWhich vectors should an index keep, and can that be"
        " chosen without labels? The constants of `auto` were set while looking at these sets, so"
        " its numbers here are not independent of them; [held-out sets](facets_held_out.md) are.\n",
        "python benchmarks/facets.py",
    ),
    "facets_held_out": (
        '# The automatic choice of an index on held-out collections\n\nThe rule of `facet="auto"`'
        " was final before these sets were looked at. voc: 449 photos of PASCAL VOC by the class"
        " of their largest mask. essex: ESSEX3IN1, 210 places photographed twice. pets: 12 photos"
        " each of 37 breeds of cats and dogs. clothing: up to 40 photos each of 10 kinds of"
        " clothes. `benchmarks/held_out_sets.py` makes the last three from public repositories.\n",
        "python benchmarks/facets.py --held-out --data FOLDER --sets essex pets clothing",
    ),
}


def page() -> str:
    """Render every table of the sets that the constants were set with."""
    return tables("facets")


def tables(name: str) -> str:
    """Render every table that has been measured, and a summary of what auto gains."""
    known = read_result(name)
    if not known:
        return ""
    title, command = PAGES[name]
    date = max(one["date"] for one in known.values())
    parts = [title, HOW.format(date=date, command=command), "<!-- notes -->\n", summary(known)]
    return "\n".join([*parts, *(table(key, content) for key, content in known.items())])


def summary(known: dict[str, Any]) -> str:
    """One line per model and set: today's default, auto, and the best by labels."""
    lines = [
        "| model | set | MAP@R, descriptors | Δ auto | auto less best by labels |"
        " P@1, descriptors | Δ auto | auto less best by labels |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for key, content in known.items():
        model, name = key.split(" ")
        rows = content["rows"]
        cells = []
        for metric in ("MAP@R", "P@1"):
            cells.append(f"{rows['descriptors'][metric]['value']['mean']:.1f}")
            cells.append(difference(rows["auto"][metric]))
            best = content.get("auto less best")
            cells.append(difference(best[metric]) if best else "\N{EN DASH}")
        lines.append(f"| {TITLES.get(model, model)} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + f"\n\n{verdict(list(known.values()))}\n"


def verdict(tables: list[dict[str, Any]]) -> str:
    """Count how often the choice is near the best, and how often it harms or helps."""
    compared = [one["auto less best"]["MAP@R"] for one in tables if "auto less best" in one]
    near = sum(one["difference"]["mean"] >= -2 for one in compared)
    changes = [one["rows"]["auto"]["MAP@R"]["difference"] for one in tables]
    harmed = sum(one["high"] < 0 for one in changes)
    helped = sum(one["low"] > 0 for one in changes)
    return (
        f"MAP@R of the choice is at most 2 points below the best by labels in {near} of"
        f" {len(compared)} tables. Against descriptors it is better beyond noise in {helped} of"
        f" {len(changes)}, worse beyond noise in {harmed}."
    )


def table(key: str, content: dict[str, Any]) -> str:
    """All rows of one model and set."""
    model, name = key.split(" ")
    lines = [
        f"## {name}, {TITLES.get(model, model)}\n",
        f"{content['images']} images, {content['queries']} queries, {content['crops']} images"
        f" cropped for the choice. {content['note']}\n",
        "| setting | P@1 | Δ | MAP@R | Δ | R@5 |",
        "|---|---|---|---|---|---|",
    ]
    for title, row in content["rows"].items():
        shown = f"{title} ({content['best']})" if title.startswith("best") else title
        lines.append(
            f"| {shown} | {row['P@1']['value']['mean']:.1f} | {difference(row['P@1'])} |"
            f" {row['MAP@R']['value']['mean']:.1f} | {difference(row['MAP@R'])} |"
            f" {row['R@5']['value']['mean']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def difference(cell: dict[str, Any]) -> str:
    """A paired difference with its interval."""
    found = cell["difference"]
    return f"{found['mean']:+.1f} [{found['low']:+.1f}, {found['high']:+.1f}]"
