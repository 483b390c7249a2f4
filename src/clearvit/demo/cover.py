"""The first page of the demo's report: three numbers, one strip of images, what did not work."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clearvit.backbones.load import CURED_DEMO, load
from clearvit.demo.strip import draw_strip
from clearvit.files import read_json
from clearvit.images import read_image
from clearvit.report.elements import Element, Facts, ImageElement, Link, Notice, Paragraph, Section
from clearvit.report.page import write_page

NAMES = {"demo": "DINOv2 ViT-S/14", CURED_DEMO: "DINOv2 ViT-S/14 with the cure that ships"}
CLOSE = 0.9  # cosine of class tokens below which a pruned model is another one
Row = dict[str, Any]


@dataclass(frozen=True)
class Findings:
    """What the steps of the demo left as JSON.

    Attributes:
        raw: Row of the raw model in the comparison.
        cured: Row of the cure that is shown: the shipped one, or the one trained here.
        trained: Row of the cure trained here.
        bench: Rows of the pruned model, one per batch size.
        views: Number of views of the reference.
        images: Number of images that were compared.
    """

    raw: Row
    cured: Row
    trained: Row
    bench: tuple[Row, ...]
    views: int
    images: int

    @classmethod
    def read(cls, out: Path) -> Findings:
        """Read what `compare` and `bench` wrote below a directory."""
        compared, timed = (
            read_json(out / "compare/compare.json"),
            read_json(out / "bench/bench.json"),
        )
        rows = compared["rows"]
        first = timed["rows"][0]["model"]
        pruned = tuple(row for row in timed["rows"] if row["model"] != first)
        views, images = compared["gap"]["views"], len(compared["images"])
        return cls(rows[0], rows[1], rows[-1], pruned, views, images)


def write_cover(out: Path, model: str, photo: Path, size: int, *, device: str = "auto") -> Path:
    """Write cover.html from the finished steps of a demo."""
    found = Findings.read(out)
    cured = CURED_DEMO if model == "demo" else f"dir:{out / 'cured'}"
    raw, after = (load(name, size=size, device=device) for name in (model, cured))
    strip = draw_strip(raw, after, read_image(photo), views=16)
    elements: list[Element] = [
        Paragraph(_names(model, out)),
        Facts(numbers(found)),
        ImageElement(
            strip,
            alt="A photo, its tokens as colors from one pass and from many views; norms and"
            " distances to clean tokens before and after the cure",
            caption=f"{NAMES.get(model, model)}, {size} px. Colors: three principal components of"
            " the fine tokens of the foreground.",
        ),
        Notice("What did not work", " ".join(failures(found)), "warn"),
    ]
    if (out / "compare/microscope.html").exists():
        elements.append(Link("Point at patches: the microscope", "compare/microscope.html"))
    return write_page(out / "cover.html", "In short", [Section("Three numbers", tuple(elements))])


def numbers(found: Findings) -> tuple[tuple[str, str], ...]:
    """Give the three numbers: artifact tokens, distance to clean tokens, speed with quality."""
    raw, cured = _part(found.raw, "peak_fraction"), _part(found.cured, "peak_fraction")
    speed = found.bench[-1]
    quality = (speed.get("quality") or {}).get("cls")
    kept = "" if quality is None else f", class token cosine {quality:.2f}"
    return (
        (
            "artifact tokens in the worst block, raw and cured",
            f"{100 * raw:.2f} to {100 * cured:.2f} %",
        ),
        (
            f"gap to the average of {found.views} views, closed by one pass",
            f"{100 * _part(found.cured, 'gap_closed'):.0f} %",
        ),
        (
            f"speed with 70 % of the patches, batch {speed['batch']}",
            f"{speed['ratio']['median']:.2f} x{kept}",
        ),
    )


def failures(found: Findings) -> list[str]:
    """Say in sentences what the numbers do not show, or show against us."""
    texts = [
        f"All comparisons rest on {found.images} held-out photos: they show the way, not a result."
    ]
    gap, better = (_part(row, "gap_closed") for row in (found.trained, found.cured))
    left = _part(found.cured, "peak_fraction")
    if found.trained is not found.cured:
        texts.append(
            f"The cure trained here, on parts of a few photos, closes {100 * gap:.0f} % of the gap"
            f" ({100 * better:.0f} % by the one that ships, trained on more)."
        )
    if gap <= 0:
        texts.append("It is no better than the raw model and was kept only to be shown.")
    if left > 0:
        texts.append(f"{100 * left:.2f} % artifact tokens are left.")
    for row in found.bench:
        if row["ratio"]["low"] <= 1:
            interval = f"{row['ratio']['low']:.2f} to {row['ratio']['high']:.2f} x"
            texts.append(f"At batch {row['batch']} a gain in speed is not certain ({interval}).")
        quality = (row.get("quality") or {}).get("cls")
        if quality is not None and quality < CLOSE and row is found.bench[-1]:
            texts.append(f"The pruned class token has moved far (cosine {quality:.2f}).")
    texts.append("Masks and boxes were not measured: nobody has labelled these photos.")
    return texts


def _part(row: Row, key: str) -> float:
    """Give a fraction of a row; none where there is nothing to find or to close."""
    return float(row[key] or 0.0)


def _names(model: str, out: Path) -> str:
    if model != "demo":
        return f"{model}, and dir:{out / 'cured'}, the same with the cure trained here."
    return (
        f"In this report demo is {NAMES['demo']}, {CURED_DEMO} the same with the cure that ships,"
        f" and dir:{out / 'cured'} the same with the short cure that was trained here."
    )
