"""The curves of the PH-Reg paper, drawn by the verb: quality against views and against registers.

    python benchmarks/curves.py --work WORK [--only "views / MODEL" …]
    python benchmarks/render.py curves        # docs/results/curves.md from the JSON alone

`clearvit curve --over views` on 24 photos at 224 px (1 to 32 views, both kinds), and `--over
registers` on AugReg ViT-Ti with 120 photos: one short cure of 3 epochs for each of 0, 1, 2, 4, 8
and 16 registers, by the same targets and the same seed. Writes benchmarks/results/curves.json and
the figures docs/images/curve-*.png.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

import clearvit as cv
from clearvit.comparison.curves import draw_curve
from clearvit.report.figure import save_figure
from data import DATA, data_path, find_model
from evidence import read_result, write_result
from pages.curves import figure_name, read_curve
from render import images_folder, render

AUGREG = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
RUNS: dict[str, dict[str, Any]] = {
    f"views / {AUGREG}": {"over": "views", "limit": 24},
    f"registers / {AUGREG}": {"over": "registers", "limit": 120, "epochs": 3},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--work", type=Path, default=Path("build/curves"))
    parser.add_argument("--data", type=data_path, default=f"{DATA}/photos")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--limit", type=int, help="photos, instead of those of a curve")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for key in options.only:
        if key not in (read_result("curves") or {"rows": {}})["rows"]:
            model, folder = key.split(" / ")[1], options.work / key.replace(" / ", "-")
            start = time.process_time()
            backbone = cv.load(find_model(model), size=options.size)
            settings = RUNS[key] | ({"limit": options.limit} if options.limit else {})
            found = cv.curve(backbone, options.data, out=folder, **settings)
            row = {**found.to_json(), "model": model}
            row["cpu minutes"] = (time.process_time() - start) / 60
            content = read_result("curves") or {"rows": {}}
            content["rows"][key], content["date"] = row, time.strftime("%Y-%m-%d")
            content["command"] = "python benchmarks/curves.py --work WORK"
            write_result("curves", content, data=["photos"], seeds=[0], models=[model])
            print(found, flush=True)
    images = images_folder()
    for key, row in read_result("curves")["rows"].items():
        save_figure(draw_curve(read_curve(row)), images / f"{figure_name(key)}.png")
    render("curves")


if __name__ == "__main__":
    main()
