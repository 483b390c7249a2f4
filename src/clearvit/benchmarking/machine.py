"""What this machine can do at best: the rate of a large matrix product."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from clearvit.timing import Pass

SIDE = 1024  # of the matrices: large enough for full speed, 4 MB each


@dataclass(frozen=True)
class Machine:
    """Where the numbers come from."""

    processor: str
    cores: int
    threads: int  # torch's, which all models use
    torch: str

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' * (self.threads != 1)} used"
        return f"{self.processor}, {self.cores} cores, {threads}, torch {self.torch}"


def this_machine() -> Machine:
    """Describe the machine we run on."""
    cores = os.cpu_count() or 1
    return Machine(_processor(), cores, torch.get_num_threads(), torch.__version__)


def sgemm(device: torch.device) -> tuple[Pass, float]:
    """Give a matrix product in float32 to be timed, and its multiply-accumulates."""
    left, right = (torch.randn(SIDE, SIDE, device=device) for _ in range(2))
    return (lambda: float((left @ right)[0, 0])), float(SIDE**3)


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        for line in listing.read_text("utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return platform.processor() or platform.machine()
