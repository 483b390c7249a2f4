"""One version of clearvit, a tiny model and images, to try hostile things on."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

MODEL = """
import clearvit.backbones, torch, sys
try: import clearvit.backbones.guarded_timm
except ImportError: import clearvit.backbones.torchvision_guard
import clearvit as cv, timm
def network(**more):
    torch.manual_seed(0)
    sizes = dict(img_size=32, patch_size=8, embed_dim=24, depth=4, num_heads=3, num_classes=0)
    return timm.create_model("vit_tiny_patch16_224", **(sizes | more))
"""
SETTINGS = {"CLEARVIT_PROGRESS": "0", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@dataclass
class Place:
    """Where one version is tried: its source, a model, images."""

    folder: Path
    path: list[str]  # PYTHONPATH
    old: bool  # without the options that came with the mends

    @property
    def model(self) -> str:
        """The name of the tiny model."""
        return f"dir:{self.folder / 'model'}"

    @property
    def images(self) -> Path:
        """Six small images."""
        return self.folder / "images"

    @property
    def cure(self) -> list[object]:
        """Options of a short cure that is kept whatever it brings."""
        short = ["--views", 2, "--epochs", 1, "--batch", 2, "--registers", 1]
        return short if self.old else [*short, "--keep-anyway"]

    def new(self, name: str) -> Path:
        """Give a fresh directory."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))

    def environment(self, **more: str) -> dict[str, str]:
        """Settings of a process that sees this version only."""
        return {**os.environ, **SETTINGS, "PYTHONPATH": os.pathsep.join(self.path), **more}

    def start(self, *words: object, **options: object) -> subprocess.Popen[str]:
        """Begin a command of clearvit."""
        line = [sys.executable, "-P", "-m", "clearvit", *map(str, words)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(line, **{"env": self.environment(), **pipes, **options})

    def run(self, *words: object, **options: object) -> subprocess.CompletedProcess[str]:
        """Run a command of clearvit to its end."""
        process = self.start(*words, **options)
        out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def python(self, code: str, **options: object) -> subprocess.CompletedProcess[str]:
        """Run some lines of Python."""
        line = [sys.executable, "-P", "-c", MODEL + code]
        pipes = {"capture_output": True, "text": True, "timeout": 300}
        return subprocess.run(line, **{"env": self.environment(), **pipes, **options})


def raw(done: subprocess.CompletedProcess[str]) -> bool:
    """Tell whether a run ended in a traceback."""
    return "Traceback" in done.stderr


def last(done: subprocess.CompletedProcess[str]) -> str:
    """Give the last line that was printed."""
    return ((done.stderr + done.stdout).strip().splitlines() or [""])[-1][:160]


def paint(folder: Path, count: int = 6, seed: int = 0) -> Path:
    """Write some images."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for number in range(count):
        pixels = rng.integers(0, 255, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((40, 40)).save(folder / f"{number:02d}.png")
    return folder


def changed_model(at: Place, change: str) -> str:
    """Save the tiny model with other weights."""
    folder = at.new("changed")
    at.python(f"n = network()\n{change}\ncv.save(cv.load(n), {str(folder / 'm')!r})")
    return f"dir:{folder / 'm'}"


def limit_files() -> None:
    """Let a process write no more than 20 kB to a file, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
