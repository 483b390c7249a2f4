import subprocess
import sys
from pathlib import Path

import pytest

from clearvit.retrieval.index.index import Index
from tests.helpers.made_photos import write_photos

pytest.importorskip("lancedb")
ROOT = Path(__file__).parents[3]

KILLED = r'''
import itertools, os, random, signal, sys, threading, time
import torch
torch.set_num_threads(1)
from clearvit.backbones.load import load
from tests.conftest import tiny_network
from clearvit.retrieval.config import IndexConfig
photos, more, out, kills = sys.argv[1:]
backbone = load(tiny_network())
config = IndexConfig(batch=1, commit=2)

def work(adding, progress=None):
    from clearvit.retrieval.index.index import Index  # the database does not survive a fork
    index = Index.open(out, backbone) if adding else None
    if index is None:
        Index.build(backbone, photos, out=out, config=config, progress=progress)
    else:
        index.config = config
        index.add(more, prefix="more/", progress=progress)

def die(calls, delay):
    """Return a progress callback that ends this process a little after one of its first calls."""
    count = itertools.count(1)
    def progress(*_):
        number = next(count)
        if number == calls:
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        if number == calls + 2:
            time.sleep(60)  # no machine is so slow that the work ends before the kill
    return progress

def killed(adding):
    calls, delay = random.randint(1, 3), random.uniform(0, 0.1)  # into the middle of a write
    child = os.fork()
    if not child:
        work(adding, die(calls, delay))
        os._exit(0)
    print("killed", os.WIFSIGNALED(os.waitpid(child, 0)[1]), flush=True)

random.seed(0)
for adding in (False, True):
    for attempt in range(int(kills) // 2):
        killed(adding)
for adding in (False, True):
    work(adding)
'''


def kill_often(tiny, folder, kills):
    """Kill builds and then additions at random moments, and finish both in the end."""
    count = 6 * kills  # more than all attempts together can commit
    photos = write_photos(folder / "photos", count)
    more = write_photos(folder / "more", count, seed=1)
    places = [str(place) for place in (photos, more, folder / "index")]
    line = [sys.executable, "-c", KILLED, *places, str(kills)]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("killed True") == kills
    index = Index.open(folder / "index", tiny)
    assert len(index) == len(index.store.entries()) == 2 * count
    for prefix, source in (("", photos), ("more/", more)):
        paths = sorted(source.rglob("*.png"))
        for path, hits in zip(paths, index.search(paths, k=1), strict=True):
            assert hits[0].score == pytest.approx(1, abs=1e-5)
            assert hits.names == [f"{prefix}{path.relative_to(source).as_posix()}"]


def test_killed_builds_and_additions_lose_and_double_nothing(tiny, tmp_path):
    kill_often(tiny, tmp_path, kills=4)


@pytest.mark.slow
def test_twenty_kills_lose_and_double_nothing(tiny, tmp_path):
    kill_often(tiny, tmp_path, kills=20)
