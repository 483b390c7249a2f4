r"""Train the same small ViT with 0 and with 4 registers, and watch its token norms on the way.

    python examples/train_with_registers.py FOLDER --out runs/registers     # minutes on two cores
    python examples/train_with_registers.py FOLDER --out runs/base --size 224 --patch 16 \
        --width 768 --heads 12 --depth 12 --batch 256 --steps 200000        # a GPU, for days

FOLDER is an ImageFolder: one subfolder per class. The two runs differ in the registers only (Darcet
et al., "Vision Transformers Need Registers", ICLR 2024): same first weights, same images in the
same order, same crops. Each checkpoint is a directory that `clearvit.load("dir:...")` and plain
timm load. The same command resumes an interrupted run.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from PIL import Image, ImageOps
from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import clearvit as cv
from clearvit.backbones.saved import WEIGHTS
from clearvit.files import write_json, written_whole
from clearvit.images import batches, find_images
from clearvit.report.figure import DPI, FAINT, INK, WIDTH, save_figure

REGISTERS = (0, 4)  # the two runs; the paper settles on 4
LIMIT = 100  # held-out images to measure, at most
DONE, MOMENTS = "training.json", "moments.safetensors"  # DONE is what a checkpoint gets last
console = Console(highlight=False, markup=False, soft_wrap=True)


def option(default: Any, explanation: str) -> Any:
    """Explain a default on its own line; `--help` prints the same words."""
    return field(default=default, metadata={"help": explanation})


@dataclass(frozen=True)
class Config:
    """Everything that decides the weights, apart from the images."""

    steps: int = option(240, "optimiser steps of each run; 17 times through 450 images")
    batch: int = option(32, "images per step")
    size: int = option(64, "pixels per side; small, so that a CPU needs minutes only")
    patch: int = option(8, "pixels per side of a patch; 8 makes a grid of 8 x 8 at 64 pixels")
    width: int = option(192, "channels of a token, as in ViT-Tiny")
    depth: int = option(6, "blocks, half of ViT-Tiny")
    heads: int = option(3, "attention heads, of 64 channels as usual")
    rate: float = option(1e-3, "highest learning rate, usual for AdamW on small ViTs")
    warmup: float = option(0.1, "share of the steps in which the rate rises; then a cosine to 0")
    decay: float = option(0.05, "weight decay of matrices; tokens, positions and biases have none")
    checkpoints: int = option(5, "evenly spaced from step 0, as artifacts may come late")
    seed: int = option(0, "of the first weights, the split, the order and the crops")

    def __post_init__(self) -> None:
        if self.size % self.patch or self.width % self.heads or self.checkpoints < 2:
            raise cv.ModelError("patch must divide size, heads width; checkpoints be 2 or more.")


@dataclass(frozen=True)
class Data:
    """A labelled folder in memory; `train` and `held_out` are rows of it, 90 % and 10 %."""

    images: Tensor  # (n, 3, edge, edge) uint8; edge is 9/8 of the size, which leaves room to crop
    labels: Tensor  # (n,)
    classes: list[str]
    train: Tensor
    held_out: Tensor


def read_images(folder: Path, config: Config) -> Data:
    """Decode an ImageFolder once; bad files are skipped and listed."""
    sources = [p for p in find_images(folder) if "/" in p.name and folder.is_dir()]
    classes = sorted({p.name.split("/")[0] for p in sources})
    if len(classes) < 2:
        found = f"only one class folder, '{classes[0]}'" if classes else "no class folders"
        raise cv.ImageError(f"'{folder}' has {found}; put images into two or more FOLDER/CLASS/.")
    edge, count = config.size * 9 // 8, len(sources)
    console.print(f"{count} images, {len(classes)} classes: {3e-6 * count * edge**2:.0f} MB memory")
    images = torch.empty((count, 3, edge, edge), dtype=torch.uint8)
    labels: list[int] = []
    decoded = batches(sources, lambda image: ImageOps.fit(image, (edge, edge)), size=64)
    for batch in track(decoded, "decoding", -(-count // 64), console=console):
        for name, item in zip(batch.names, batch.items, strict=True):
            images[len(labels)] = torch.from_numpy(np.array(item)).permute(2, 0, 1)
            labels.append(classes.index(name.split("/")[0]))
        for bad in batch.skipped:
            console.print(f"skipped {bad.name}: {bad.reason}", style="yellow")
    if len(set(labels)) < 2:
        raise cv.ImageError(f"fewer than two classes in '{folder}' have images that can be read.")
    rows = torch.from_numpy(np.random.default_rng(config.seed).permutation(len(labels)))
    held = max(1, len(rows) // 10)
    return Data(images[: len(rows)], torch.tensor(labels), classes, rows[held:], rows[:held])


def batch_at(step: int, data: Data, config: Config) -> tuple[Tensor, Tensor]:
    """Choose, crop and flip the images of a step, from (seed, step) alone, so runs can resume."""
    rng = np.random.default_rng((config.seed, step))
    rows = data.train[rng.permutation(len(data.train))[: config.batch]]
    corners = rng.integers(0, data.images.shape[-1] - config.size + 1, (len(rows), 2))
    crops = [
        image[:, y : y + config.size, x : x + config.size].flip([2] * int(rng.integers(2)))
        for image, (y, x) in zip(data.images[rows], corners, strict=True)
    ]
    return torch.stack(crops) / 127.5 - 1, data.labels[rows]  # -1..1, as timm's ViTs expect


def create(registers: int, classes: int, config: Config) -> nn.Module:
    """Build a network; all but its registers starts from the same weights in each run."""
    from clearvit.backbones.guarded_timm import timm

    arguments = {
        "img_size": config.size,
        "patch_size": config.patch,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "num_classes": classes,
        "no_embed_class": True,  # else timm gives each register a position
    }
    torch.manual_seed(config.seed)
    name, counts = "vit_tiny_patch16_224", (0, registers)
    plain, network = (timm.create_model(name, reg_tokens=n, **arguments) for n in counts)
    network.load_state_dict(plain.state_dict(), strict=False)
    return network


def train(data: Data, registers: int, config: Config, out: Path, device: str = "cpu") -> list[Path]:
    """Train one network, or what is left of its training; return its checkpoints in order."""
    marks = [round(i * config.steps / (config.checkpoints - 1)) for i in range(config.checkpoints)]
    folders = {step: out / f"{registers}-registers" / f"step-{step:06d}" for step in marks}
    finished = [step for step, folder in folders.items() if (folder / DONE).exists()]
    newest = folders[start := max(finished, default=0)]
    network = create(registers, len(data.classes), config).to(device)
    matrices = [p for p in network.parameters() if p.ndim in (2, 4)]  # 4: the patch projection
    others = [p for p in network.parameters() if p.ndim not in (2, 4)]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, weight_decay=config.decay)
    if not finished:
        save(network, optimizer, newest, {"step": 0, "loss": None})
    elif start < config.steps:
        restore(network, optimizer, newest)
    with Progress(console=console) as bar:
        for step in bar.track(range(start, config.steps), description=f"{registers} registers"):
            rise = (step + 1) / max(1.0, config.warmup * config.steps)
            fall = (1 + math.cos(math.pi * step / config.steps)) / 2
            for group in optimizer.param_groups:
                group["lr"] = config.rate * min(rise, fall)
            pixels, labels = batch_at(step, data, config)
            loss = nn.functional.cross_entropy(network(pixels.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if folder := folders.get(step + 1):
                save(network, optimizer, folder, {"step": step + 1, "loss": loss.item()})
                (newest / MOMENTS).unlink(missing_ok=True)  # of use in the newest only
                newest = folder
                console.print(f"{registers} registers, step {step + 1}: loss {loss:.3f}")
    return list(folders.values())


def save(network: nn.Module, optimizer: torch.optim.AdamW, folder: Path, note: Any) -> None:
    """Write a checkpoint; without its last file it counts for nothing."""
    state = optimizer.state_dict()["state"]
    moments = {f"{i}.{key}": t.cpu() for i, each in state.items() for key, t in each.items()}
    with written_whole(folder / MOMENTS) as temporary:
        save_file(moments, temporary)
    cv.save(cv.load(network), folder)
    network.train()  # a Backbone is in evaluation mode
    write_json(folder / DONE, note)


def restore(network: nn.Module, optimizer: torch.optim.AdamW, folder: Path) -> None:
    """Bring weights and moments back to where they were."""
    network.load_state_dict(load_file(folder / WEIGHTS))
    saved = load_file(folder / MOMENTS)
    parts, keys = range(len(saved) // 3), ("step", "exp_avg", "exp_avg_sq")
    state = {i: {key: saved[f"{i}.{key}"] for key in keys} for i in parts}
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


def measure(folder: Path, data: Data, device: str = "cpu") -> tuple[dict[str, Any], Tensor]:
    """Measure a checkpoint: numbers, and patch norms before the final norm, (L, tokens)."""
    backbone = cv.load(f"dir:{folder}", device=device)
    blocks, size = range(backbone.depth), backbone.preprocessing.size[0]
    rows, edge = data.held_out[:LIMIT], (data.images.shape[-1] - size) // 2
    images = data.images[rows, :, edge : edge + size, edge : edge + size]
    pixels = (images / 127.5 - 1).to(device)
    tokens = backbone.tokens(pixels, layers=blocks, norm=False, capture="prefix_attention")
    norms = torch.stack([tokens.layers[i].patches.norm(dim=-1).flatten() for i in blocks]).cpu()
    prefix = torch.stack([tokens.layers[i].prefix.norm(dim=-1).mean(0) for i in blocks])
    looks = torch.stack([tokens.prefix_attention[i][:, :, 0].mean((0, 1)) for i in blocks])
    with torch.no_grad():
        right = backbone.network(pixels).argmax(1).cpu() == data.labels[rows]
    ratio = norms / norms.median(1, keepdim=True).values
    spread = ratio.log().abs().median(1, keepdim=True).values * 1.4826  # robust deviation
    sources = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]
    quick = cv.DiagnoseConfig(limit=LIMIT, equivariance=False, experiments=False)
    diagnosis = cv.diagnose(backbone, sources, config=quick)
    first = prefix.shape[1]  # column of the first patch
    numbers = {
        "registers": first - 1,
        **json.loads((folder / DONE).read_text("utf-8")),
        "accuracy": right.float().mean().item(),
        **{key: getattr(diagnosis, key) for key in ("verdict", "onset", "fraction", "cutoff")},
        "median_norm": norms.median(1).values.tolist(),  # from here on, lists of one per block
        "max_over_median": ratio.amax(1).tolist(),
        "q999_over_median": ratio.quantile(0.999, dim=1).tolist(),
        "outlier_fraction": (ratio.log().abs() > 5 * spread).float().mean(1).tolist(),
        "prefix_norms": prefix.tolist(),  # class token, then registers; means over images
        "class_attention_on_registers": looks[:, 1:first].sum(1).tolist(),
        "class_attention_peak": (looks[:, first:].amax(1) * looks.shape[1]).tolist(),
    }
    return numbers, norms


def draw(measured: list[tuple[dict[str, Any], Tensor]], path: Path) -> Path:
    """Draw the norms of every block: one column per checkpoint, one row per run."""
    every = np.hstack([np.append(norms, np.ravel(n["prefix_norms"])) for n, norms in measured])
    bins = np.geomspace(every.min() * 0.9, every.max() * 1.1, 64)
    sides = np.arange(len(measured[0][1]) + 1) - 0.5  # of the columns, one per block
    figure = Figure(figsize=(WIDTH, 6.4), dpi=DPI, layout="constrained")
    grid = figure.subplots(2, len(measured) // 2, sharex=True, sharey=True)
    for axes, (n, norms) in zip(grid.flat, measured, strict=True):
        shares = np.stack([np.histogram(row, bins)[0] / len(row) for row in norms], axis=1)
        scale = LogNorm(0.1 / norms.shape[1], 0.3)  # one token in all images must be seen
        image = axes.pcolormesh(sides, bins, np.ma.masked_equal(shares, 0), norm=scale, cmap="PuBu")
        prefix = np.array(n["prefix_norms"])
        axes.plot(sides[1:] - 0.5, prefix[:, :1], "o", mfc="white", color=INK, ms=7)
        axes.plot(sides[1:] - 0.5, prefix[:, 1:], "D", color="#d9480f", ms=3.5)
        largest = f"largest {max(n['max_over_median']):.1f} \N{MULTIPLICATION SIGN} median"
        axes.set_title(f"step {n['step']}: {largest}", size=9.5, color=FAINT)
        axes.set(xticks=sides[1:] - 0.5, xlabel="block", ylabel=f"{n['registers']} registers: norm")
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.label_outer()
    figure.legend(axes.lines[:2], ["class token", "registers"], loc="outside upper right", ncols=2)
    figure.suptitle("Token norms before the final norm, held-out images", weight="bold")
    figure.colorbar(image, ax=grid, label="share of the patches", fraction=0.02, pad=0.01)
    return save_figure(figure, path)


def run(folder: Path, config: Config, out: Path, device: str = "cpu") -> None:
    """Train both networks, measure every checkpoint, write figure and numbers."""
    data = read_images(folder, config)
    settings = asdict(config) | {"images": len(data.labels), "classes": data.classes}
    path = out / "settings.json"
    if path.exists() and json.loads(path.read_text("utf-8")) != settings:
        raise cv.StoreError(f"'{out}' holds a run with other settings or images; change --out.")
    write_json(path, settings)
    folders = [f for count in REGISTERS for f in train(data, count, config, out, device)]
    measured = [measure(f, data, device) for f in track(folders, "measuring", console=console)]
    rows = [numbers for numbers, _ in measured]
    write_json(out / "norms.json", {"settings": settings, "checkpoints": rows})
    columns = "registers step loss:.2f accuracy:.0% max_over_median:.2f q999_over_median:.2f"
    columns += " outlier_fraction:.2% verdict onset fraction:.2%"
    formats = [column.partition(":")[::2] for column in columns.split()]
    table = Table(*(k.replace("_", " ") for k, _ in formats), box=None, padding=(0, 1, 0, 0))
    for row in rows:  # of what is measured per block, the worst block
        worst = {key: max(v) if isinstance(v, list) else v for key, v in row.items()}
        table.add_row(*("-" if worst[k] is None else format(worst[k], f) for k, f in formats))
    console.print(table)
    console.print(
        f"\nwritten: {draw(measured, out / 'norms.png')} and {out / 'norms.json'}"
        "\nAt the default size no artifacts are expected: the paper sees them in large models after"
        "\nlong training, and a few hundred images teach little. Recipe and figure are the point."
        f"\nnext: clearvit diagnose dir:{folders[-1]} {folder} --out report/"
    )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("folder", type=Path, help="one subfolder of images per class")
    parser.add_argument("--out", type=Path, required=True, help="where checkpoints and results go")
    for f in fields(Config):
        parser.add_argument(f"--{f.name}", type=type(f.default), default=f.default, **f.metadata)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = vars(parser.parse_args())
    folder, out, device = (options.pop(name) for name in ("folder", "out", "device"))
    try:
        run(folder, Config(**options), out, device)
    except cv.ClearvitError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
