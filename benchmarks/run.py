"""Run the benchmarks whose results are missing or stale, in order, and write all pages.

    python benchmarks/run.py --plan        # what would run, why, and about how many hours
    python benchmarks/run.py               # runs it; the same command goes on after a stop
    python benchmarks/run.py --quick       # tries everything on a few images, into a scratch folder
    python benchmarks/run.py --only finer  # jobs of one script; --force runs them fresh or not

A result is stale when the code of its script, its data or its recipe is not what its last run
recorded, or when its job was stopped. A stale result is set aside before its job runs, so that
nothing old is taken over; what a stopped job has finished is kept. Data that are missing are named,
and their jobs are left out. A job that fails is named at the end, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import trials
from data import find_data, fingerprint
from evidence import HERE, code_fingerprints, read_result, read_runs, result_path, results_folder
from jobs import BY_HAND, JOBS, Job
from recipes import RECIPES, is_made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", action="store_true", help="say what would run, and end")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--workers", type=int, default=trials.WORKERS, help="trials side by side")
    parser.add_argument("--force", action="store_true", help="run what is fresh too")
    parser.add_argument("--only", nargs="+", default=[], help="names of scripts or results")
    parser.add_argument("--work", type=Path, default=Path("build/results"), help="what is kept")
    options = parser.parse_args()
    wanted = [job for job in (*JOBS, *recorded_jobs()) if is_wanted(job, options.only)]
    if options.quick:
        return run_quick(wanted, options)
    absent = {job: problems for job in wanted if (problems := missing_data(job))}
    reasons = {job: why(job, options) for job in wanted if job not in absent}
    print_plan(reasons, absent)
    if options.plan:
        return 0
    waiting = [job for job, reason in reasons.items() if reason]
    failed = [job for job in waiting if not run(job, options.work.resolve())]
    return finish(failed)


def recorded_jobs() -> list[Job]:
    """Jobs of results that jobs.py does not name, by the command that their last run recorded."""
    named = {name for job in JOBS for name in job.results} | set(BY_HAND)
    jobs = []
    for path in sorted(results_folder().glob("*.json")):
        runs = read_runs(path.stem) if path.stem not in named else []
        found = re.fullmatch(
            r"python benchmarks/(\w+)\.py(.*)", runs[-1]["command"] if runs else ""
        )
        if found and (HERE / f"{found[1]}.py").exists():
            command = found[1] + re.sub(r" --work \S+", "", found[2])
            hours = sum(run.get("CPU minutes", 0.0) for run in runs) / 60
            jobs.append(Job(command, (path.stem,), hours, data=tuple(runs[-1].get("data", ()))))
    return jobs


def is_wanted(job: Job, only: list[str]) -> bool:
    return not only or job.script in only or bool(set(job.results) & set(only))


def why(job: Job, options: argparse.Namespace) -> str:
    """Say why a job should run, if it should."""
    if begun_mark(job, options.work.resolve()).exists():
        return "was stopped"
    return "asked for" if options.force else why_stale(job)


def begun_mark(job: Job, work: Path) -> Path:
    """A file that is there while a job runs, and after it was stopped."""
    return work / "begun" / job.results[0]


def missing_data(job: Job) -> dict[str, str]:
    """Give what is wrong with each data set of a job that is not there."""
    problems = {}
    for name in job.data:
        try:
            find_data(name)
        except FileNotFoundError as problem:
            problems[name] = str(problem)
    return problems


def why_stale(job: Job) -> str:
    """Say why a job should run; nothing when its results are fresh."""
    for name in job.results:
        reason = why_not_fresh(name)
        if reason:
            return f"{name}: {reason}" if len(job.results) > 1 else reason
    absent = [name for name in job.recipes if not is_made(name)]
    return f"recipes to make: {', '.join(absent)}" if absent else ""


def why_not_fresh(name: str) -> str:
    """Say why a result does not count; nothing when code and data are those of its last run."""
    runs = read_runs(name)
    if not result_path(name).exists():
        return "never measured"
    if not runs:
        return "measured before runs were recorded"
    unknown = [one for one in runs if not one.get("code")]
    if unknown:
        part = "in part " if len(unknown) < len(runs) else ""
        return f"{part}{unknown[0].get('note', 'its code is not recorded')}"
    last = runs[-1]
    scripts = [HERE / file for file in last["code"]]
    gone = [path.name for path in scripts if not path.exists()]
    if gone:
        return f"code is gone: {', '.join(gone)}"
    now = code_fingerprints(scripts)
    changed = [file for file, mark in last["code"].items() if now[file] != mark]
    if changed:
        return f"code has changed: {', '.join(changed)}"
    changed = [one for one, mark in last.get("data", {}).items() if fingerprint(one) != mark]
    return f"data have changed: {', '.join(changed)}" if changed else ""


def print_plan(reasons: dict[Job, str], absent: dict[Job, dict[str, str]]) -> None:
    """Print what would run, why and for how long; then what is left out, and what is fresh."""
    waiting = [job for job, reason in reasons.items() if reason]
    needed = sorted({name for job in waiting for name in job.recipes if not is_made(name)})
    hours = sum(job.hours for job in waiting) + sum(RECIPES[n].minutes for n in needed) / 60
    total = len(reasons) + len(absent)
    print(f"To run: {len(waiting)} of {total} jobs, about {hours:.1f} hours of one CPU core.")
    for job in waiting:
        print(f"{job.hours:5.1f} h  {', '.join(job.results)}: {reasons[job]}")
        print(f"{'':9}python benchmarks/{job.script}.py{job.command[len(job.script) :]}")
    if needed:
        made = [f"{name} ({RECIPES[name].minutes:.0f} min)" for name in needed]
        print(f"Recipes that these make first: {', '.join(made)}.")
    if absent:
        print("Left out, since data are missing:")
        problems = {name: text for found in absent.values() for name, text in found.items()}
        for text in problems.values():
            print(f"{'':9}{text}")
        for job, found in absent.items():
            print(f"{job.hours:5.1f} h  {', '.join(job.results)}: needs {', '.join(found)}")
    fresh = [", ".join(job.results) for job, reason in reasons.items() if not reason]
    print(f"Fresh: {', '.join(fresh) or 'none'}.")


def command_of(job: Job, work: Path, options: str | None = None) -> list[str]:
    """The command line of a job; scripts that keep what is finished get a folder."""
    script, *words = shlex.split(job.command)
    path = HERE / f"{script}.py"
    words = words if options is None else shlex.split(options)
    if '"--work"' in path.read_text("utf-8"):
        (mark,) = code_fingerprints([path]).values()
        words += ["--work", str(work / f"{script}-{mark}")]
    return [sys.executable, str(path), *words]


def run(job: Job, work: Path) -> bool:
    """Run a job; whether it ended well."""
    start, mark = time.monotonic(), begun_mark(job, work)
    print(f"--- {job.command}", flush=True)
    if not mark.exists():
        if not job.adds:
            set_aside(job, work)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    done = subprocess.run(command_of(job, work))
    if done.returncode == 0:
        mark.unlink()
        print_lost_rows(job, work)
    minutes = (time.monotonic() - start) / 60
    print(f"--- {job.command}: {minutes:.1f} min, exit code {done.returncode}", flush=True)
    return done.returncode == 0


def set_aside(job: Job, work: Path) -> None:
    """Move stale results away: scripts go on with what they find."""
    for name in job.results:
        if result_path(name).exists():
            (work / "before").mkdir(parents=True, exist_ok=True)
            shutil.move(result_path(name), work / "before" / f"{name}.json")


def print_lost_rows(job: Job, work: Path) -> None:
    """Name rows that a result had before and that its job has not made again."""
    for name in job.results:
        before = work / "before" / f"{name}.json"
        old = json.loads(before.read_text("utf-8")) if before.exists() and not job.adds else {}
        new = read_result(name)
        lost = [key for key in old if key not in {*new, "runs"}]
        if isinstance(old.get("rows"), dict) and "rows" in new:
            lost += [key for key in old["rows"] if key not in new["rows"]]
        if lost:
            print(f"--- {name}: not made again: {'; '.join(lost)} (the old result is {before})")


def run_quick(wanted: list[Job], options: argparse.Namespace) -> int:
    """Try every job that has a trial, into a scratch folder; no page of the repository changes."""
    found = [job for job in wanted if job.quick is not None and not missing_data(job)]
    for job in wanted:
        reason = "; ".join(missing_data(job).values())
        reason = reason or ("it has no trial" if job.quick is None else "")
        if reason or options.plan:
            print(f"{job.command}: {f'left out, {reason}' if reason else 'tried'}")
    if options.plan:
        return 0
    trials.end_with_all()
    scratch = trials.make_scratch()
    trials.prepare(scratch)
    named, work = trials.name_trials(found), scratch / "work"
    print(f"results of {len(named)} trials of {len(found)} jobs go to {scratch}", flush=True)
    commands = {
        name: command_of(job, work / job.results[0], job.quick) for name, job in named.items()
    }
    used = " ".join(job.quick or "" for job in found).replace("=", " ").split()
    made = [name for name in RECIPES if not options.only or f"recipe:{name}" in used]
    well = trials.run_trials(commands, scratch, options.workers, made)
    return finish([]) or not well


def finish(failed: list[Job]) -> int:
    """Write the pages, and name what failed."""
    from render import main as render_all

    sys.argv = ["render.py"]
    render_all()
    if failed:
        print("failed: " + "; ".join(job.command for job in failed))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
