"""Do test-time registers remove high-norm tokens, and what do they cost?

    python benchmarks/testtime.py --images PHOTOS --classes IMAGEFOLDER

Neurons are found on every other photo; everything is measured on the photos between them. Class
tokens are judged by leave-one-out 1-NN on an ImageFolder. On one core it takes half an hour.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

import clearvit as cv
from clearvit.artifacts.outliers import Outliers
from clearvit.backbones import neurons as neurons_module
from clearvit.backbones.neurons import move_to_register
from clearvit.backbones.vit import VitBackbone
from clearvit.cures.activations import ActivationReader, Activity
from clearvit.cures.test_time import (
    CHECKED,
    Neuron,
    RegisterNeurons,
    find_neurons,
    selectivity,
    with_neurons,
)
from clearvit.images import ImageSource, find_images
from clearvit.progress import Meter
from data import DATA, data_path
from tables import write_tables

SCORES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a log(a/b)": selectivity,
    "a - b": lambda a, b: a - b,
    "a (published)": lambda a, b: a,
}


@dataclass(frozen=True)
class Measured:
    """One model on some photos."""

    norms: Tensor  # (I, L, N)
    patches: Tensor  # (I, N, C) after the final norm
    classes: Tensor  # (I, C)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=data_path, default=f"{DATA}/photos")
    parser.add_argument("--classes", type=data_path, default=f"{DATA}/imagenet100")
    parser.add_argument("--size", type=int, default=518)
    parser.add_argument("--find", type=int, default=100)
    parser.add_argument("--photos", type=int, default=24)
    parser.add_argument("--denoised", type=int, default=4)
    parser.add_argument("--variants", type=int, default=8, help="photos for other ways; 0: none")
    parser.add_argument(
        "--large", type=int, default=20, help="classes for 1-NN at full size; 0: none"
    )
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    for folder in (options.images, options.classes):
        if not folder.is_dir():
            sys.exit(f"'{folder}' is not there; pass --images PHOTOS --classes IMAGEFOLDER.")
    torch.set_num_threads(options.threads)
    backbone = cv.load("demo", size=options.size)
    sources = find_images(options.images)
    finding, held = sources[::2], sources[1::2]
    started = time.monotonic()
    found = find_neurons(backbone, [str(p.source) for p in finding], limit=options.find)
    minutes = (time.monotonic() - started) / 60
    print(f"{found}\n{minutes:.1f} min", flush=True)
    cured = with_neurons(backbone, found.neurons)

    photos = held[:: max(1, len(held) // options.photos)][: options.photos]
    raw, edited = measured(backbone, photos), measured(cured, photos)
    sections = [head(options, found, minutes), removal(found, raw, edited)]
    write(sections)
    sections.append(f"## Does the class token suffer?\n\n{NEAREST_HEAD}")
    sections[-1] += nearest(backbone, cured, options.classes, 224, None)
    write(sections)
    sections.append(closeness(backbone, photos[: options.denoised], raw, edited))
    write(sections)
    if options.variants:
        sections.append(variants(backbone, found, finding, photos[: options.variants], raw))
        write(sections)
    if options.large:
        sections[2] += nearest(backbone, cured, options.classes, options.size, options.large)
        write(sections)


def write(sections: list[str]) -> None:
    text = "\n\n".join(section.strip() for section in sections)
    write_tables("testtime", text, data=("photos", "imagenet100"), models=["demo"])


def measured(backbone: VitBackbone, photos: Iterable[ImageSource]) -> Measured:
    parts = []
    for photo in photos:
        tokens = backbone.tokens(str(photo.source), layers=range(backbone.depth), norm=False)
        final = backbone.network.norm(torch.cat([tokens.prefix, tokens.patches], 1)).detach()[0]
        norms = torch.stack([block.norms[0] for block in tokens.layers.values()])
        parts.append((norms, final[len(backbone.prefix_names) :], final[0]))
    return Measured(*(torch.stack(column) for column in zip(*parts, strict=True)))


def head(options: argparse.Namespace, found: RegisterNeurons, minutes: float) -> str:
    rows = [
        f"| {n.block + 1} | {n.unit} | {n.outliers:.2f} | {n.others:.2f} |" for n in found.found
    ]
    return f"""# Test-time registers: what they remove and what they cost

`demo` at {options.size} px; {time.strftime("%Y-%m-%d")}, {platform.machine()}, {options.threads}
thread(s), torch {torch.__version__}. Blocks are counted from 1. Reproduce:
`python benchmarks/testtime.py --images PHOTOS --classes IMAGEFOLDER --find {options.find}
--variants {options.variants} --large {options.large}`

Neurons were found on {found.images} photos in {minutes:.1f} minutes, on a machine that was busy
with other work too. High-norm tokens appear in block {found.onset + 1} and grow until block
{found.peak + 1}; the units of blocks 1 to {found.peak + 1} were ranked, and
{len(found.found)} of them are enough to remove {100 * found.removed:.1f} % of the high-norm tokens
of {found.checked} of these photos:

| block | unit | mean activation at high-norm patches | at other patches |
|---|---|---|---|
{chr(10).join(rows)}"""


def removal(found: RegisterNeurons, raw: Measured, edited: Measured) -> str:
    lines = []
    for block in found.cutoffs:
        before, after = (high(found, m, block).float() for m in (raw, edited))
        gone = 1 - after.sum() / before.sum()
        lines.append(
            f"| {block + 1} | {found.cutoffs[block]:.2f} | {100 * before.mean():.3f} %"
            f" | {100 * after.mean():.3f} % | {100 * gone:.1f} % | {largest(raw, block):.2f}"
            f" | {largest(edited, block):.2f} |"
        )
    return f"""## Are the high-norm tokens gone?

{len(raw.norms)} photos that the search did not see. A token is high-norm beyond the cutoff, in
times the median norm of its image, that the detector found on the raw model.

| block | cutoff | raw | test-time | removed | longest token, raw | test-time |
|---|---|---|---|---|---|---|
{chr(10).join(lines)}
| all | | | | {100 * removed(found, raw, edited):.1f} % | | |"""


def closeness(
    backbone: VitBackbone, photos: list[ImageSource], raw: Measured, edited: Measured
) -> str:
    clean = torch.cat([cv.denoise(backbone, str(p.source), views=10).patches for p in photos])
    to_clean = [cosine(m.patches[: len(photos)], clean).mean() for m in (raw, edited)]
    patches, classes = (
        cosine(getattr(raw, name), getattr(edited, name)).mean() for name in ("patches", "classes")
    )
    return f"""## How far do the final tokens move?

Mean cosine on the same photos; denoised tokens are the raw model's average of 10 views of the
first {len(photos)}.

| tokens | test-time to raw | raw to denoised | test-time to denoised |
|---|---|---|---|
| patches | {patches:.4f} | {to_clean[0]:.4f} | {to_clean[1]:.4f} |
| class token | {classes:.4f} | | |"""


def variants(
    backbone: VitBackbone,
    found: RegisterNeurons,
    finding: list[ImageSource],
    photos: list[ImageSource],
    raw: Measured,
) -> str:
    raw = Measured(*(part[: len(photos)] for part in (raw.norms, raw.patches, raw.classes)))
    last, count = max(found.cutoffs), len(found.found)
    activity = activities(backbone, found, finding, last)
    rows: list[tuple[str, str, str, str, Measured]] = []

    def add(score: str, block: int, top: int, note: str = "", **options: Any) -> None:
        model = with_neurons(backbone, by_block(ranked(activity, score, block)[:top]), **options)
        rows.append((score, f"1 to {block + 1}", str(top), note, measured(model, photos)))

    for top in sorted({1, 2, count, 5, 10, 20}):
        add("a log(a/b)", found.peak, top)
    for score in ("a - b", "a (published)"):
        for top in (count, 10, 20):
            add(score, found.peak, top)
    for block in (found.onset, last):
        for top in (count, 10):
            add("a log(a/b)", block, top)
    add("a log(a/b)", found.peak, count, "class token edited too", spare_class=False)
    for name, rule in (("mean instead of the strongest", _mean), ("set to 0, register too", _zero)):
        with patch.object(neurons_module, "move_to_register", rule):
            add("a log(a/b)", found.peak, count, name)
    rows.append(("", "", "0", "register alone", measured(with_neurons(backbone, {}), photos)))
    lines = [
        f"| {score} | {blocks} | {top} | {note} | {100 * removed(found, raw, m):.1f} % |"
        f" {cosine(raw.patches, m.patches).mean():.4f} |"
        f" {cosine(raw.classes, m.classes).mean():.4f} |"
        for score, blocks, top, note, m in rows
    ]
    return f"""## What else was tried

{len(photos)} of these photos; activations of {CHECKED} photos of the search; a is the mean
|activation| of a unit at high-norm patches, b elsewhere. The cosines are to the raw model.

| score | blocks | neurons | | removed | patch cosine | class cosine |
|---|---|---|---|---|---|---|
{chr(10).join(lines)}"""


def activities(
    backbone: VitBackbone, found: RegisterNeurons, finding: list[ImageSource], last: int
) -> Activity:
    few = finding[:: len(finding) // CHECKED][:CHECKED]
    walk = ActivationReader(found.size, 2, Meter(None, 0))
    norms = walk.norms(backbone, few, [found.peak]).values[:, 0]
    return walk.activity(backbone, few, tail(found, found.peak).mask(norms), last)


def ranked(activity: Activity, score: str, last: int) -> list[Neuron]:
    units = [
        (value, Neuron(block, unit, a[unit].item(), b[unit].item()))
        for block, (a, b) in enumerate(zip(activity.outliers, activity.others, strict=True))
        if block <= last
        for unit, value in enumerate(SCORES[score](a, b).tolist())
    ]
    return [neuron for _, neuron in sorted(units, key=lambda pair: -pair[0])[:100]]


def by_block(neurons: list[Neuron]) -> dict[int, Tensor]:
    blocks = {n.block for n in neurons}
    return {b: torch.tensor([n.unit for n in neurons if n.block == b]) for b in sorted(blocks)}


def _mean(hidden: Tensor, units: Tensor, register: int, *, spared: list[int]) -> Tensor:
    moved = move_to_register(hidden, units, register, spared=spared)
    moved[:, register, units] = hidden[..., units].mean(1)
    return moved


def _zero(hidden: Tensor, units: Tensor, register: int, *, spared: list[int]) -> Tensor:
    moved = move_to_register(hidden, units, register, spared=spared)
    moved[:, register, units] = 0
    return moved


NEAREST_HEAD = """Leave-one-out 1-NN accuracy of class tokens, by cosine.

| size | images | classes | raw | test-time | images won, lost | cosine to raw |
|---|---|---|---|---|---|---|
"""


def nearest(
    backbone: VitBackbone, cured: VitBackbone, folder: Path, size: int, most: int | None
) -> str:
    names = sorted(child.name for child in folder.iterdir() if child.is_dir())
    names = names[:: len(names) // most][:most] if most else names
    files = [(str(p.source), i) for i, n in enumerate(names) for p in find_images(folder / n)]
    labels = torch.tensor([label for _, label in files])
    tokens = [class_tokens(m, [path for path, _ in files], size) for m in (backbone, cured)]
    right = [hits(t, labels) for t in tokens]
    won, lost = int((right[1] & ~right[0]).sum()), int((right[0] & ~right[1]).sum())
    shares = " | ".join(f"{100 * r.float().mean():.1f} %" for r in right)
    return (
        f"| {size} | {len(files)} | {len(names)} | {shares} | {won}, {lost}"
        f" | {cosine(*tokens).mean():.4f} |\n"
    )


def class_tokens(backbone: VitBackbone, files: list[str], size: int) -> Tensor:
    found = [backbone.tokens(file, size=size).cls for file in files]
    return torch.cat([token for token in found if token is not None])


def hits(tokens: Tensor, labels: Tensor) -> Tensor:
    unit = F.normalize(tokens, dim=-1)
    likeness = (unit @ unit.T).fill_diagonal_(-2)
    return labels[likeness.argmax(1)] == labels


def high(found: RegisterNeurons, seen: Measured, block: int) -> Tensor:
    return tail(found, block).mask(seen.norms[:, block])


def tail(found: RegisterNeurons, block: int) -> Outliers:
    return Outliers("high", found.cutoffs[block], 0.0, (0.0, 0.0), 0, 0.0, 1.0)


def removed(found: RegisterNeurons, raw: Measured, edited: Measured) -> float:
    before, after = (sum(high(found, m, b).sum() for b in found.cutoffs) for m in (raw, edited))
    return 1 - float(after) / float(before)


def largest(seen: Measured, block: int) -> float:
    norms = seen.norms[:, block]
    return float((norms / norms.median(dim=1, keepdim=True).values).max(1).values.mean())


def cosine(first: Tensor, second: Tensor) -> Tensor:
    return F.cosine_similarity(first, second, dim=-1)


if __name__ == "__main__":
    main()
