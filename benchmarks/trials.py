"""Try every benchmark and every recipe on a few images, into a scratch folder.

    python benchmarks/run.py --quick       # or `make results QUICK=1`

Nothing of the repository is written. Trials run side by side, one thread each, recipes first, since
jobs use them. A trial that fails does not stop the others; the end of its log is shown last, and
the exit code is 1.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from data import find_data
from evidence import HERE
from jobs import Job
from recipes import TRIAL
from small_data import make_small_data

LIMIT = 1800.0  # seconds of one trial: half a minute alone, much longer where others compute too
RUNNING: set[int] = set()  # process groups
WORKERS = max(1, min(4, os.cpu_count() or 1))


@dataclass(frozen=True)
class Trial:
    """One command, and how it ended."""

    name: str
    command: list[str]
    log: Path
    problem: str = ""  # why it failed
    seconds: float = 0.0  # of CPU


def try_all(commands: dict[str, list[str]], scratch: Path, workers: int = WORKERS) -> list[Trial]:
    """Run commands side by side; each writes a log of its own. Gives them in their order."""
    (scratch / "logs").mkdir(parents=True, exist_ok=True)
    trials = [
        Trial(name, command, scratch / "logs" / f"{number:02}-{name.split()[0]}.log")
        for number, (name, command) in enumerate(commands.items())
    ]
    pool = ThreadPoolExecutor(workers)
    try:
        return list(pool.map(try_one, trials))
    finally:  # after Ctrl-C too: no trial goes on alone, and none begins
        pool.shutdown(wait=False, cancel_futures=True)
        for pid in list(RUNNING):
            os.killpg(pid, signal.SIGKILL)


def end_with_all() -> None:
    """Take a request to end like Ctrl-C, so that the trials that run end too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def try_one(trial: Trial) -> Trial:
    """Run one command to its end, at most `LIMIT` seconds, and say how it ended."""
    one_thread = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with trial.log.open("w") as log:
        process = subprocess.Popen(
            trial.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=one_thread,
            start_new_session=True,  # so that a trial is stopped with all it has started
        )
        RUNNING.add(process.pid)
        problem, seconds = wait(process.pid, LIMIT)
    print(f"{seconds:5.0f} s  {trial.name}: {problem or 'ok'}", flush=True)
    return replace(trial, problem=problem, seconds=seconds)


def wait(pid: int, limit: float) -> tuple[str, float]:
    """Wait for a process; gives what went wrong, if anything, and its CPU seconds.

    Seconds of CPU say how long a trial is, whatever else the machine does.
    """
    start, problem = time.monotonic(), ""
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            RUNNING.discard(pid)
            code = os.waitstatus_to_exitcode(status)
            problem = problem or (f"exit code {code}" if code else "")
            return problem, usage.ru_utime + usage.ru_stime
        if not problem and time.monotonic() - start > limit:
            problem = f"stopped after {limit:.0f} s"
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.1)


def prepare(scratch: Path) -> None:
    """Turn this process and those it starts to small data, tiny recipes and other results."""
    os.environ["CLEARVIT_DATA"] = str(make_small_data(scratch / "data"))
    os.environ["CLEARVIT_RESULTS"] = str(scratch / "results")
    os.environ["CLEARVIT_RECIPES"] = str(scratch / "recipes")
    os.environ[TRIAL] = "1"


def recipe_commands(names: Iterable[str]) -> dict[str, list[str]]:
    """A command per recipe; none without photos."""
    try:
        find_data("photos")
    except FileNotFoundError:
        return {}
    script = str(HERE / "recipes.py")
    return {f"recipe {name}": [sys.executable, script, name] for name in names}


def name_trials(jobs: Iterable[Job]) -> dict[str, Job]:
    """Give each trial a name; jobs of one script that are tried by the same options share one."""
    shared: dict[tuple[str, str | None], list[Job]] = {}
    for job in jobs:
        shared.setdefault((job.script, job.quick), []).append(job)
    return {
        f"{few[0].script} {', '.join(job.results[0] for job in few)}": few[0]
        for few in shared.values()
    }


def run_trials(
    commands: dict[str, list[str]], scratch: Path, workers: int, recipes: Iterable[str] = ()
) -> bool:
    """Try recipes, then jobs, and say what failed and how; whether all ended well."""
    start = time.monotonic()
    done = try_all(recipe_commands(recipes), scratch / "made", workers)
    done += try_all(commands, scratch, workers)
    minutes = (time.monotonic() - start) / 60
    failed = [trial for trial in done if trial.problem]
    spent = sum(trial.seconds for trial in done) / 60
    print(
        f"{len(done) - len(failed)} of {len(done)} trials ended well in {minutes:.1f} minutes"
        f" ({spent:.1f} of CPU)."
    )
    for trial in failed:
        print(f"\n--- FAILED: {trial.name}, {trial.problem}; all of it in {trial.log}")
        print(trial.log.read_text("utf-8", "replace").strip()[-1200:])
    return not failed


def make_scratch() -> Path:
    """A new folder outside the repository."""
    return Path(tempfile.mkdtemp(prefix="clearvit-results-"))
