"""Results as data: what a script measured and how, in benchmarks/results/NAME.json.

    content = read_result("finetune") or {"rows": {}}
    content["rows"][key] = measure(…)
    write_result("finetune", content, data=("cars",), seeds=(0,))

`write_result` adds a list `runs`: one entry per process that wrote, with commit, date, command,
seeds, fingerprints of data and code, machine and load. Call it after every finished part; the entry
of the process is replaced, not repeated. CLEARVIT_RESULTS names another folder, for trial runs.
`render.py` makes the pages.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clearvit.files import write_json
from data import fingerprint

HERE = Path(__file__).parent
NOT_MEASURING = ("evidence.py", "render.py", "data.py", "cells.py")
BEFORE = {  # stands for what was measured before runs were recorded
    "written": "not recorded",
    "commit": "not recorded",
    "note": "measured before runs were recorded",
}
_SEEN: set[str] = set()  # results that a page was made from
STARTED = time.strftime("%Y-%m-%d %H:%M:%S")
LOAD_AT_START = os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def results_folder() -> Path:
    """Where results lie: benchmarks/results, or the folder that CLEARVIT_RESULTS names."""
    other = os.environ.get("CLEARVIT_RESULTS")
    return Path(other) if other else HERE / "results"


def result_path(name: str) -> Path:
    """Path of a result's JSON file."""
    return results_folder() / f"{name}.json"


def read_result(name: str) -> dict[str, Any]:
    """Read what was measured; empty when nothing was."""
    content = _read(name)
    content.pop("runs", None)
    if content:
        _SEEN.add(name)
    return content


@contextmanager
def seen_results() -> Iterator[set[str]]:
    """Give the names of all results that are read inside; filled when it ends."""
    names: set[str] = set()
    before = set(_SEEN)
    _SEEN.clear()
    try:
        yield names
    finally:
        names |= _SEEN
        _SEEN.update(before)


def read_results(pattern: str) -> list[dict[str, Any]]:
    """Read all results whose names match, in the order of their names."""
    paths = sorted(results_folder().glob(f"{pattern}.json"))
    return [read_result(path.stem) for path in paths]


def read_runs(name: str) -> list[dict[str, Any]]:
    """How a result was measured, oldest first; empty for results older than this record."""
    return list(_read(name).get("runs", []))


def write_result(
    name: str,
    content: dict[str, Any],
    *,
    data: Iterable[str] = (),
    seeds: Iterable[int] = (),
    models: Iterable[str] = (),
) -> Path:
    """Write a result and how it came about.

    Args:
        name: Of the file, without ending.
        content: Numbers, counts and settings, in the shape that suits the script.
        data: Names of the data sets that were read, see data.py.
        seeds: Of random numbers that had a part.
        models: Names of models or recipes (see recipes.py) that were measured.
    """
    earlier = read_runs(name) or ([BEFORE] if _read(name) else [])
    runs = [run for run in earlier if run.get("started") != STARTED]
    run = describe_run() | {
        "seeds": list(seeds),
        "models": list(models),
        "data": {one: fingerprint(one) for one in data},
    }
    path = result_path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    measured = {key: value for key, value in content.items() if key != "runs"}
    write_json(path, measured | {"runs": [*runs, run]})
    return path


def describe_run() -> dict[str, Any]:
    """Commit, time, command, code and machine of this process; no path and no name of a host."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "started": STARTED,
        "written": time.strftime("%Y-%m-%d %H:%M:%S"),
        "commit": _commit(),
        "command": shown_command(sys.argv),
        "code": code_fingerprints(_imported_scripts()),
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": _threads(),
            "python": platform.python_version(),
            "torch": _torch_version(),
            "load": [one and round(one, 1) for one in (LOAD_AT_START, load)],
        },
        "CPU minutes": round(time.process_time() / 60, 1),
    }


def shown_command(arguments: list[str]) -> str:
    """Give the command with paths of this machine replaced by the names of their options."""
    shown, option = [f"benchmarks/{Path(arguments[0]).name}"], "path"
    for text in arguments[1:]:
        if text.startswith("--"):
            option = text.lstrip("-").split("=")[0]
        elif re.search(r"(^|[:=@])[/~]", text):
            text = re.sub(r"(^|[:=@])[/~].*", rf"\g<1>{option.upper()}", text)
        shown.append(text if re.fullmatch(r"[\w./:=@+-]+", text) else shlex.quote(text))
    return " ".join(["python", *shown])


def code_fingerprints(scripts: Iterable[Path]) -> dict[str, str]:
    """Hash scripts by what they do: comments, docstrings and layout do not count."""
    return {path.name: _hash_code(path) for path in sorted(scripts)}


def _hash_code(path: Path) -> str:
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and ast.get_docstring(_documented(node)) is not None:
            del body[0]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:12]


def _documented(node: ast.AST) -> Any:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return node if isinstance(node, kinds) else ast.Module([], [])


def _imported_scripts() -> list[Path]:
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    paths = {Path(file).resolve() for file in files if file}
    return [p for p in paths if p.parent == HERE.resolve() and p.name not in NOT_MEASURING]


def _commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "--short=10", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", "../src", "*.py")
    return (commit or "unknown") + (" and changes" if changed else "")


def _processor() -> str:
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    found = re.search(r"model name\s*:\s*(.+)", info)
    return found[1].strip() if found else platform.machine()


def _threads() -> int | None:
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch else None


def _torch_version() -> str | None:
    torch = sys.modules.get("torch")
    return torch.__version__ if torch else None


def _read(name: str) -> dict[str, Any]:
    path = result_path(name)
    return json.loads(path.read_text("utf-8")) if path.exists() else {}
