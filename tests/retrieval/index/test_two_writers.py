"""Two processes that write one index at once: what both write is there, once."""

import subprocess
import sys
from pathlib import Path

import pytest

from clearvit.backbones.load import load
from clearvit.backbones.saved import save
from clearvit.retrieval.index.index import Index
from tests.conftest import tiny_network
from tests.helpers.made_photos import write_photos

pytest.importorskip("lancedb")
ROOT = Path(__file__).parents[3]

WRITER = r"""
import sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from clearvit.backbones.load import load
from clearvit.retrieval.config import IndexConfig
from clearvit.retrieval.index.index import Index
model, photos, out, how, ready = sys.argv[1:]
backbone = load(f"dir:{model}")
config = IndexConfig(batch=1, commit=1)  # as many commits as there are images
Path(ready, how).touch()
while len(list(Path(ready).iterdir())) < 2:
    time.sleep(0.01)
if how.startswith("add"):
    index = Index.open(out, backbone)
    index.config = config
    index.add(photos, prefix=how + "/")
else:
    Index.build(backbone, photos, out=out, config=config)
"""


@pytest.fixture
def job(tmp_path):
    """A saved model, and three folders of photos."""
    backbone = load(tiny_network())
    save(backbone, tmp_path / "model")
    folders = [write_photos(tmp_path / name, 12, seed=seed) for seed, name in enumerate("abc")]
    return tmp_path, load(f"dir:{tmp_path}/model"), folders


def run_both(folder, out, jobs):
    """Start two writers, let them begin together, and wait for both."""
    ready = folder / "ready"
    ready.mkdir()
    running = []
    for how, photos in jobs.items():
        line = [sys.executable, "-c", WRITER, folder / "model", photos, out, how, ready]
        running.append(subprocess.Popen([str(part) for part in line], cwd=ROOT, stderr=-1))
    for process in running:
        said = process.communicate()[1].decode()
        assert process.returncode == 0, said


def check(index, expected):
    """Every name is there once, and its row is the image's own."""
    assert len(index) == len(expected) and index.names == sorted(expected)
    for hits, name in zip(index.search(list(expected.values()), k=1), expected, strict=True):
        assert hits.names == [name] and hits[0].score == pytest.approx(1, abs=1e-3)


def files_of(folder, prefix=""):
    return {prefix + p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*.png"))}


@pytest.mark.parametrize("place", ["disk", pytest.param("bucket", marks=pytest.mark.slow)])
def test_two_additions_both_land(job, place, request):
    folder, backbone, (first, second, third) = job
    out = request.getfixturevalue("bucket") + "/index" if place == "bucket" else folder / "index"
    Index.build(backbone, first, out=out)
    run_both(folder, out, {"add1": second, "add2": third})
    expected = {**files_of(first), **files_of(second, "add1/"), **files_of(third, "add2/")}
    check(Index.open(out, backbone), expected)


def test_two_builds_of_one_folder_double_nothing(job):
    folder, backbone, (first, _, _) = job
    run_both(folder, folder / "index", {"one": first, "two": first})
    check(Index.open(folder / "index", backbone), files_of(first))
