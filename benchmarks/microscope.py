"""How fluid and how large the page of the microscope is, in headless chromium.

    python benchmarks/microscope.py [--images $CLEARVIT_DATA/photos] [--part hover]

Three pages of the demo model, raw and cured: a grid of 74 x 74 patches (518 px, scale 2), over
which the pointer moves with every frame; twelve images with four blocks each, for their size; a
hundred images, whose strip and page are scrolled. Writes benchmarks/results/microscope.json, part
by part, and docs/results/microscope.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import clearvit as cv
from clearvit.views.denoised import with_views
from data import DATA, data_path
from evidence import read_result, write_result
from render import render

GOAL = 30.0  # frames a second
HOVER = """async (count) => {
  const canvas = document.querySelectorAll(".stage canvas")[1];
  const box = canvas.getBoundingClientRect();
  const times = [], work = [], drawn = window.clearvit.frames;
  for (let i = 0; i < count; i++) {
    const [x, y] = [0.5 + 0.48 * Math.sin(i * 0.37), 0.5 + 0.48 * Math.cos(i * 0.23)];
    const place = { clientX: box.left + x * box.width, clientY: box.top + y * box.height };
    canvas.dispatchEvent(new PointerEvent("pointermove", { ...place, bubbles: true }));
    times.push(await new Promise((done) => requestAnimationFrame((now) => {
      work.push(performance.now() - now);  // the page's own callback came first
      done(now);
    })));
  }
  return { times, work, drawn: window.clearvit.frames - drawn };
}"""
SCROLL = """async (count) => {
  const strip = document.querySelector(".images"), times = [];
  for (let i = 0; i < count; i++) {
    strip.scrollLeft = (i / count) * strip.scrollWidth;
    window.scrollTo(0, (i / count) * document.documentElement.scrollHeight);
    times.push(await new Promise((done) => requestAnimationFrame(done)));
  }
  return { times, work: times.map(() => 0), drawn: count };
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=data_path, default=f"{DATA}/photos")
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--limit", type=int, help="at most so many images on a page")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--part", nargs="*", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    files = sorted(options.images.iterdir())[: options.limit]
    found: dict[str, Any] = read_result("microscope")
    for part in options.part:
        with tempfile.TemporaryDirectory() as folder:
            found[part] = {**PARTS[part](files, Path(folder), options.frames), **circumstances()}
        print(part, found[part])
        write_result("microscope", found, data=["photos"], models=["demo", "demo-cured"])
    if set(found) == set(PARTS):
        render("microscope")


def circumstances() -> dict[str, Any]:
    return {"date": time.strftime("%Y-%m-%d"), "load": os.getloadavg()[0], "cores": os.cpu_count()}


def both() -> list[cv.Backbone]:
    return [cv.load("demo"), cv.load("demo", cure=True)]


def measure_hover(files: list[Path], folder: Path, frames: int) -> dict[str, Any]:
    models = [with_views(model, None, 2) for model in both()]
    page = cv.microscope(models, files[:1], out=folder / "fine.html", size=518)
    return play(page.path, HOVER, frames)


def measure_twelve(files: list[Path], folder: Path, frames: int) -> dict[str, Any]:
    page = cv.microscope(both(), files[:12], out=folder / "twelve.html", size=518)
    return {"bytes": page.bytes, "blocks": _layers(page.path)}


def measure_hundred(files: list[Path], folder: Path, frames: int) -> dict[str, Any]:
    page = cv.microscope(
        both(), files[:100], out=folder / "hundred.html", size=224, megabytes=25, layers=(8,)
    )
    return {"bytes": page.bytes, **play(page.path, SCROLL, frames)}


PARTS = {"hover": measure_hover, "twelve": measure_twelve, "hundred": measure_hundred}


def _layers(page: Path) -> int:
    text = re.search(r'id="clearvit-data">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    assert text is not None
    return min(len(model["layers"]) for model in json.loads(text[1])["models"])


def play(page: Path, script: str, frames: int) -> dict[str, Any]:
    """Open a page and run a script; seconds until the first map, and times of frames."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        alone = ["--no-sandbox"] if os.getuid() == 0 else []
        path = shutil.which("chromium") or shutil.which("google-chrome")
        window = playwright.chromium.launch(executable_path=path, args=alone)
        tab = window.new_page(viewport={"width": 1400, "height": 1000})
        tab.set_default_timeout(300_000)
        begun = time.perf_counter()
        tab.goto(page.as_uri())
        tab.wait_for_function("() => window.clearvit && window.clearvit.frames > 0")
        tab.evaluate("window.clearvit.store.idle()")
        loaded = time.perf_counter() - begun
        tab.wait_for_timeout(1000)
        seen = tab.evaluate(script, frames)
        window.close()
    steps = [b - a for a, b in zip(seen["times"], seen["times"][1:], strict=False)]
    return {
        "seconds until shown": loaded,
        "frames a second": 1000 * len(steps) / sum(steps),
        "median ms": statistics.median(steps),
        "95 % within ms": sorted(steps)[int(0.95 * len(steps))],
        "script ms, fastest tenth": statistics.quantiles(seen["work"], n=10)[0],
        "script ms, median": statistics.median(seen["work"]),
        "maps drawn a frame": seen["drawn"] / frames,
    }


if __name__ == "__main__":
    main()
