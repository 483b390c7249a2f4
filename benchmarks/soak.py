"""Random verbs with random kills on one disk: is anything lost, doubled or left over?

    python benchmarks/soak.py --minutes 120 --out soak.json

Tiny models and images, so that the files are what is worked on. Every trial runs one verb in a
process of its own, which is killed (SIGKILL) at random moments, sometimes beside a second process
that does the same, and then runs it to the end. Then

- the result equals the one of a run that nobody disturbed, byte for byte where it is promised;
- no temporary file is left, anywhere in the output directory;
- images, model and the files of a bystander in the same parent directory are unchanged;
- an index holds every image once.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

PRELOAD = [
    *("clearvit.cures.cure", "clearvit.pruning.prune", "clearvit.pruning.training.train"),
    *("clearvit.retrieval.index.index", "clearvit.formats.export", "clearvit.shards.extract"),
    *("clearvit.artifacts.report.look", "clearvit.backbones.saved"),  # LanceDB must not be forked
    *("clearvit.segmentation.segment", "clearvit.microscopy.microscope_page"),
]
IMAGES, ADDED = 24, 6
CURE: dict[str, Any] = {
    **{"views": 4, "epochs": 2, "batch": 4, "registers": 1, "lr": 1e-3},
    **{"precision": "no", "keep_anyway": True},
}
PRUNE: dict[str, Any] = {"batch": 4, "epochs": 2, "keep": 0.7, "precision": "no"}
SEGMENT: dict[str, Any] = {
    **{"method": "prototypes", "scale": 1, "refine": "none"},
    **{"batch": 2, "coco": True},
}


def prepare(folder: Path) -> None:
    """Write a model and images, which no trial may change."""
    import numpy as np
    import timm
    import torch
    from PIL import Image

    from clearvit.backbones.load import load
    from clearvit.backbones.saved import save

    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 4, "num_heads": 3}
    save(load(timm.create_model("vit_tiny_patch16_224", num_classes=0, **sizes)), folder / "model")
    rng = np.random.default_rng(0)
    for group, count in (("images", IMAGES), ("added", ADDED)):
        (folder / group).mkdir()
        for number in range(count):
            pixels = rng.integers(0, 255, (6, 6, 3), dtype=np.uint8)
            name = f"{group}-{number:02d}.png"
            Image.fromarray(pixels).resize((40, 40)).save(folder / group / name)
    (folder / "images" / "broken.png").write_bytes(b"broken")
    for name in ("images", "masks"):
        (folder / "examples" / name).mkdir(parents=True)
    for number in range(2):
        name, halves = f"example-{number}.png", np.zeros((40, 40), np.uint8)
        halves[:, 20:] = 1
        shutil.copy(
            folder / "images" / f"images-{number:02d}.png", folder / "examples/images" / name
        )
        Image.fromarray(halves).save(folder / "examples/masks" / name)


def run_verb(verb: str, folder: Path, out: Path) -> None:
    """Do one verb to its end, in this process."""
    import torch

    import clearvit as cv

    os.environ["CLEARVIT_PROGRESS"] = "0"
    torch.set_num_threads(1)
    backbone, images = cv.load(f"dir:{folder / 'model'}"), folder / "images"
    if verb == "tokens":
        cv.save_tokens(backbone, images, out=out, batch=2, shard=4, layers=(0,))
    elif verb == "cure":
        cv.cure(backbone, images, out=out, **CURE)
    elif verb == "prune with images":
        cv.prune(backbone, images, out=out, **PRUNE)
    elif verb == "prune":
        cv.prune(backbone, out=out, keep=0.5)
    elif verb == "export timm":
        cv.export(backbone, out, format="timm")
    elif verb == "export hf":
        cv.export(backbone, out, format="hf")
    elif verb == "look":
        cv.look(backbone, images / "images-00.png", out=out)
    elif verb == "segment":
        cv.segment(backbone, images, examples=folder / "examples", out=out, **SEGMENT)
    elif verb == "microscope":
        cv.microscope(backbone, images, out=out / "page.html", limit=6, channels=8)
    elif verb == "index":
        cv.Index.build(backbone, images, out=out, batch=2)
    elif verb == "index, more images":
        index = cv.Index.build(backbone, images, out=out, batch=2)
        index.add(folder / "added")
        known = set(index.names)
        index.remove([name for name in ("images-00.png", "images-01.png") if name in known])


VERBS = (
    *("tokens", "cure", "prune with images", "prune", "export timm", "export hf", "look"),
    *("segment", "microscope", "index", "index, more images"),
)


def contents(folder: Path) -> dict[str, str]:
    """Hash all files of a directory."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def result_of(verb: str, out: Path) -> Any:
    """Give what must be the same after any number of kills."""
    if verb.startswith("index"):
        from clearvit.retrieval.index.store import Store

        store = Store.open(out, None)
        rows = store.fetch(sorted(store.entries()))
        return {
            "names": sorted(entry.name for entry in rows.entries),
            "rows": len(store),
            "values": float(rows.features.descriptors.double().sum()) if rows.features else None,
        }
    found = contents(out)
    # These name the directory they stand in; events carry the time.
    named = ("README.md", ".html", "tfevents")
    return {name: value for name, value in found.items() if not any(n in name for n in named)}


def leftovers(folder: Path) -> list[str]:
    """Name temporary files that nobody will need any more."""
    marks = (".part", ".tmp", "#")  # the last two are Lance's
    return [str(p) for p in folder.rglob("*") if any(mark in p.name for mark in marks)]


class Soak:
    """The trials and what they found."""

    def __init__(self, folder: Path, rng: random.Random, out: Path) -> None:
        self.folder, self.rng, self.out = folder, rng, out
        self.processes = multiprocessing.get_context("forkserver")
        self.processes.set_forkserver_preload(PRELOAD)
        self.references: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}
        self.trials: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self.faults: list[str] = []
        self.begun = time.time()

    def start(self, verb: str, out: Path) -> Any:
        """Begin a verb in a process of its own."""
        process = self.processes.Process(target=run_verb, args=(verb, self.folder, out))
        process.start()
        return process

    def learn(self) -> None:
        """Run every verb once without a kill; the first start of the server is not counted."""
        for verb in ("tokens", *VERBS):
            out = self.folder / "reference" / verb.replace(" ", "-")
            shutil.rmtree(out, ignore_errors=True)
            began = time.monotonic()
            process = self.start(verb, out)
            process.join()
            if process.exitcode:
                raise SystemExit(f"'{verb}' fails without any kill")
            self.seconds[verb] = time.monotonic() - began
            self.references[verb] = result_of(verb, out)

    def trial(self) -> None:
        """Disturb one verb, let it end, and look at what it left."""
        verb = self.rng.choice(VERBS)
        place = self.folder / "trials" / f"{sum(self.trials.values()):05d}"
        (place / "bystander").mkdir(parents=True)
        (place / "bystander" / "plan.json").write_text("mine")
        (place / "training.txt").write_text("mine")
        out = place / "out"
        for _ in range(self.rng.randrange(4)):
            pair = [self.start(verb, out) for _ in range(1 + (self.rng.random() < 0.2))]
            wait = self.rng.uniform(0, 1.1) * self.seconds[verb]
            deadline = time.monotonic() + wait
            for process in pair:
                process.join(max(0.0, deadline - time.monotonic()))
                if process.is_alive():
                    process.kill()
                process.join()
                self.kills[verb] += process.exitcode == -signal.SIGKILL
        last = self.start(verb, out)
        last.join(3600)  # however busy the machine is
        if last.is_alive():
            last.kill()
            last.join()
        self.trials[verb] += 1
        self.judge(verb, place, last.exitcode)

    def judge(self, verb: str, place: Path, code: int) -> None:
        """Note all that is wrong; keep the directory of a trial that went wrong."""
        faults = [] if code == 0 else [f"the last run ended with {code}"]
        if not faults:
            found, wanted = result_of(verb, place / "out"), self.references[verb]
            if found != wanted:
                keys = [k for k in {**found, **wanted} if found.get(k) != wanted.get(k)]
                faults.append(f"the result differs: {', '.join(map(str, keys[:5]))}")
        faults += [f"left over: {name}" for name in leftovers(place)]
        if (place / "bystander" / "plan.json").read_text() != "mine":
            faults.append("a file of somebody else was changed")
        others = {"bystander", "training.txt", "out"}
        faults += [f"strange: {p.name}" for p in place.iterdir() if p.name not in others]
        self.faults += [f"{place.name}, {verb}: {fault}" for fault in faults]
        if not faults:
            shutil.rmtree(place)

    def report(self, finished: bool) -> None:
        """Write the numbers so far."""
        content = {
            "minutes": round((time.time() - self.begun) / 60, 1),
            "finished": finished,
            "trials": sum(self.trials.values()),
            "kills": sum(self.kills.values()),
            "by_verb": {v: {"trials": self.trials[v], "kills": self.kills[v]} for v in VERBS},
            "faults": self.faults,
        }
        whole = self.out.with_suffix(".part")
        whole.write_text(json.dumps(content, indent=2))
        os.replace(whole, self.out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--out", type=Path, default=Path("soak.json"))
    parser.add_argument("--folder", type=Path, help="on the disk to test; a temporary one if none")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="clearvit-soak-", dir=options.folder))
    soak = Soak(folder, random.Random(options.seed), options.out)
    maker = soak.processes.Process(target=prepare, args=(folder,))
    maker.start()
    maker.join()
    inputs = {name: contents(folder / name) for name in ("model", "images", "added", "examples")}
    soak.learn()
    while time.time() - soak.begun < options.minutes * 60:
        soak.trial()
        soak.report(finished=False)
    for name, before in inputs.items():
        if contents(folder / name) != before:
            soak.faults.append(f"the {name} were changed")
    soak.report(finished=True)
    if not soak.faults:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
