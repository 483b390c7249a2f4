"""Draw the figures of the documentation that show the demo model or a page of results.

    python benchmarks/figures.py [tokens look diagnose retrieval …] [--size 448] [--threads 2]

Photos are those that installed packages bring along; charts are drawn from docs/results/, so a page
of results comes first. Writes docs/images/NAME.png.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

import clearvit as cv
from clearvit.artifacts.report.figures import draw_norms
from clearvit.artifacts.report.maps import draw_examples
from clearvit.demo.photos import packaged_photos, prepare_photos
from clearvit.demo.strip import draw_strip
from clearvit.images import read_image
from clearvit.pruning import draw_kept
from clearvit.report.chart import COLORS, MARKERS, new_chart, style_axes
from clearvit.report.figure import INK, Panel, draw_panels, save_figure
from clearvit.report.pca import PCA
from evidence import read_result
from pages.prune import CONTROL
from pages.prune import ROWS as SPEED_ROWS
from pages.prune import TITLES as SPEED_TITLES
from tables import numbers, tables_below

DOCS = Path(__file__).parents[1] / "docs"
SUBJECT = "chelsea"  # a cat with a plain background
FINE_SUBJECTS = ("chelsea", "coffee", "rocket")
CURE_SUBJECTS = ("chelsea", "rocket", "coffee")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *FIGURES], default=list(FIGURES))
    parser.add_argument("--size", type=int, default=448)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in options.names:
        FIGURES[name](DOCS / "images" / f"{name}.png", options.size)
        print(DOCS / "images" / f"{name}.png", flush=True)


def photo() -> Image.Image:
    return read_image(next(path for path in packaged_photos() if path.stem == SUBJECT))


def colors(features: Tensor, grid: tuple[int, int], basis: PCA | None = None) -> np.ndarray:
    """Patches (N, C) as a picture (H, W, 3)."""
    basis = basis or PCA.fit(features)
    return basis.apply(features).reshape(*grid, 3).numpy()


def tokens(out: Path, size: int) -> None:
    """What `backbone.tokens` holds."""
    subject = photo()
    backbone = cv.load("demo", size=size)
    seen = backbone.tokens(subject, layers=[2, 5, 8, 11], norm=False, capture=("key", "attention"))
    final = backbone.tokens(subject)
    prefix, grid = seen.prefix.shape[1], seen.grid
    shape = subject.height / subject.width
    length = seen.layers[8].patches[0].norm(dim=-1).reshape(grid).numpy()
    looked = seen.attention[11][0, :, 0, prefix:].mean(0).reshape(grid).numpy()
    keys = seen.key[11][0, :, prefix:].movedim(0, 1).flatten(1)
    shown = np.asarray(subject)

    def coloured(title: str, features: Tensor, note: str) -> Panel:
        return Panel(title, image=colors(features, grid), note=note, aspect=shape)

    first = [
        Panel("photo", image=shown, note=f"{grid[0]} x {grid[1]} patches"),
        coloured("tokens.patches", final.patches[0], "after the final norm"),
        Panel("tokens.attention[11]", shown, looked, "of the class token", aspect=shape),
        coloured("tokens.key[11]", keys, "all heads"),
    ]
    second = [
        coloured(f"tokens.layers[{b}]", seen.layers[b].patches[0], "patches") for b in (2, 5, 8)
    ]
    second.append(
        Panel("norms of layers[8]", None, length, "norm=False", aspect=shape, label="norm")
    )
    caption = "Colors are the first three principal components of each map on its own."
    figure = draw_panels([first, second], title="Tokens of one photo, demo model", caption=caption)
    save_figure(figure, out, overwrite=True)


def look(out: Path, _: int) -> None:
    """The figure of `clearvit look`, at the size the model was trained for."""
    coffee = next(path for path in packaged_photos() if path.stem == "coffee")
    with tempfile.TemporaryDirectory() as folder:
        (drawn,) = cv.look(cv.load("demo"), coffee, out=folder, layers=(8, 10, 11))
        shutil.copyfile(drawn, out)


def diagnose(out: Path, _: int) -> None:
    """Norms by block and two photos, as on the page of `clearvit diagnose`."""
    quiet = {"equivariance": False, "experiments": False}
    found = cv.diagnose(cv.load("demo"), list(packaged_photos()), **quiet)
    examples = draw_examples(replace(found, examples=found.examples[:2]))
    assert examples is not None
    parts = [rendered(figure) for figure in (draw_norms(found), examples)]
    whole = Image.new("RGB", (max(p.width for p in parts), sum(p.height for p in parts)), "white")
    whole.paste(parts[0], (0, 0))
    whole.paste(parts[1], (0, parts[0].height))
    whole.save(out, optimize=True)


def rendered(figure: Figure) -> Image.Image:
    with tempfile.TemporaryDirectory() as folder:
        return Image.open(save_figure(figure, Path(folder) / "part.png")).convert("RGB")


def retrieval(out: Path, _: int) -> None:
    """A part of a photo, found among the photos and explained."""
    with tempfile.TemporaryDirectory() as folder:
        photos = prepare_photos(Path(folder) / "images", None, parts=2)
        backbone = cv.load("demo", size=224)
        index = cv.Index.build(backbone, photos.everything, out=Path(folder) / "index")
        index.search(photos.query, k=1, rerank=10, weight=1.0)[0].explain(out, overwrite=True)


def denoise(out: Path, size: int) -> None:
    """Raw tokens, 32 views on the same grid, and on a grid four times as fine."""
    backbone = cv.load("demo", size=size)
    rows = []
    for name in FINE_SUBJECTS:
        image = read_image(next(path for path in packaged_photos() if path.stem == name))
        with torch.autocast("cpu", torch.bfloat16):
            raw = backbone.tokens(image)
            clean, fine = (cv.denoise(backbone, image, views=32, scale=s, batch=8) for s in (1, 4))
        basis, shape = PCA.fit_foreground(fine.map[0]), image.height / image.width
        shown = {
            "one pass": (raw, f"{raw.grid[0]} x {raw.grid[1]} tokens"),
            "32 views": (clean, "the same grid"),
            "32 views, scale=4": (fine, f"{fine.grid[0]} x {fine.grid[1]} tokens"),
        }
        rows.append(
            [
                Panel("photo", image=np.asarray(image), note=f"{size} px"),
                *(
                    Panel(title, colors(t.patches[0], t.grid, basis), note=note, aspect=shape)
                    for title, (t, note) in shown.items()
                ),
            ]
        )
    caption = (
        "Colors: three principal components of the fine tokens of the foreground, the same for"
        " each row."
    )
    figure = draw_panels(rows, title="", caption=caption)
    save_figure(figure, out, overwrite=True)


def hero(out: Path, size: int) -> None:
    """Raw, clean and fine tokens as colors; norms and distances before and after the cure."""
    raw, cured = cv.load("demo", size=size), cv.load("demo", cure=True, size=size)
    save_figure(draw_strip(raw, cured, photo()), out, overwrite=True)


def cure(out: Path, size: int) -> None:
    """How far one pass is from clean tokens, patch by patch, before and after the cure."""
    models = {"raw": cv.load("demo", size=size), "cured": cv.load("demo", cure=True, size=size)}
    rows = []
    for name in CURE_SUBJECTS:
        image = read_image(next(path for path in packaged_photos() if path.stem == name))
        panels = [Panel("photo", image=np.asarray(image))]
        with torch.autocast("cpu", torch.bfloat16):
            clean = cv.denoise(models["raw"], image, views=32, batch=8)
            seen = {model: backbone.tokens(image) for model, backbone in models.items()}
        for model, tokens in seen.items():
            away = 1 - torch.cosine_similarity(
                tokens.patches[0].float(), clean.patches[0].float(), -1
            )
            shape, note = image.height / image.width, f"mean {float(away.mean()):.3f}"
            values = away.reshape(tokens.grid).numpy()
            panels.append(
                Panel(f"error, {model}", None, values, note, limits=(0, 0.2), aspect=shape)
            )
        rows.append(panels)
    caption = (
        "Error: 1 - cosine between the tokens of one pass and the average of 32 sub-patch views"
        " of the raw model."
    )
    save_figure(draw_panels(rows, caption=caption), out, overwrite=True)


def compare(out: Path, _: int) -> None:
    """The figure of `clearvit compare`, with the shipped cure."""
    models = [cv.load("demo", size=336), cv.load("demo", cure=True, size=336)]
    photos = [path for path in packaged_photos() if path.stem in CURE_SUBJECTS]
    few = {"limit": 8, "reference_images": len(photos), "views": 30, "rounds": 1}
    with tempfile.TemporaryDirectory() as folder:
        cv.compare(models, photos, shown_images=len(photos), **few).save(folder)
        shutil.copyfile(Path(folder) / "pca.png", out)


def heated(title: str, values: Tensor, label: str, shape: float) -> Panel:
    return Panel(title, None, values.numpy(), aspect=shape, label=label)


def export(out: Path, size: int) -> None:
    """The same tokens from torch and from graphs, and what is left between them."""
    subject = photo()
    backbone = cv.load("demo", size=size)
    shape = subject.height / subject.width
    ours = backbone.tokens(subject)
    unit = ours.patches.square().mean().sqrt()
    basis = PCA.fit(ours.patches[0])
    first = [Panel("torch", colors(ours.patches[0], ours.grid, basis), aspect=shape)]
    second = [Panel("photo", image=np.asarray(subject))]
    settings = {
        "ONNX Runtime": ("onnx", None),
        "OpenVINO": ("openvino", None),
        "ONNX Runtime, int8": ("onnx", "int8"),
    }
    for title, (kind, quantize) in settings.items():
        with tempfile.TemporaryDirectory() as folder:
            cv.export(backbone, folder, format=kind, quantize=quantize)  # type: ignore[arg-type]
            theirs = cv.load(f"{kind}:{folder}").tokens(subject)
        away = ((theirs.patches - ours.patches)[0].abs().amax(-1) / unit).log10()
        first.append(Panel(title, colors(theirs.patches[0], ours.grid, basis), aspect=shape))
        second.append(heated("largest difference", away.reshape(ours.grid), "log10", shape))
    caption = "Differences in units of the root mean square of all tokens; one color space above."
    figure = draw_panels([first, second], title=f"Exported graphs, {size} px", caption=caption)
    save_figure(figure, out, overwrite=True)


# --- charts of results ------------------------------------------------------------------------


def prune(out: Path, _: int) -> None:
    """Which patches two scorers keep."""
    dense = cv.load("demo", size=336)
    models = [cv.prune(dense, keep=0.7, scorer=name) for name in ("class", "fuse")]
    subject = next(path for path in packaged_photos() if path.stem == SUBJECT)
    with tempfile.TemporaryDirectory() as folder:
        (drawn,) = draw_kept(models, subject, out=folder)
        out.write_bytes(drawn.read_bytes())


def bench(out: Path, _: int) -> None:
    """Speed against dense timm, of the models that were measured."""
    columns = read_result("prune")["columns"]
    models = [name for name in SPEED_TITLES if any(one["model"] == name for one in columns)]
    figure, places = new_chart(11, 4.6, len(models))
    settings = sorted({(one["threads"], one["batch"]) for one in columns})
    measured = {row["row"] for one in columns for row in one["rows"]}
    names = [one for one in SPEED_ROWS if one in measured and one not in CONTROL]
    for axes, model in zip(np.atleast_1d(places), models, strict=True):
        for number, setting in enumerate(settings):
            label = f"{setting[0]} thread{'s' * (setting[0] > 1)}, batch {setting[1]}"
            mine = [c for c in columns if c["model"] == model]
            mine = [c for c in mine if (c["threads"], c["batch"]) == setting]
            found = {row["row"]: row["ratio"] for one in mine for row in one["rows"]}
            for name in (name for name in names if name in found):
                middle, low, high = found[name]
                y = len(names) - names.index(name) - 0.2 * (number - (len(settings) - 1) / 2)
                axes.plot([low, high], [y, y], color=COLORS[number], alpha=0.35, lw=2)
                mark = MARKERS[number]
                axes.plot(middle, y, mark, color=COLORS[number], ms=4.5, label=label)
                label = None
        axes.set_yticks([len(names) - place for place in range(len(names))], names)
        axes.axvline(1, color=INK, lw=0.8)
        style_axes(axes, SPEED_TITLES[model], x="times as fast as dense timm, median and range")
    for axes in np.atleast_1d(places)[1:]:
        axes.set_yticklabels([])
    np.atleast_1d(places)[0].legend(frameon=False, fontsize=8, loc="lower right")
    save_figure(figure, out, overwrite=True)


def evaluate(out: Path, _: int) -> None:
    """Gain in mean IoU over the raw model, by the number of labelled images."""
    wanted = {
        title: rows
        for title, rows in tables_below("dense").items()
        if title.startswith(("kNN segmentation", "linear segmentation"))
    }
    figure, places = new_chart(11, 6, 3, rows=-(-len(wanted) // 3))
    models = list(dict.fromkeys(row[2] for rows in wanted.values() for row in rows))
    for axes, (title, rows) in zip(places, wanted.items(), strict=False):
        # column 1: labelled images, 2: model, 6: mean IoU of the populated classes, 7: minus raw
        raw = {int(row[1]): numbers(row[6])[0] for row in rows if row[2] == "raw"}
        axes.axhline(0, color=INK, lw=0.8)
        for number, model in enumerate(models[1:]):
            mine = {int(row[1]): numbers(row[7]) for row in rows if row[2] == model}
            if not mine:
                continue
            mean, low, high = (np.array(values) for values in zip(*mine.values(), strict=True))
            x = np.array(list(mine)) * 1.06 ** (number - 1)  # beside each other
            bars = np.stack([mean - low, high - mean])
            mark, hue = MARKERS[number], COLORS[number]
            style = {"color": hue, "ms": 5, "lw": 1.4, "elinewidth": 1}
            style["label"] = "10 views" if model == "denoised" else model
            axes.errorbar(x, mean, bars, fmt=mark + "-", **style)
        axes.set_xscale("log")
        axes.set_xticks(list(raw), [f"{n}\nraw {value:.1f}" for n, value in raw.items()])
        axes.minorticks_off()
        axes.set_ylim(-3, 6)
        short = title.replace(" segmentation", "").replace(" of the test images", " photos")
        style_axes(axes, short, x="labelled images", y="mIoU of 7 minus raw")
    for empty in places[len(wanted) :]:
        empty.set_axis_off()
    places[0].legend(frameon=False, fontsize=9, loc="upper left")
    save_figure(figure, out, overwrite=True)


FIGURES: dict[str, Callable[[Path, int], None]] = {
    "tokens": tokens,
    "look": look,
    "diagnose": diagnose,
    "retrieval": retrieval,
    "denoise": denoise,
    "hero": hero,
    "cure": cure,
    "compare": compare,
    "export": export,
    "prune": prune,
    "bench": bench,
    "evaluate": evaluate,
}


if __name__ == "__main__":
    main()
