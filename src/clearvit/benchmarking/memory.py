"""Peak memory of a model, in a process of its own: nothing else is in the number.

python -m clearvit.benchmarking.memory '{"model": "demo", "batches": [1], "size": [224, 224], …}'
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MEGABYTE = 1 << 20
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
    line = [sys.executable, "-m", "clearvit.benchmarking.memory", json.dumps(task)]
    done = subprocess.run(line, capture_output=True, text=True)
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


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
