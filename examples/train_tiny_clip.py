r"""Train a tiny CLIP on drawn shapes and captions, and let it name what was never labelled.

    python examples/train_tiny_clip.py --out runs/tiny-clip                  # minutes on one core
    clearvit evaluate zero-shot-segmentation openclip:runs/tiny-clip/model \
        --data runs/tiny-clip/scenes --heads clip,maskclip,naclip,sclip,clearclip

Every picture shows one or two coloured shapes, or none, on a dark or light background; its caption
says so in one of the 80 sentences that CLIP is evaluated with. The loss is that of CLIP: each
picture has to find its caption among those of the batch, and each caption its picture. No two
pictures of a batch show the same. The model is open_clip's own, saved as open_clip saves for the
hub: a folder that `clearvit.load("openclip:FOLDER")` and open_clip itself load. Then fresh pictures
are classified (12 names), and fresh scenes of two shapes segmented (background and 4 colours), by
names alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from rich.console import Console
from rich.progress import track
from safetensors.torch import save_file
from torch import Tensor

import clearvit as cv
from clearvit.backbones.sources.openclip import FOLDER_CONFIG, FOLDER_WEIGHTS, imagenet_prompts
from clearvit.evaluation import Table
from clearvit.files import write_json, written_whole

console = Console(highlight=False, markup=False, soft_wrap=True)
COLORS = {"red": (220, 40, 40), "green": (40, 190, 60), "blue": (50, 70, 220)}
COLORS |= {"yellow": (225, 210, 50)}
SHAPES: dict[str, Callable[[Any, Any], Any]] = {  # of x and y from -1 to 1, True inside
    "square": lambda x, y: np.maximum(abs(x), abs(y)) < 0.85,
    "ring": lambda x, y: abs(x**2 + y**2 - 0.65) < 0.35,
    "cross": lambda x, y: (np.minimum(abs(x), abs(y)) < 0.3) & (np.maximum(abs(x), abs(y)) < 1),
}
GROUNDS = {"dark": 45, "light": 205}
NAMES = tuple(f"{color} {shape}" for color, shape in product(COLORS, SHAPES))
MEAN, STD = [0.5, 0.5, 0.5], [0.25, 0.25, 0.25]

Content = tuple[str, ...]  # the background, and the names of the shapes in front of it


def option(default: Any, explanation: str) -> Any:
    """Explain a default on its own line; `--help` prints the same words."""
    return field(default=default, metadata={"help": explanation})


@dataclass(frozen=True)
class Config:
    """Everything that decides the weights."""

    steps: int = option(1000, "optimiser steps; four CPU minutes")
    batch: int = option(40, "pairs per step; 26 to 158, as each shows something else")
    size: int = option(48, "pixels per side")
    patch: int = option(6, "pixels per side of a patch: a grid of 8 x 8")
    width: int = option(64, "channels of a token, in both towers")
    depth: int = option(3, "blocks of the image tower; the text tower has one less")
    rate: float = option(1e-3, "highest learning rate, after a warm-up of a tenth of the steps")
    seed: int = option(0, "of the first weights, the pictures and the captions")

    def __post_init__(self) -> None:
        if self.size % self.patch or self.width % 32 or not 26 <= self.batch <= 158:
            raise cv.ModelError("patch must divide size, 32 the width; batch must be 26 to 158.")


# --- pictures and captions --------------------------------------------------------------------


def contents() -> list[Content]:
    """List all 158 that a picture may show, the 26 with less than two shapes first."""
    shapes = [(), *((name,) for name in NAMES), *combinations(NAMES, 2)]
    return [(f"{ground} background", *some) for some in shapes for ground in GROUNDS]


def drawn(content: Content, size: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Draw shapes at random places: pixels (size, size, 3) and the mask (size, size), uint8.

    The mask holds 0 for the background and the place of its colour + 1 for a shape. Each shape
    keeps to a half of its own where there are two.
    """
    ground, *shapes = content
    pixels = GROUNDS[ground.split()[0]] + rng.uniform(-25, 25) + np.zeros((size, size, 3))
    pixels += rng.normal(0, 6, pixels.shape)
    mask = np.zeros((size, size), dtype=np.uint8)
    across = rng.random() < 0.5
    rows, columns = np.mgrid[:size, :size] / size
    for half, name in enumerate(rng.permutation(shapes)):
        color, shape = name.split()
        radius = rng.uniform(0.18, 0.24) if len(shapes) > 1 else rng.uniform(0.2, 0.4)
        low = np.array([half / len(shapes), 0.0]) + radius
        high = np.array([(half + 1) / len(shapes), 1.0]) - radius
        y, x = rng.uniform(low, np.maximum(low, high))[:: 1 if across else -1]
        inside = SHAPES[shape]((columns - x) / radius, (rows - y) / radius)
        tint = np.array(COLORS[color]) + rng.normal(0, 12, 3)
        pixels[inside] = tint + rng.normal(0, 6, (int(inside.sum()), 3))
        mask[inside] = 1 + list(COLORS).index(color)
    return np.clip(pixels, 0, 255).astype(np.uint8), mask


def caption(content: Content, rng: np.random.Generator) -> str:
    """Say what a picture shows, in one of the 80 sentences."""
    ground, *shapes = content
    words = f"{' and a '.join(rng.permutation(shapes))} on a {ground}" if shapes else ground
    prompts = imagenet_prompts()
    return prompts[rng.integers(len(prompts))].format(words)


def batch_at(step: int, config: Config) -> tuple[Tensor, list[str]]:
    """Draw the pairs of a step, from (seed, step) alone: (B, 3, size, size) and B captions.

    All simple pictures are among them, so that neighbours such as two red shapes are told apart.
    """
    rng = np.random.default_rng((config.seed, step))
    simple, double = contents()[:26], contents()[26:]
    more = rng.permutation(len(double))[: config.batch - len(simple)]
    chosen = [*simple, *(double[i] for i in more)]
    pixels = np.stack([drawn(content, config.size, rng)[0] for content in chosen])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    scaled = (images - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    return scaled, [caption(content, rng) for content in chosen]


# --- the model --------------------------------------------------------------------------------


def model_config(config: Config) -> dict[str, Any]:
    """Describe the model as open_clip does."""
    tower = {"width": config.width, "layers": config.depth, "head_width": 32}
    text = {"context_length": 32, "vocab_size": 49408, "width": config.width, "heads": 2}
    return {
        "embed_dim": config.width,
        "vision_cfg": {"image_size": config.size, "patch_size": config.patch, **tower},
        "text_cfg": {**text, "layers": max(1, config.depth - 1)},
    }


def train(config: Config) -> Any:
    """Train both towers from nothing."""
    import open_clip  # not above: it needs the torchvision that clearvit.backbones imported

    torch.manual_seed(config.seed)
    model = open_clip.CLIP(**model_config(config))
    tokenizer = open_clip.SimpleTokenizer(context_length=32)
    optimizer = torch.optim.AdamW(model.parameters(), config.rate, weight_decay=0.01, fused=True)
    warm = max(1, config.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda i: min((i + 1) / warm, 0.5 * (1 + np.cos(np.pi * i / config.steps))),
    )
    start, right = time.process_time(), 0.0
    for step in track(range(config.steps), "training", console=console):
        images, captions = batch_at(step, config)
        seen = model.encode_image(images, normalize=True)
        texts = model.encode_text(tokenizer(captions), normalize=True)
        logits = model.logit_scale.exp() * seen @ texts.T
        truth = torch.arange(len(images))
        loss = (F.cross_entropy(logits, truth) + F.cross_entropy(logits.T, truth)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, np.log(100))  # as CLIP does
            right += 0.05 * (float((logits.argmax(1) == truth).float().mean()) - right)
    seconds = time.process_time() - start
    console.print(f"{config.steps} steps, {seconds:.0f} s of CPU: found {100 * right:.0f} %")
    return model.eval()


def save(model: Any, config: Config, folder: Path) -> None:
    """Write the folder that open_clip and clearvit load."""
    state = {key: tensor.contiguous() for key, tensor in model.state_dict().items()}
    with written_whole(folder / FOLDER_WEIGHTS[0]) as temporary:
        save_file(state, temporary, metadata={"format": "pt"})
    look = {"mean": MEAN, "std": STD, "interpolation": "bicubic", "resize_mode": "squash"}
    content = {"model_cfg": model_config(config), "preprocess_cfg": look}
    write_json(folder / FOLDER_CONFIG, {**content, "training": asdict(config)})


# --- what it can do ---------------------------------------------------------------------------


def write_data(out: Path, config: Config, count: int) -> tuple[Path, Path]:
    """Draw pictures of one shape in class folders, and scenes of two with masks of the colours.

    A colour has the words of all its shapes: "red square, red ring, red cross".
    """
    single, scenes = out / "shapes", out / "scenes"
    for i in range(count):
        rng = np.random.default_rng((config.seed, 1_000_000_007, i))  # no step is that late
        name, ground = NAMES[i % len(NAMES)], f"{rng.choice(list(GROUNDS))} background"
        _write(
            single / name.replace(" ", "_") / f"{i:04d}.png",
            drawn((ground, name), config.size, rng)[0],
        )
        two = rng.permutation(NAMES)[:2]
        pixels, mask = drawn((ground, *two), config.size, rng)
        _write(scenes / "images" / "val" / f"{i:04d}.png", pixels)
        _write(scenes / "masks" / "val" / f"{i:04d}.png", mask)
    lines = [", ".join(name for name in NAMES if name.startswith(color)) for color in COLORS]
    grounds = ", ".join(f"{ground} background" for ground in GROUNDS)
    (scenes / "classes.txt").write_text("\n".join([grounds, *lines]) + "\n")
    return single, scenes


def _write(path: Path, pixels: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def measure(folder: Path, single: Path, scenes: Path) -> dict[str, Table]:
    """Classify and segment by names, with every dense head."""
    backbone = cv.load(f"openclip:{folder}")
    heads = ("clip", "maskclip", "naclip", "sclip", "clearclip")
    tables = {
        "zero-shot-classification": {"batch": 64},
        "zero-shot-segmentation": {"batch": 64, "heads": heads, "inference": "whole"},
    }
    data = {"zero-shot-classification": single, "zero-shot-segmentation": scenes}
    found = {}
    for task, options in tables.items():
        found[task] = cv.evaluate(backbone, task=task, data=data[task], **options)
        console.print(f"\n{task}\n{found[task].text()}")
    return found


def main() -> None:
    """Read the options, train, save, measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--images", type=int, default=240, help="to classify, and to segment")
    parser.add_argument("--threads", type=int, default=1)
    for one in fields(Config):
        kind = type(one.default)
        parser.add_argument(
            f"--{one.name}", type=kind, default=one.default, help=one.metadata["help"]
        )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = Config(**{one.name: getattr(options, one.name) for one in fields(Config)})
    model = train(config)
    save(model, config, options.out / "model")
    single, scenes = write_data(options.out, config, options.images)
    tables = measure(options.out / "model", single, scenes)
    write_json(options.out / "results.json", {task: t.to_json() for task, t in tables.items()})


if __name__ == "__main__":
    main()
