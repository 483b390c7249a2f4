"""How long do the two commands of the README take on a fresh machine?

    python benchmarks/fresh.py [--work DIR]

Clones this repository into an empty directory, with an empty cache and no environment of its own,
and runs `make demo` and `make test` there, one after the other. Each sets itself up.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tables import write_tables

ROOT = Path(__file__).parents[1]
COMMANDS = (("make", "demo"), ("make", "test"))
OUTSIDE = ("PYTHONPATH", "VIRTUAL_ENV", "CLEARVIT_CACHE", "CLEARVIT_DATA", "OMP_NUM_THREADS")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, help="an empty directory; a temporary one by default")
    options = parser.parse_args()
    if options.work is not None:
        options.work.mkdir(parents=True, exist_ok=True)
        measure(options.work)
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder))


def measure(folder: Path) -> None:
    clone = folder / "clearvit"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    commit = run(("git", "rev-parse", "--short", "HEAD"), clone, {})[1].strip()
    cache = {"CLEARVIT_CACHE": str(folder / "cache"), "CI": "1"}
    rows = []
    for command in COMMANDS:
        minutes, said = run(command, clone, cache)
        (folder / f"{command[-1]}.log").write_text(said)
        rows.append(f"| `{' '.join(command)}` | {minutes:.1f} | {outcome(said, clone)} |")
        print(rows[-1], flush=True)
    write_tables("fresh", page(commit, rows))


def run(command: tuple[str, ...], clone: Path, extra: dict[str, str]) -> tuple[float, str]:
    """Run a command in the clone; give the minutes it took and what it said."""
    surroundings = {k: v for k, v in os.environ.items() if k not in OUTSIDE} | extra
    begun = time.monotonic()
    done = subprocess.run(
        command,
        cwd=clone,
        env=surroundings,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}")
    return (time.monotonic() - begun) / 60, done.stdout


def outcome(said: str, clone: Path) -> str:
    """Tell what a command came to, without the places of this machine."""
    tests = re.findall(r"\d+ passed.* in [\d.]+s", said)
    if tests:
        return tests[-1]
    pages = [line for line in said.splitlines() if line.endswith(".html")]
    return f"`{pages[-1].removeprefix(str(clone) + '/')}`" if pages else "done"


def page(commit: str, rows: list[str]) -> str:
    lines = "\n".join(rows)
    return f"""# A fresh clone

Commit {commit}, empty directory, empty cache, no environment; each command sets itself up, the
second on top of the first. {time.strftime("%Y-%m-%d")}, {platform.machine()}, {os.cpu_count()}
cores, Python {platform.python_version()}. Reproduce: `python benchmarks/fresh.py`

| command | minutes | ends with |
|---|---|---|
{lines}
"""


if __name__ == "__main__":
    main()
