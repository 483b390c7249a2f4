"""Whether a cured classifier can be given its predictions back without training.

    python benchmarks/cure_heads.py MODEL --work WORK    # of CLEARVIT_WEIGHTS

Two means, alone and together: a part of the weight change only (WiSE-FT), and a linear map from the
features that the head reads back to those of the raw model, fitted by ridge regression to the
photos of the cure and to crops of them; its penalty is chosen on the photos that were held out,
without labels. Top-1 on imagenet100: every other class is for a choice, the rest for the report.
WORK keeps what is finished.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import clearvit as cv
from clearvit.backbones.vit import VitBackbone
from clearvit.datasets.splits import load_image
from clearvit.images import find_images
from clearvit.precision import autocast, uses_bf16
from clearvit.probes import Ridge
from clearvit.stats import bootstrap
from clearvit.training.held_out import split_held_out
from cure_recipes import HELD_OUT, distances
from data import DATA, data_path, find_model
from evidence import write_result
from render import render

PHOTOS, EPOCHS, CROPS, SIZE = 160, 3, 4, 224
STRENGTHS = (1.0, 0.5, 0.25)  # parts of the weight change
PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--work", type=Path, default=Path("build/cure_heads"))
    parser.add_argument("--photos", type=int, default=PHOTOS, help="to train and fit on")
    parser.add_argument("--data", type=data_path, default=DATA)
    options = parser.parse_args()
    torch.set_num_threads(1)
    work, raw = options.work / options.model, cv.load(find_model(options.model), size=SIZE)
    photos = [image.source for image in find_images(options.data / "photos")]
    used = [photo for i, photo in enumerate(photos) if i % HELD_OUT][: options.photos]
    chosen = {"epochs": EPOCHS, "keep_anyway": True, "head_agreement": 0.0}
    cured = cv.cure(raw, used, out=work / "cured", **chosen)
    tested = sorted((options.data / "imagenet100").glob("*/*.jpg"))
    truth = np.array([int(path.parent.name) for path in tested])
    head = raw.network.head
    base = features(raw, used, tested, work / "raw.npz")
    rows: dict[str, Any] = {}
    for strength in STRENGTHS:
        model = part_of_change(raw, cured, strength)
        own = features(model, used, tested, work / f"{strength}.npz")
        near = distances(raw, model, photos[::HELD_OUT], work)
        gone = 100 * (1 - near[1] / near[0])
        found = fit_map(own, base, head)
        for name, mapped in (("", own["test"]), (", head fitted", apply_map(found, own["test"]))):
            row = judge(mapped, base["test"], head, truth) | {"distance gone": gone}
            rows[f"{strength:g} of the change{name}"] = row
            print(strength, name, row, flush=True)
    top = 100 * float((predict(base["test"], head).argmax(1).numpy() == truth).mean())
    content = {
        "model": options.model,
        "photos": len(used),
        "epochs": EPOCHS,
        "raw": top,
        "rows": rows,
    }
    data = ("photos", "imagenet100")
    name = f"cure-heads-{options.model}"
    write_result(name, content, data=data, seeds=[0], models=[options.model])
    render("cure_recipes")


def part_of_change(raw: VitBackbone, cured: VitBackbone, strength: float) -> VitBackbone:
    """Go a part of the way from the raw weights to the cured ones."""
    model = cured.around(copy.deepcopy(cured.network), cured.blueprint)
    start = raw.network.state_dict()
    with torch.no_grad():
        for name, value in model.network.state_dict().items():
            value.copy_(torch.lerp(start[name], value, strength))
    return model


# --- features that the head reads -----------------------------------------------------------------


def features(
    model: VitBackbone, photos: list[Any], tested: list[Path], file: Path
) -> dict[str, Tensor]:
    """Those of photos and their crops, (P, 1 + CROPS, C), and of test images, (I, C); kept."""
    if not file.exists():
        fit = [run(model, list(crops(load_image(p), i))) for i, p in enumerate(photos)]
        test = [run(model, [load_image(path)]) for path in tested]
        np.savez(file, fit=torch.stack(fit).numpy(), test=torch.cat(test).numpy())
    with np.load(file) as kept:
        return {name: torch.from_numpy(kept[name]) for name in ("fit", "test")}


def crops(image: Image.Image, number: int) -> Iterator[Image.Image]:
    """An image, and random crops of a quarter of its area or more, half of them mirrored."""
    rng = np.random.default_rng(number)
    yield image
    for _ in range(CROPS):
        side = np.sqrt(rng.uniform(0.25, 1))
        width, height = int(image.width * side), int(image.height * side)
        x, y = rng.integers(0, image.width - width + 1), rng.integers(0, image.height - height + 1)
        crop = image.crop((x, y, x + width, y + height))
        mirrored = rng.random() < 0.5
        yield crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else crop


@torch.inference_mode()
def run(model: VitBackbone, images: list[Image.Image]) -> Tensor:
    pixels = torch.stack([model.preprocessing(image, (SIZE, SIZE)) for image in images])
    with autocast(model.device, uses_bf16(model.device, "auto")):
        tokens = model.forward(pixels)
        whole = torch.cat([tokens.prefix, tokens.patches], 1).to(pixels.dtype)
        found: Tensor = model.network.forward_head(whole, pre_logits=True).float()
    return found


# --- the map, and what it is worth ----------------------------------------------------------------


def fit_map(own: dict[str, Tensor], base: dict[str, Tensor], head: torch.nn.Linear) -> Any:
    """Fit what the raw features differ by; the penalty is that of the least divergence."""
    fitted, held = split_held_out(len(base["fit"]), 0.1)
    x, y = (part["fit"][fitted].flatten(0, 1) for part in (own, base))
    ridge = Ridge(x.shape[1], x.shape[1])
    ridge.add(x, y - x, torch.ones(len(x)))
    x, y = (part["fit"][held].flatten(0, 1) for part in (own, base))
    maps = [ridge.solve(penalty) for penalty in PENALTIES]
    return min(maps, key=lambda found: divergence(apply_map(found, x), y, head).mean())


def apply_map(found: Any, x: Tensor) -> Tensor:
    return x + F.linear(x, found.weight, found.bias)


@torch.no_grad()
def predict(x: Tensor, head: torch.nn.Linear) -> Tensor:
    return F.log_softmax(F.linear(x, head.weight, head.bias), -1)


def divergence(x: Tensor, wanted: Tensor, head: torch.nn.Linear) -> Tensor:
    """Kullback-Leibler divergence of the predictions for each image, (M,)."""
    own, target = predict(x, head), predict(wanted, head)
    return (target.exp() * (target - own)).sum(-1)


def judge(x: Tensor, raw: Tensor, head: torch.nn.Linear, truth: np.ndarray) -> dict[str, Any]:
    """Paired differences in top-1 of both halves of the classes and of all, and divergence."""
    own, base = (predict(t, head).argmax(1).numpy() == truth for t in (x, raw))
    apart = 100 * (own.astype(float) - base)
    odd = np.isin(truth, np.unique(truth)[1::2])
    parts = {"choice": ~odd, "report": odd, "all": np.ones_like(odd)}
    found: dict[str, Any] = {}
    for name, part in parts.items():
        interval = bootstrap(apart[part])
        found[name] = [interval.mean, interval.low, interval.high]
    interval = bootstrap(divergence(x, raw, head).numpy())
    return found | {"divergence": [interval.mean, interval.low, interval.high]}


if __name__ == "__main__":
    main()
