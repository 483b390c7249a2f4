"""Is the diagnosis right, and what does it cost?

    python benchmarks/diagnose.py --images PHOTOS [--classes IMAGEFOLDER] [--part cost]

- real: the demo model at 518 px on real photos: blocks, recurring places, what the output shows.
- planted: artifacts of three kinds, three fractions and five seeds in a healthy network (the first
  six blocks of the demo model), token-level F1 and verdict; 20 runs without artifacts.
- experiments: the paper's probes on the demo model and on planted artifacts.
- cost: `diagnose --quick` on 32 photos against the bare forward passes it needs, alternating.
"""

from __future__ import annotations

import argparse
import copy
import os
import platform
import statistics
import sys
import time

import torch

import clearvit as cv
from clearvit.artifacts.diagnosis import QUICK_IMAGES, QUICK_SHIFTED
from clearvit.artifacts.equivariance import VIEWS
from clearvit.artifacts.experiments import Experiments
from clearvit.artifacts.report.examples import COUNT
from clearvit.artifacts.token_probes import Probe
from clearvit.backbones.vit import VitBackbone
from clearvit.images import find_images
from data import DATA, data_path
from tables import write_tables

NORMS = cv.DiagnoseConfig(equivariance=False, experiments=False)
KINDS, FRACTIONS = ("high-norm", "low-norm", "positional"), (0.005, 0.02, 0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=data_path, default=f"{DATA}/photos")
    parser.add_argument("--classes", type=data_path, default=f"{DATA}/imagenet100")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--size", type=int, default=518, help="of the demo model")
    parser.add_argument("--planted-size", type=int, default=336, help="of planted artifacts")
    parser.add_argument("--limit", type=int, default=80, help="photos of a part, at most")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--networks", type=int, default=20, help="with random weights")
    parser.add_argument("--rounds", type=int, default=3, help="of the cost")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if not options.images.is_dir():
        sys.exit(f"'{options.images}' is not there; pass --images FOLDER with some photos.")
    torch.set_num_threads(options.threads)
    texts = []
    for part in options.parts:
        texts.append(PARTS[part](options))
        print(texts[-1], flush=True)
    if len(texts) == len(PARTS) or os.environ.get("CLEARVIT_RESULTS"):
        text = heading(options) + "\n".join(texts)
        write_tables("diagnose", text, data=("photos", "imagenet100"), models=["demo"])


def heading(options: argparse.Namespace) -> str:
    return f"""# Diagnosis: is it right, and what does it cost?

{time.strftime("%Y-%m-%d")}, {platform.machine()}, {os.cpu_count()} cores,
{options.threads} threads, torch {torch.__version__}. Reproduce:
`python benchmarks/diagnose.py --images PHOTOS --classes IMAGEFOLDER`

"""


def real(options: argparse.Namespace) -> str:
    """Artifacts of the real demo model."""
    backbone = cv.load("demo")
    limit = min(48, options.limit)
    config = cv.DiagnoseConfig(limit=limit, size=options.size, experiments=False)
    found = cv.diagnose(backbone, options.images, config=config)
    rows = []
    for block in found.blocks:
        tail = block.high
        flagged = "-" if tail is None else f"{100 * tail.fraction:.2f} %, above {tail.cutoff:.2f} x"
        share = "-" if block.attention is None else f"{100 * block.attention:.1f} %"
        border = "-" if block.border is None else f"{block.border:.2f}"
        recurring = "-" if tail is None else f"{100 * block.recurring:.0f} %"
        numbers = f"{block.largest:.2f} | {flagged} | {recurring} | {border} | {share}"
        rows.append(f"| {block.index + 1} | {numbers} |")
    evidence = "\n".join(f"- **{f.kind}**: {f.evidence}" for f in found.findings)
    after = "finds nothing" if found.after_norm is None else f"finds {found.after_norm}"
    return f"""## The demo model at {options.size} px, {len(found.observations.names)} photos

Verdict: **{found.verdict}**. Reading the norms after the final norm {after}.

{evidence}

| block | largest / median | flagged tokens | commonest place | border / inside | attention |
|---|---|---|---|---|---|
{chr(10).join(rows)}

Commonest place: in how many of the photos the same cell of the grid is flagged. Attention: share of
the class token's attention to patches that lands on flagged ones.
"""


def healthy_half(size: int) -> VitBackbone:
    """The first six blocks of the demo model: trained features before any artifact."""
    half = copy.deepcopy(cv.load("demo", size=size))
    half.network.blocks = half.network.blocks[:6]
    return VitBackbone(half.network, half.preprocessing, name="first half of demo")


def planted(options: argparse.Namespace) -> str:
    """Known artifacts, and known absence of them."""
    backbone, seeds = healthy_half(options.planted_size), range(options.seeds)
    photos = [image.source for image in find_images(options.images)[::60]]
    rows, right = [], 0
    for kind in KINDS:
        for fraction in FRACTIONS:
            scores, verdicts = [], 0
            for seed in seeds:
                sick, mask = cv.testing.planted(backbone, kind, fraction, seed)
                found = cv.diagnose(sick, photos, config=NORMS)
                verdicts += found.verdict == kind
                scores.append(f1(found, mask(photos), kind))
            right += verdicts
            middle = f"{statistics.mean(scores):.3f} ({min(scores):.3f})"
            rows.append(
                f"| {kind} | {100 * fraction:.1f} % | {verdicts} of {len(seeds)} | {middle} |"
            )
    total = len(KINDS) * len(FRACTIONS) * len(seeds)
    return f"""## Planted artifacts

First six blocks of the demo model at {options.planted_size} px, {len(photos)} photos, artifacts
from block 4 on. F1 counts tokens; for positional ones, places. Verdict right in {right} of
{total} runs.

| kind | fraction | verdict right | F1, mean (lowest) over seeds |
|---|---|---|---|
{chr(10).join(rows)}

{false_alarms(options)}
"""


def f1(found: cv.Diagnosis, truth: torch.Tensor, kind: str) -> float:
    flags = found.outlier_mask()
    if kind == "positional":
        places = found.observations.position_stats.find()
        flags, truth = (torch.zeros_like(truth[0]) if places is None else places), truth[0]
    return float(2 * (flags & truth).sum() / (flags.sum() + truth.sum()))


def false_alarms(options: argparse.Namespace) -> str:
    """Random weights, and the last block of the demo model on another photo each time."""
    from clearvit.backbones.guarded_timm import timm

    photos = [image.source for image in find_images(options.images)[::24]][: options.networks]
    random_weights = last_block = 0
    for seed in range(options.networks):
        torch.manual_seed(seed)
        network = timm.create_model("vit_tiny_patch16_224", img_size=256, depth=6, num_classes=0)
        random_weights += cv.diagnose(cv.load(network), photos[:8], config=NORMS).verdict != "none"
    demo = cv.load("demo", size=options.size)
    for photo in photos:
        last_block += cv.diagnose(demo, photo, config=NORMS).blocks[-1].high is not None
    return (
        f"Without artifacts: a verdict in {random_weights} of {options.networks} networks with"
        " random weights;"
        f" high-norm tokens in the last block of the demo model in {last_block} of"
        f" {len(photos)} photos looked at one by one."
    )


def experiments(options: argparse.Namespace) -> str:
    """The paper's probes, on real and on planted artifacts."""
    size = options.planted_size
    config = cv.DiagnoseConfig(limit=options.limit, equivariance=False, size=size)
    images = options.classes if options.classes.is_dir() else options.images
    sick, _ = cv.testing.planted(healthy_half(size), "high-norm", 0.02, 0)
    parts = []
    models = {"planted high-norm, 2 %": sick, f"demo at {size} px": cv.load("demo")}
    for name, backbone in models.items():
        found = cv.diagnose(backbone, images, config=config).experiments
        assert found is not None
        parts.append(f"### {name}\n\n{experiment_tables(found)}")
    return "## The paper's experiments\n\n" + "\n".join(parts)


def experiment_tables(found: Experiments) -> str:
    contrast = found.redundancy
    low, high = contrast.interval
    rows = [
        f"| cosine to neighbours after patch embedding | {contrast.normal:.3f} |"
        f" {contrast.outlier:.3f} | difference {contrast.difference:+.3f} ({low:+.3f} to"
        f" {high:+.3f}), AUROC {contrast.auroc:.3f} | outliers pile up near 1 |"
    ]
    published = {entry.name: entry for entry in found.published}
    for probe in (found.position, found.pixels, found.classes):
        if probe is not None:
            rows += probe_rows(probe, published.get(probe.name))
    share = 100 * found.fraction
    return f"""{found.images} images, block {found.block + 1}, {share:.2f} % outliers.

| experiment | normal | outlier | note | paper (normal / outlier) |
|---|---|---|---|---|
{chr(10).join(rows)}

{found.differences}
"""


def probe_rows(probe: Probe, published: object) -> list[str]:
    kinds = {row.kind: row for row in probe.rows}
    paper = {row.kind: row for row in getattr(published, "rows", ())}
    rows = []
    for i, metric in enumerate(probe.metrics):
        cells = [
            f"{kinds[k].means[i]:.2f} ± {kinds[k].sds[i]:.2f}" if k in kinds else "-"
            for k in ("normal", "outlier")
        ]
        theirs = "-"
        if {"normal", "outlier"} <= set(paper) and i < len(paper["normal"].means):
            theirs = f"{paper['normal'].means[i]} / {paper['outlier'].means[i]}"
        extra = f"class token {kinds['class'].means[i]:.2f}" if "class" in kinds else probe.note
        rows.append(f"| {probe.name}: {metric} | {cells[0]} | {cells[1]} | {extra} | {theirs} |")
    return rows


def cost(options: argparse.Namespace) -> str:
    """Seconds of the quick diagnosis over seconds of its bare forward passes."""
    backbone, rounds = cv.load("demo", size=options.size), options.rounds
    photos = [image.source for image in find_images(options.images)[:QUICK_IMAGES]]
    config = cv.DiagnoseConfig(quick=True)
    passes = len(photos) + VIEWS * QUICK_SHIFTED + COUNT
    ratios, seconds = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        bare(backbone, photos, config.batch)
        middle = time.perf_counter()
        cv.diagnose(backbone, photos, config=config)
        seconds.append(time.perf_counter() - middle)
        ratios.append(seconds[-1] / (middle - began))
    return f"""## Cost

`clearvit diagnose --quick` on {len(photos)} photos at {options.size} px takes
{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f}, {rounds} alternating
rounds) the time of decoding the photos and the {passes} forward passes
it needs; {statistics.median(seconds):.0f} s here.
"""


def bare(backbone: cv.Backbone, photos: list[object], batch: int) -> None:
    """Decode the same photos and run the same number of forward passes, nothing else."""
    size = backbone.preprocessing.size
    for start in range(0, len(photos), batch):
        backbone.tokens(photos[start : start + batch])
    pixels = torch.zeros(batch, 3, *size)
    for _ in range((VIEWS * QUICK_SHIFTED + COUNT) // batch):
        backbone.tokens(pixels)


PARTS = {"real": real, "planted": planted, "experiments": experiments, "cost": cost}

if __name__ == "__main__":
    main()
