"""Every cure on a model whose output carries artifacts: norms by block, top-1 with its own head.

    python benchmarks/showcase.py MODEL [NAME=dir:PATH …] [--views 10]
    python benchmarks/showcase.py MODEL [NAME=dir:PATH …] --images      # docs/images/showcase.png

MODEL is a classifier in CLEARVIT_WEIGHTS (AugReg ViT-Ti); the others are its cured copies. Percent
of patch tokens above the cutoff that `diagnose` found on the raw model, block by block (64 photos),
and top-1 of its own ImageNet head on imagenet100 (folders named by class index), paired with
raw. What patches are worth in tasks is in finer.py, with the same models as rows. Writes
benchmarks/results/showcase.json.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import clearvit as cv
from clearvit.backbones.vit import VitBackbone
from clearvit.demo.photos import packaged_photos
from clearvit.images import find_images, read_image
from clearvit.probes.features import use_whole_image
from clearvit.report.figure import Panel, draw_panels, save_figure
from clearvit.report.pca import PCA
from clearvit.stats import bootstrap
from data import DATA, RESULTS, data_path, find_model
from evidence import write_result
from render import render

BATCH = 10
SUBJECTS = ("chelsea", "coffee")  # photos that installed packages bring along
LARGEST = 8.0  # times the median norm, the end of the color map


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("others", nargs="*", help="NAME=dir:PATH")
    parser.add_argument("--views", type=int, default=10)
    parser.add_argument("--data", type=data_path, default=DATA)
    parser.add_argument("--images", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    raw = cv.load(find_model(options.model))
    models: dict[str, cv.Backbone] = {"raw": raw}
    models |= {
        name: cv.load(find_model(path))
        for name, _, path in (o.partition("=") for o in options.others)
    }
    if options.images:
        return draw(models, options.views)
    models[f"{options.views} sub-patch views"] = cv.cure(raw, method="denoise", views=options.views)
    photos = sorted((options.data / "photos").glob("*.jpg"))[::7][:64]
    diagnosis = cv.diagnose(raw, photos, experiments=False, equivariance=False)
    cutoff = next(f.cutoff for f in diagnosis.findings if f.kind == "high-norm")
    right = {name: top1(model, options.data / "imagenet100") for name, model in models.items()}
    rows = []
    for name, model in models.items():
        entry: dict[str, Any] = {"row": name, "top-1": float(100 * right[name].mean())}
        if name != "raw":
            apart = bootstrap(100.0 * (right[name] - right["raw"]))
            entry["minus raw"] = [apart.mean, apart.low, apart.high]
        if isinstance(model, VitBackbone):
            entry["high-norm, percent by block"] = high_norm(model, photos, cutoff)
        rows.append(entry)
        print(entry, flush=True)
    command = ["python benchmarks/showcase.py", options.model]
    command += [o.partition("=")[0] + "=dir:PATH" for o in options.others]
    evidence = [finding.evidence for finding in diagnosis.findings]
    content = {"model": options.model, "cutoff": cutoff, "evidence": evidence}
    content |= {"date": time.strftime("%Y-%m-%d"), "command": " ".join(command), "rows": rows}
    used = ("photos", "imagenet100")
    write_result("showcase", content, data=used, models=[options.model])
    render("finer")


def draw(models: dict[str, cv.Backbone], views: int) -> None:
    """Norms and colors of the patch tokens of each model, and of its views, for two photos."""
    models = {name: use_whole_image(model) for name, model in models.items()}
    rows = []
    for subject in SUBJECTS:
        photo = read_image(next(path for path in packaged_photos() if path.stem == subject))
        shape = photo.height / photo.width
        clean = cv.denoise(models["raw"], photo, views=views, scale=2)
        colors = PCA.fit_foreground(clean.map[0])
        row = [Panel("photo", np.asarray(photo), note=subject)]
        for name, model in models.items():
            norms = last_norms(model, photo)
            title = f"norms, at most {norms.max():.1f}"
            row.append(Panel(title, None, norms, name, (0.0, LARGEST), aspect=shape))
            found = painted(model.tokens(photo), colors)
            row.append(Panel("colors", found, note=name, aspect=shape))
        found = painted(clean, colors)
        row.append(Panel("colors", found, note=f"raw, {views} views, scale=2", aspect=shape))
        rows.append(row)
    caption = (
        "Norms of the last block's tokens, in units of their median. Colors: principal components"
        " of the foreground's tokens from views, the same for each row."
    )
    out = RESULTS.parent / "images" / "showcase.png"
    save_figure(draw_panels(rows, caption=caption), out, overwrite=True)
    print(out)


def painted(tokens: cv.Tokens, colors: PCA) -> np.ndarray:
    return colors.apply(tokens.map[0].permute(1, 2, 0)).numpy()


def last_norms(model: cv.Backbone, photo: Any) -> np.ndarray:
    """Norms of the patches of the last block, (H, W), in units of their median."""
    tokens = model.tokens(photo, layers=[-1], norm=False)
    (last,) = tokens.layers.values()
    norms = last.patches[0].norm(dim=-1).unflatten(0, tokens.grid)
    return (norms / norms.median()).numpy()


def top1(backbone: cv.Backbone, folder: Path) -> np.ndarray:
    """Whether the model's own head is right, image by image."""
    sources = find_images(folder)
    truth = np.array([int(Path(str(source.source)).parent.name) for source in sources])
    found = []
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        for pixels in backbone.pixels([source.source for source in sources], batch=BATCH):
            found.append(logits(backbone, pixels).argmax(1))
    return (torch.cat(found).numpy() == truth).astype(float)


def logits(backbone: cv.Backbone, pixels: torch.Tensor) -> torch.Tensor:
    """The head on the class token; of views, on their mean."""
    tokens = backbone.forward(pixels)
    network = getattr(backbone, "inner", backbone).network
    whole = torch.cat([tokens.prefix, tokens.patches], 1)
    scores: torch.Tensor = network.forward_head(whole.to(pixels.dtype)).float()
    return scores


def high_norm(backbone: VitBackbone, photos: list[Path], cutoff: float) -> list[float]:
    """Percent of patch tokens above the cutoff (times the median of their image), by block."""
    blocks = list(range(backbone.depth))
    counts = np.zeros(backbone.depth)
    total = 0
    with torch.inference_mode():
        for pixels in backbone.pixels(photos, batch=BATCH):
            tokens = backbone.forward(pixels, layers=blocks, norm=False)
            norms = torch.stack([tokens.layers[b].norms for b in blocks], 1)  # (B, L, N)
            above = norms > cutoff * norms.median(2, keepdim=True).values
            counts += above.sum((0, 2)).numpy()
            total += norms.shape[0] * norms.shape[2]
    return [round(float(100 * count / total), 3) for count in counts]


if __name__ == "__main__":
    main()
