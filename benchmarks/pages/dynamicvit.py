"""Top-1 of a pruned classifier, trained and not."""

from __future__ import annotations

from evidence import read_result

TRAINED_AT = 0.7
TRAINED = ("no labels", "no labels, faster", "labels", "published, adapted", "published")
SCORERS = ("class", "fuse", "merge", "random")


def page() -> str:
    content = read_result("dynamicvit")
    lines = []
    for row in content["rows"]:
        mean, low, high = row["minus dense"]
        apart = "-" if row["name"] == "dense" else f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"
        shown = f"| {row['keep']:g} | {row['name']} | {row['gain']:.2f} | {row['top-1']:.1f} |"
        lines.append(f"{shown} {apart} |")
    recipes = "\n".join(
        f"- **{name}**: "
        + ", ".join(f"{key} {value}" for key, value in recipe.items())
        + f"; {content['cpu_minutes'][name]:.0f} CPU minutes."
        for name, recipe in content["recipes"].items()
    )
    done = {row["name"] for row in content["rows"]}
    left = [f"`{name}`" for name in (*SCORERS, *TRAINED) if name not in done]
    missing = f"Not run: {'; '.join(left)}." if left else ""
    trained = [r for r in content["rows"] if r["name"] in TRAINED and r["keep"] == TRAINED_AT]
    near = [row["name"] for row in trained if row["minus dense"][0] >= -1]
    goal = f"reached by {', '.join(near)}" if near else "missed by every trained row"
    return HEAD.format(
        **content, missing=missing, goal=goal, table="\n".join(lines), recipe_list=recipes
    )


HEAD = """# Top-1 of a pruned classifier, trained and not

`{model}` with its own ImageNet head at 224 px, stages before blocks 3, 6, 9. Trained at keep 0.7 on
{photos} photographs, one for each of {photos} of the 1000 classes; the other fractions use the same
weights. Top-1 on {images} other images of 100 classes; in brackets the 95 % interval of the paired
difference over resampled images. {date}, {machine}. Reproduce:
`python benchmarks/dynamicvit.py --work WORK`

| keep | choice of patches | gain in MACs | top-1, % | minus dense, points |
|---|---|---|---|---|
{table}

`class`, `fuse`, `merge` and `random` are not trained. The others are:

{recipe_list}

The goal, within one point of dense at 0.7, was {goal}. {missing} Predictors and the learned fill
cost MACs: compare rows by their gain, not by `keep` alone. The larger rate of the backbone
(`backbone_lr_scale` 0.1) was tried after the first trained row had been seen on these images.

480 photographs are 0.04 % of what DynamicViT was trained on (ImageNet, 30 epochs), so these rows
show what a small folder gives, not what the paper's training does. "published" has the paper's
schedule, losses, augmentation and EMA; with batches of 32 instead of 1024 images its learning rate
is scaled down 32 times and its EMA still holds most of the start.
"""
