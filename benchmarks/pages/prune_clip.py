"""What pruning costs a CLIP."""

from __future__ import annotations

from evidence import read_result

HEAD = """# A pruned CLIP

`python benchmarks/prune_clip.py --work build/prune_clip`. The tiny CLIP of
examples/train_tiny_clip.py (drawn shapes and captions, 8 x 8 patches, three blocks), zero-shot
classification of {tested} drawn images of 12 names by `cv.evaluate`, the same verb for dense and
pruned models. Trained: predictors on 600 other images without labels, held to the dense image
embedding. In brackets the 95 % interval, then that of the paired difference to the dense model.

| keep, scorer | top-1, % |
|---|---|"""


def page() -> str:
    """One line for each model."""
    content = read_result("prune_clip")
    if not content:
        return ""
    lines = [HEAD.format(tested=content["rows"][0]["tested"])]
    for row in content["rows"]:
        apart = row["difference"]
        more = ", {mean:+.1f} ({low:+.1f} to {high:+.1f})".format(**apart) if apart else ""
        own = f"{row['mean']:.1f} ({row['low']:.1f} to {row['high']:.1f})"
        lines.append(f"| {row['model']} | {own}{more} |")
    return "\n".join(lines) + "\n"
