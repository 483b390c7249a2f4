"""A process that is ended by `kill -9` at a chosen step of its work, however busy the machine is.

A step is a file or folder of the output that is opened, made, renamed or removed: the kill follows
the progress of the work and no clock. A short delay after the step reaches what lies between.
"""

import contextlib
import itertools
import multiprocessing
import os
import random
import signal
import sys
import threading
from pathlib import Path


class Killer:
    """Runs `work(*arguments, out)` in processes that have imported `modules` already."""

    def __init__(self, work, arguments, modules):
        self.work, self.arguments = work, arguments
        self.processes = multiprocessing.get_context("forkserver")
        self.processes.set_forkserver_preload(modules)
        self.rng = random.Random(0)
        self.steps = 0  # of one whole run

    def run_whole(self, out: Path) -> None:
        """Work until the end, and count the steps."""
        assert self._run(out, 0, 0.0) == 0
        self.steps = max(self.steps, self.taken)

    def run_killed(self, out: Path, at_once: bool) -> bool:
        """Kill at a random step, at once or a little later; False if the work ended before."""
        step = self.rng.randint(1, int(0.9 * self.steps))
        exit_code = self._run(out, step, 0.0 if at_once else self.rng.uniform(0, 0.02))
        assert exit_code in (0, -signal.SIGKILL)
        return exit_code != 0

    def _run(self, out: Path, step: int, delay: float) -> int:
        taken = self.processes.Value("i", 0)
        arguments = (self.work, (*self.arguments, out), str(out), taken, step, delay)
        process = self.processes.Process(target=_watch_and_work, args=arguments)
        process.start()
        process.join()
        self.taken = taken.value
        return process.exitcode


def kill_at_step(folder: str, step: int, delay: float = 0.0, taken=None, mark=None) -> None:
    """End this process at the `step`-th change of a file below `folder`; 0 means never.

    Of several processes with one `mark`, a path, only the first that gets there is killed.
    """
    steps = itertools.count(1)

    def kill():
        with contextlib.suppress(FileExistsError):
            if mark is not None:
                mark.touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(event, given):
        if not any(str(argument).startswith(folder) for argument in given[:2]):
            return
        number = next(steps)
        if taken is not None:
            taken.value = number
        if number == step:
            threading.Timer(delay, kill).start() if delay else kill()

    sys.addaudithook(watch)


def _watch_and_work(work, arguments, folder, taken, step, delay):
    kill_at_step(folder, step, delay, taken)
    work(*arguments)
