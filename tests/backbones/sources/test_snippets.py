"""The lines that cure and export print run as they stand, in this environment."""

import subprocess
import sys

from clearvit.backbones import guarded_timm
from clearvit.backbones.saved import save
from clearvit.backbones.sources.snippets import GUARD, runnable_here, timm_code


def test_the_guard_is_printed_only_where_it_was_needed(monkeypatch):
    monkeypatch.setattr(guarded_timm, "_declared", [])
    assert runnable_here("import timm\n") == "import timm\n"
    monkeypatch.setattr(guarded_timm, "_declared", [object()])
    assert runnable_here("import timm\n") == f"{GUARD}import timm\n"


def test_a_snippet_runs_as_pasted(tiny, tmp_path):
    save(tiny, tmp_path / "saved model")
    code = runnable_here(timm_code(tmp_path / "saved model", tiny))
    code += "print(tuple(patches.shape))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(1, 16, 24)"
