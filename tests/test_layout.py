"""How the tree is laid out: small folders, unique file names, short files, light configs."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "clearvit"
MODULES = sorted(SOURCE.rglob("*.py"))
MAX_FILES, MAX_LINES = 15, 400


def test_no_folder_holds_more_than_fifteen_modules():
    counts = Counter(path.parent.relative_to(SOURCE).as_posix() for path in MODULES)
    counts.pop("cli")  # one file per verb
    large = {folder: count for folder, count in counts.items() if count > MAX_FILES}
    assert not large, f"split these packages: {large}"


def test_no_two_files_have_one_name():
    for top, shared in ((SOURCE, {"__init__.py", "config.py"}), (ROOT / "tests", SHARED_IN_TESTS)):
        names = Counter(path.name for path in top.rglob("*.py") if path.name not in shared)
        repeated = sorted(name for name, count in names.items() if count > 1)
        assert not repeated, f"names of several files below {top.name}/: {repeated}"


SHARED_IN_TESTS = {"__init__.py", "conftest.py"}


def test_no_file_is_longer_than_400_lines():
    paths = [*MODULES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    counts = {path.relative_to(ROOT).as_posix(): len(lines_of(path)) for path in paths}
    long = {name: count for name, count in counts.items() if count > MAX_LINES}
    assert not long, f"split these files: {long}"


def test_no_test_imports_from_another_test():
    pattern = re.compile(r"^\s*from tests\.(\w+\.)*test_", re.MULTILINE)
    borrowed = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("*.py")
        if pattern.search(path.read_text("utf-8"))
    ]
    assert not borrowed, f"move what they share to tests/helpers: {borrowed}"


def lines_of(path):
    return path.read_text("utf-8").splitlines()


def test_no_public_name_is_hidden_by_a_module():
    hidden = [
        f"{stub.parent.relative_to(ROOT)}: {name}"
        for stub in SOURCE.rglob("__init__.pyi")
        for name in exported_by(stub)
        if name in submodules_of(stub.parent) and not is_package_export(stub, name)
    ]
    assert not hidden, f"rename the function or the module: {hidden}"


def exported_by(stub):
    for node in ast.walk(ast.parse(stub.read_text("utf-8"))):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            yield from ast.literal_eval(node.value)


def submodules_of(folder):
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    return packages | {path.stem for path in folder.glob("*.py")}


def is_package_export(stub, name):
    """Tell whether a public name is meant to be the submodule itself: `from . import testing`."""
    tree = ast.parse(stub.read_text("utf-8"))
    plain = [node for node in tree.body if isinstance(node, ast.ImportFrom) and not node.module]
    return any(alias.name == name for node in plain for alias in node.names)


def test_the_command_line_starts_without_torch():
    """`--help` imports every config, so configs stay light."""
    code = "import sys, clearvit.cli; print([m for m in ('torch', 'timm') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", f"a config.py or cli module imports {done.stdout.strip()}"
