"""The page that ships is the one that web/ builds; the first two tests need no Node."""

import hashlib
import re
import shutil
import subprocess

import pytest

from clearvit.microscopy.microscope_page import BUILT
from tests.helpers.commands import ROOT

WEB = ROOT / "web"
BESIDE = ("index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts")


def written(name):
    return re.search(rf'<meta name="{name}" content="(\w+)">', BUILT.read_text("utf-8"))[1]


def test_the_page_was_built_from_these_sources():
    """`web/vite.config.ts` computes the same hash."""
    inside = [path for path in (WEB / "src").rglob("*") if path.is_file()]
    names = [*BESIDE, *(path.relative_to(WEB).as_posix() for path in inside)]
    digest = hashlib.sha256()
    for name in sorted(names):
        content = (WEB / name).read_text("utf-8").replace("\r\n", "\n")
        digest.update(f"{name}\0{content}\0".encode())
    assert written("clearvit-source") == digest.hexdigest(), "web/ has changed: run `make web`"


def test_the_page_was_not_changed_by_hand():
    parts = re.findall(r"<(?:script|style)>(.*?)</(?:script|style)>", BUILT.read_text(), re.DOTALL)
    digest = hashlib.sha256()
    for text in parts:
        digest.update(f"{text}\0".encode())
    assert len(parts) == 2 and written("clearvit-built") == digest.hexdigest(), "run `make web`"


def test_the_page_of_the_documentation_is_built_from_the_same_sources():
    page = ROOT / "docs" / "pages" / "microscope.html"
    text = page.read_text("utf-8")
    assert f'content="{written("clearvit-source")}"' in text, (
        "run `python benchmarks/microscope_example.py --refresh`"
    )
    assert page.stat().st_size < 2_000_000 and '"models":[' in text


@pytest.fixture(scope="module")
def node():
    """The packages that build the page, installed once; skipped where they cannot be had."""
    if shutil.which("npm") is None:
        pytest.skip("no Node on this machine; only who changes web/ needs it")
    if not (WEB / "node_modules").is_dir():
        line = ["npm", "install", "--no-save", "--silent", "--prefer-offline"]
        done = subprocess.run(line, cwd=WEB, capture_output=True, text=True, timeout=300)
        if done.returncode:
            pytest.skip("the packages of web/ cannot be installed here (npm install)")


def run(*words):
    done = subprocess.run(["npx", *words], cwd=WEB, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_building_gives_the_same_bytes(node, tmp_path):
    run("tsc", "--noEmit")
    run("vite", "build", "--outDir", str(tmp_path), "--logLevel", "error")
    assert (tmp_path / "microscope.html").read_bytes() == BUILT.read_bytes(), "run `make web`"


def test_its_own_tests_pass(node):
    run("vitest", "run")
