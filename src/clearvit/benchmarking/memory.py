"""Peak memory of a model, in a process of its own: nothing else is in the number.

It runs isolated: neither the user's working directory nor PYTHONPATH decides which code is run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import clearvit

MEGABYTE = 1 << 20
HOME = Path(clearvit.__file__).resolve().parents[1]
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_memory(
    model: str,
    *,
    keep: Sequence[float] | None,
    size: tuple[int, int],
    batches: Sequence[int],
    threads: int,
) -> dict[int, float] | None:
    """Measure the peak resident memory of forward passes in MB, by batch size.

    On Linux the peak is that of the passes alone, elsewhere loading is in it. None where the
    system does not report it, or the process was stopped for taking too much.
    """
    task = {"model": model, "keep": keep, "size": size, "batches": batches, "threads": threads}
    task["folder"] = os.getcwd()  # the model may be a relative path
    # By the place of this very package, since -I leaves PYTHONPATH out.
    code = f"import sys; sys.path.insert(0, {str(HOME)!r}); import {__name__} as m; m.main()"
    line = [sys.executable, "-I", "-c", code, json.dumps(task)]
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(line, capture_output=True, text=True, cwd=empty)
    if done.returncode != 0 or not done.stdout.strip():
        return None
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return {int(batch): value for batch, value in found.items()}


def measure(task: dict[str, Any]) -> dict[int, float]:
    """Load a model and run it, in this process."""
    import torch

    from clearvit.backbones.load import load
    from clearvit.pruning.prune import prune

    torch.set_num_threads(task["threads"])
    backbone = load(task["model"])
    if task["keep"] is not None:
        backbone = prune(backbone, keep=task["keep"])
    size = backbone.fitting_size(tuple(task["size"]))
    peaks = {}
    for batch in sorted(task["batches"]):
        pixels = torch.zeros(batch, 3, *size)
        _reset_peak()
        with torch.no_grad():
            backbone.forward(pixels.to(backbone.device, backbone.dtype))
        peak = _peak()
        if peak is not None:
            peaks[batch] = peak
    return peaks


def _reset_peak() -> None:
    """Reset the peak, where the system can."""
    try:
        CLEAR.write_text("5")
    except OSError:
        pass


def _peak() -> float | None:
    if STATUS.is_file():
        return int(STATUS.read_text().partition("VmHWM:")[2].split()[0]) / 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    units = MEGABYTE if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / units


def main() -> None:
    """Measure what the first argument says, as JSON, and print the result as JSON."""
    task = json.loads(sys.argv[1])
    os.chdir(task["folder"])
    print(json.dumps(measure(task)))
