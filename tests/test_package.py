"""The package as others get it: metadata, bounds, and a wheel in an empty environment."""

import os
import re
import runpy
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


WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_whole_and_call_targets_that_exist(path):
    yaml = pytest.importorskip("yaml")
    content = yaml.safe_load(path.read_text("utf-8"))
    assert True in content or "on" in content  # YAML 1.1 reads the key "on" as a boolean
    assert content["permissions"] == {"contents": "read"}
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for name, job in content["jobs"].items():
        assert job["runs-on"] and job["steps"], name
        assert set(as_list(job.get("needs"))) <= set(content["jobs"]), name
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), f"{name}: {step}"
            assert "@" in step.get("uses", "@"), f"{name}: {step['uses']} has no version"
            line = step.get("run", "").split()
            if line[:1] == ["make"]:
                assert line[1] in targets, f"{name}: make {line[1]}"
        pythons = job.get("strategy", {}).get("matrix", {}).get("python", [])
        assert all(
            f"Programming Language :: Python :: {v}" in PROJECT["classifiers"] for v in pythons
        )


def as_list(value):
    return value if isinstance(value, list) else [value] if value else []


def test_every_kind_of_check_has_a_workflow():
    text = "\n".join(path.read_text("utf-8") for path in WORKFLOWS)
    for target in ("lint", "test", "test-lowest", "test-package", "docs", "web"):
        assert re.search(rf"run: make {target}$", text, re.MULTILINE), target


def test_the_container_installs_what_exists():
    text = (ROOT / "Dockerfile").read_text("utf-8")
    copied = re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE)
    assert all((ROOT / name).exists() for line in copied for name in line.split())
    extras = re.search(r"\.\[([\w,]+)\]", text)[1].split(",")
    assert set(extras) <= set(PROJECT["optional-dependencies"])


def test_torch_hub_finds_its_entry_points():
    source = (ROOT / "hubconf.py").read_text("utf-8")
    names = {}
    exec(compile(source, "hubconf.py", "exec"), names)
    assert names["backbone"]("demo").name == "demo"
    listed = {NAME.match(line)[0].lower().replace("_", "-") for line in PROJECT["dependencies"]}
    assert {one.replace("_", "-") for one in names["dependencies"]} <= listed


def test_every_link_of_the_readme_works_on_a_package_index():
    build = runpy.run_path(str(ROOT / "hatch_build.py"))
    text = build["with_absolute_links"]((ROOT / "README.md").read_text("utf-8"))
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert all(target.startswith(("https://", "#")) for target in targets)
    assert build["PICTURES"] + "docs/images/hero.png" in targets
    assert build["FILES"] + "docs/tutorial.md" in targets


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
    (described,) = [name for name in names if name.endswith(".dist-info/METADATA")]
    text = zipfile.ZipFile(wheel).read(described).decode("utf-8")
    assert "![A cat" in text and "](docs/" not in text
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
