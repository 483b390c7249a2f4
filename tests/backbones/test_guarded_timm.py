import importlib
import subprocess
import sys
import types

import pytest

from clearvit.backbones import guarded_timm
from clearvit.backbones.guarded_timm import import_torchvision


def test_timm_imports_in_a_fresh_interpreter():
    code = "import clearvit.backbones.guarded_timm, timm, torchvision.transforms.v2"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_imports_neither_torch_nor_torchvision():
    code = "import sys, clearvit.backbones; print({'torch', 'timm'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


def test_a_healthy_torchvision_is_left_untouched(monkeypatch):
    healthy = types.ModuleType("torchvision")
    declared = list(guarded_timm._declared)
    monkeypatch.setattr(importlib, "import_module", lambda name: healthy)
    assert import_torchvision() is healthy
    assert guarded_timm._declared == declared


def test_another_failure_is_not_hidden(monkeypatch):
    def broken(name):
        raise RuntimeError("libcudart is missing")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(RuntimeError, match="libcudart"):
        import_torchvision()


def test_the_half_imported_package_is_forgotten_and_tried_again(monkeypatch):
    attempts = []

    def half_broken(name):
        attempts.append("torchvision.half" in sys.modules)
        if len(attempts) == 1:
            sys.modules["torchvision.half"] = types.ModuleType("torchvision.half")
            raise RuntimeError("operator torchvision::nms does not exist")
        return types.ModuleType(name)

    kept = {n: m for n, m in sys.modules.items() if n.partition(".")[0] == "torchvision"}
    monkeypatch.setattr(importlib, "import_module", half_broken)
    monkeypatch.setattr(guarded_timm, "_declared", [object()])  # do not declare twice
    try:
        import_torchvision()
    finally:
        sys.modules.update(kept)
    assert attempts == [False, False]
