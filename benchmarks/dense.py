"""Tasks on frozen tokens: the raw, the denoised, the cured and the edited model, side by side.

    python benchmarks/dense.py --work WORK [--cured dir:PATH] [--test-time dir:PATH | new | none]
        [--sizes 224 448] [--views 10] [--denoised-limit N] [--tasks …] [--rows …] [--plan]

DATA holds voc/ (PASCAL VOC with masks), depth/ ({train,test}/{rgb,depth}), imagenet100/ (class
folders) and photos/. Segmentation: linear probe and kNN from 20, 60 and all labelled
images, mean IoU of all 21 classes and of the seven that are well populated. Classification: the
nearest image, and prototypes of four images per class, at the smallest size only. "new" finds
register neurons on photos/ first.

All models of a table see the same images and samples, so their differences to the raw model are
paired. Tokens are computed once for each model, size and image, and kept in WORK with every
finished table: a run that was stopped goes on, and `--plan` says what is left. With
`--denoised-limit` the average over views is measured on so many test images above the smallest
size, and not on depth; its tables have the other models on the same images too. kNN segmentation,
whose cost grows with the fourth power of the size, are then measured on these images only.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import torch

import clearvit as cv
from clearvit.datasets.masks import read_masks
from clearvit.evaluation.evaluate import evaluate
from clearvit.files import write_json
from clearvit.probes.features import sample_images, select_evenly
from data import DATA, data_path, find_model
from tables import write_tables

POPULATED = ("background", "cat", "dog", "horse", "cow", "sheep", "person")
LABELLED = ("segmentation", "knn-segmentation")
MASKS = (*LABELLED, "clustering", "semantic-correspondence")
# Headings of the page, which worth.py and figures.py read.
HEADINGS = {
    "segmentation": "linear segmentation",
    "knn-segmentation": "kNN segmentation",
    "semantic-correspondence": "semantic correspondence",
}
FOLDERS = dict.fromkeys(MASKS, "voc") | {"depth": "depth", "classification": "imagenet100"}
ROWS = ("raw", "denoised", "cured", "test-time")
SHOWN = {
    "segmentation": ("mIoU", f"mIoU of {len(POPULATED)}"),
    "knn-segmentation": ("mIoU", f"mIoU of {len(POPULATED)}"),
    "depth": ("RMSE", "delta1"),
    "classification": ("top-1",),
    "clustering": ("mIoU",),
    "semantic-correspondence": ("same class", "at random"),
}


@dataclasses.dataclass(frozen=True)
class Job:
    """One table."""

    task: str
    size: int
    rows: tuple[str, ...]
    labelled: tuple[int | None, ...]
    limit: int | None = None  # test images


def main() -> None:
    options = parsed()
    torch.set_num_threads(options.threads)
    options.work.mkdir(parents=True, exist_ok=True)
    models = Models(options)
    jobs = planned(options)
    waiting = [job for job in jobs if not path_of(job, options, models).exists()]
    print(f"{len(jobs)} tables, {len(jobs) - len(waiting)} done.")
    if waiting and not options.page:
        estimate(waiting, options, models)
    if not (options.plan or options.page):
        for job in waiting:
            run(job, options, models)
            write_page(jobs, options, models)
    if not options.plan:
        write_page(jobs, options, models)


def run(job: Job, options: argparse.Namespace, models: Models) -> None:
    start = time.perf_counter()
    table = evaluate(
        [models[row] for row in job.rows],
        task=job.task,
        data=options.data / FOLDERS[job.task],
        **options_of(job, options),
    )
    write_json(path_of(job, options, models), table.to_json())
    print(f"{job.task}, {job.size} px: {time.perf_counter() - start:.0f} s")
    print(table.text(), flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--data", type=data_path, default=DATA)
    parser.add_argument("--raw", default="demo")
    parser.add_argument("--cured", help="dir:PATH of the cured model; left out without it")
    parser.add_argument("--test-time", default="new", help="dir:PATH, new or none")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--tasks", nargs="+", choices=FOLDERS, default=list(FOLDERS))
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 448])
    parser.add_argument("--views", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int, help="test images of every table")
    parser.add_argument("--labelled", type=int, nargs="*", default=[20, 60], help="and all")
    parser.add_argument("--denoised-limit", type=int)
    parser.add_argument("--photos", type=int, default=60, help="to find neurons on")
    parser.add_argument("--plan", action="store_true", help="only say what is left")
    parser.add_argument("--page", action="store_true", help="only write the page of finished rows")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"'{options.data}' is not there; pass --data.")
    missing = {"cured": not options.cured, "test-time": options.test_time == "none"}
    options.rows = [row for row in options.rows if not missing.get(row)]
    options.sizes.sort()
    return options


class Models:
    """The models by their rows, loaded when they are first needed."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.found: dict[str, cv.Backbone] = {}
        self.prints: dict[str, str] = {}

    def __getitem__(self, row: str) -> cv.Backbone:
        if row not in self.found:
            self.found[row] = self.made(row)
        return self.found[row]

    def made(self, row: str) -> cv.Backbone:
        """Load or make the model of a row."""
        options = self.options
        if row == "raw":
            return cv.load(find_model(options.raw))
        if row == "cured":
            return cv.load(find_model(options.cured))
        if row == "denoised":
            config = cv.CureConfig(views=options.views)
            return cv.cure(self["raw"], method="denoise", config=config)
        saved = options.work / "test-time"
        if options.test_time != "new":
            return cv.load(find_model(options.test_time))
        if not (saved / "clearvit.json").exists():
            sources = sorted((options.data / "photos").iterdir())[:: 480 // options.photos]
            # At the model's own size: the small ones may show no high-norm token at all.
            cv.cure(self["raw"], sources, method="test-time", out=saved)
        return cv.load(f"dir:{saved}")

    def fingerprint(self, row: str) -> str:
        """Tell models apart in the names of kept files."""
        if row not in self.prints:
            self.prints[row] = self[row].fingerprint()[:8]
        return self.prints[row]


def planned(options: argparse.Namespace) -> list[Job]:
    """All tables, small sizes first."""
    jobs = []
    rows = tuple(options.rows)
    fewer = tuple(row for row in rows if row != "denoised")
    for size in options.sizes:
        for task in options.tasks:
            few, every = labelled_of(task, options)
            if size == options.sizes[0] or not options.denoised_limit:
                jobs.append(Job(task, size, rows, few + every, options.limit))
                continue
            if task not in ("knn-segmentation", "classification"):
                jobs.append(Job(task, size, fewer, few + every, options.limit))
            if task in MASKS:
                jobs.append(Job(task, size, rows, few + every, options.denoised_limit))
    return jobs


Labelled = tuple[int | None, ...]


def labelled_of(task: str, options: argparse.Namespace) -> tuple[Labelled, Labelled]:
    """Numbers of labelled images: few, and all."""
    if task in LABELLED:
        return tuple(options.labelled), (None,)
    if task == "depth":
        return (20,), (None,)
    return ((4,), ()) if task == "classification" else ((), (None,))


def options_of(job: Job, options: argparse.Namespace) -> dict[str, Any]:
    """Options of the task of a job."""
    found: dict[str, Any] = {"size": job.size, "seeds": options.seeds}
    found["cache"] = options.work / "tokens"
    if job.task != "classification":  # a folder without splits, which has no limit
        found["limit"] = job.limit
    if job.task in LABELLED:
        found["subset"] = POPULATED
    if job.task in (*LABELLED, "depth", "classification"):
        found["num_labelled"] = job.labelled
    if job.task == "classification":
        found |= {"methods": ("knn", "prototypes"), "k": 1}
    return found


def path_of(job: Job, options: argparse.Namespace, models: Models) -> Path:
    few = "-".join("all" if n is None else str(n) for n in job.labelled)
    cut = f"-of-{job.limit}" if job.limit else ""
    prints = "-".join(models.fingerprint(row) for row in job.rows)
    name = f"{job.task}-{job.size}-{few}x{options.seeds}{cut}-{prints}.json"
    return options.work / "tables" / name


def estimate(jobs: list[Job], options: argparse.Namespace, models: Models) -> None:
    """Time one forward pass per model and size, and say how long the tokens will take at most."""
    total = 0.0
    for row, size in dict.fromkeys((row, job.size) for job in jobs for row in job.rows):
        backbone = models["raw" if row == "denoised" else row]
        pixels = torch.zeros(1, 3, *backbone.fitting_size(size))
        times = []
        for _ in range(3):
            start = time.perf_counter()
            with torch.no_grad():
                backbone.forward(pixels)
            times.append(time.perf_counter() - start)
        views = options.views if row == "denoised" else 1
        mine = [job for job in jobs if row in job.rows and job.size == size]
        count = images_of(mine, options)
        total += (seconds := min(times) * views * count)
        print(f"  {row}, {size} px: {count} images x {views} views, {seconds / 60:.1f} min")
    print(f"about {total / 60:.0f} min of forward passes, less what {options.work} holds; then the")
    print("probes, half a minute each at 448 px, and kNN.", flush=True)


def images_of(jobs: list[Job], options: argparse.Namespace) -> int:
    """Count the images that the tasks need, each once."""
    needed = set()
    for job in jobs:
        folder = options.data / FOLDERS[job.task]
        if job.task in MASKS:
            train, test = (read_masks(folder, split=split) for split in ("train", "val"))
            needed |= {test.images[i] for i in select_evenly(len(test), job.limit)}
            if job.task in LABELLED:
                for count in job.labelled:
                    for seed in range(options.seeds):
                        needed |= {train.images[i] for i in sample_images(len(train), count, seed)}
        else:
            needed |= {path for path in folder.rglob("*.*") if "depth" not in path.parent.name}
    return len(needed)


# --- the page ---------------------------------------------------------------------------------


def write_page(jobs: list[Job], options: argparse.Namespace, models: Models) -> None:
    tables: dict[str, list[str]] = {}
    for job in sorted(jobs, key=lambda job: (job.size, bool(job.limit), job.task)):
        path = path_of(job, options, models)
        if path.exists():
            note = f", {job.limit} of the test images" if job.limit else ""
            heading = HEADINGS.get(job.task, job.task)
            title = f"\n## {heading}, {job.size} px{note}\n\n{head_of_table(job.task)}"
            tables.setdefault(title, []).extend(lines_of(job, json.loads(path.read_text())))
    head = HEAD.format(date=time.strftime("%Y-%m-%d"), machine=platform.machine())
    head += f"{options.views} views. torch {torch.__version__}.\n"
    parts = [f"{title}\n" + "\n".join(lines) + "\n" for title, lines in tables.items()]
    used = ("voc", "depth", "imagenet100")
    write_tables("dense", "\n".join([head, *parts]), data=used, models=list(ROWS))


def head_of_table(task: str) -> str:
    columns = ["setting", "labelled", "model", "tested"]
    for metric in SHOWN[task]:
        columns += [metric, "minus raw"]
    return f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|"


def lines_of(job: Job, table: dict[str, Any]) -> list[str]:
    """Lines of a table, models of one setting together."""
    names = dict.fromkeys(row["model"] for row in table["rows"])
    shown = dict(zip(names, job.rows, strict=True))
    ranked: dict[tuple[str, int], list[str]] = {}
    for row in table["rows"]:
        cells = [row["setting"], str(row["num_labelled"])]
        cells += [shown[row["model"]], str(row["num_tested"])]
        for metric in SHOWN[job.task]:
            cells += pair(row["values"].get(metric))
        where = ranked.setdefault((row["setting"], row["num_labelled"]), [])
        where.append(f"| {' | '.join(cells)} |")
    return [line for some in ranked.values() for line in some]


def pair(value: dict[str, Any] | None) -> tuple[str, str]:
    """A metric, and how far it is from that of the raw model."""
    if not value or value["mean"] is None:
        return "-", "-"
    digits = 3 if abs(value["high"]) < 10 else 1
    std = "" if value["std"] is None else f" ± {value['std']:.{digits}f}"
    middle, low, high = (f"{value[key]:.{digits}f}" for key in ("mean", "low", "high"))
    shown = f"{middle}{std} ({low} to {high})"
    apart = value["difference"]
    if not apart:
        return shown, "-"
    mean, low, high = (f"{apart[key]:+.{digits}f}" for key in ("mean", "low", "high"))
    return shown, f"{mean} ({low} to {high})"


HEAD = """# Tasks on frozen tokens

Mean ± standard deviation over samples of labelled images (95 % interval over resampled test
images); all labelled images are one sample. Differences to the raw model are paired: the same
images and samples. `raw`: the model as it is. `denoised`: each image averaged over views.
`cured`: registers by self-distillation. `test-time`: register neurons, no training.
VOC: 300 train and 150 val images, animals mostly; the second mean is over background, cat, dog,
horse, cow, sheep and person. {date}, {machine}. Reproduce:
`python benchmarks/dense.py --work WORK --cured dir:PATH --denoised-limit 50`

"""


if __name__ == "__main__":
    main()
