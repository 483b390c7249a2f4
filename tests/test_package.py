"""The package as others get it: metadata, bounds, and a wheel in an empty environment."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import clearvit
from tests.helpers import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
NAME = re.compile(r"[\w.-]+")


def bounds(requirements):
    for line in requirements:
        name, bound = NAME.match(line)[0], re.search(r">=([\d.]+)", line)
        if bound:
            yield name.lower().replace("_", "-"), bound[1]


def numbers(version):
    parts = [int(part) for part in version.split(".")]
    while parts and not parts[-1]:
        parts.pop()
    return parts


def test_the_lowest_constraints_are_the_bounds():
    text = (ROOT / "constraints-lowest.txt").read_text("utf-8")
    pinned = dict(line.split("==") for line in text.splitlines() if "==" in line)
    for name, bound in bounds(PROJECT["dependencies"]):
        assert numbers(pinned[name]) == numbers(bound), f"{name}: {pinned[name]}, bound {bound}"


def test_versions_agree():
    assert f"version: {clearvit.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.search(
        rf"^## \[{re.escape(clearvit.__version__)}\]|^## \[Unreleased\]",
        (ROOT / "CHANGELOG.md").read_text("utf-8"),
        re.MULTILINE,
    )
    named = [line.rsplit(" ", 1)[-1] for line in PROJECT["classifiers"] if ":: 3." in line]
    assert named == ["3.10", "3.11", "3.12", "3.13"]


def test_workflows_call_targets_that_exist():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        for target in re.findall(r"run: make ([\w-]+)", path.read_text("utf-8")):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{path.name}: {target}"


def test_torch_hub_finds_its_entry_points():
    source = (ROOT / "hubconf.py").read_text("utf-8")
    names = {}
    exec(compile(source, "hubconf.py", "exec"), names)
    assert names["backbone"]("demo").name == "demo"
    listed = {NAME.match(line)[0].lower().replace("_", "-") for line in PROJECT["dependencies"]}
    assert {one.replace("_", "-") for one in names["dependencies"]} <= listed


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The folder that `make dist` wrote, else a fresh build."""
    if list((ROOT / "dist").glob(f"clearvit-{clearvit.__version__}*.whl")):
        return ROOT / "dist"
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("dist")
    line = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(line, check=True, capture_output=True)
    return folder


@pytest.mark.slow
def test_the_wheel_holds_all_that_the_package_needs(dist):
    (wheel,) = dist.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src" / "clearvit"
    needed = {
        f"clearvit/{path.relative_to(source).as_posix()}"
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert needed <= names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_an_installed_package_runs_the_quick_demo(kind, dist, tmp_path):
    (archive,) = dist.glob(kind)
    python = fresh_environment(tmp_path / "venv", f"{archive}[demo]")
    empty = tmp_path / "empty"
    empty.mkdir()
    found = run(python, empty, "-c", "import clearvit; print(clearvit.__file__)")
    assert "site-packages" in found
    if kind == "*.whl":  # the other one installs the same files
        run(python, empty, "-m", "clearvit", "demo", "--quick")
        assert (empty / "demo-quick/report.html").stat().st_size > 100_000
    else:
        assert clearvit.__version__ in run(python, empty, "-m", "clearvit", "--version")


def fresh_environment(folder, requirement):
    """Make an environment of its own, or one that sees the torch of this one but not clearvit."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    constraints = ["-c", str(ROOT / "constraints-cpu.txt")]
    shared = os.environ.get("CLEARVIT_SHARED_PACKAGES")  # to spare the download of torch
    if shared:
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "shared.pth").write_text(f"{shared}\n")
        requirement, constraints = requirement.partition("[")[0], ["--no-deps"]
    line = [python, "-m", "pip", "install", "--quiet", *constraints, requirement]
    subprocess.run(line, check=True)
    return python


def run(python, folder, *arguments):
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    line = [str(Path(python)), *arguments]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
