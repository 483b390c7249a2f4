"""An index built by a Ray cluster equals one built here, whoever dies on the way."""

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from clearvit.backbones.load import load
from clearvit.backbones.saved import save
from clearvit.errors import ImageError
from clearvit.retrieval.index import index as index_module
from clearvit.retrieval.index.index import Index
from tests.conftest import tiny_network
from tests.helpers.made_photos import write_photos
from tests.helpers.place_files import contents, write_tar
from tests.helpers.ray_clusters import busy_workers, started_cluster

pytest.importorskip("lancedb")
pytest.importorskip("lance")
pytest.importorskip("ray")

COUNT = 48


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A saved model, photos with a broken one, and an index of them that was built here."""
    folder = tmp_path_factory.mktemp("job")
    photos = write_photos(folder / "photos", COUNT)
    (photos / "broken.png").write_bytes(b"broken")
    save(load(tiny_network()), folder / "model")
    return folder, rows_of(Index.build(model_of(folder), photos, out=folder / "here"))


@pytest.fixture(scope="module")
def settings(endpoint):
    """What users of the object store set, before the nodes start."""
    given = {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
    keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "test")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**given, **keys}.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def cluster(settings):
    with started_cluster(2) as running:
        yield running


def model_of(folder):
    return load(f"dir:{folder}/model")


def rows_of(index):
    """Give every name with its descriptor, and fail if one is there twice."""
    names = index.names
    assert len(index) == len(names)
    found = index.store.fetch(names)
    assert [entry.name for entry in found.entries] == sorted(names)
    return dict(zip(sorted(names), found.features.descriptors, strict=True))


def assert_same(index, expected):
    found = rows_of(index)
    assert sorted(found) == sorted(expected)
    # stored in half precision
    assert all((found[name] - expected[name]).abs().max() < 2e-3 for name in expected)


def test_two_nodes_build_the_same_index_in_one_commit(job, cluster, tmp_path):
    folder, expected = job
    seen = []
    index = Index.build(
        model_of(folder),
        folder / "photos",
        out=tmp_path / "index",
        engine="ray",
        batch=2,
        progress=lambda stage, done, total, note="": seen.append((done, total)),
    )
    assert_same(index, expected)
    assert [bad.name for bad in index.changes.skipped] == ["broken.png"]
    assert seen[-1] == (COUNT + 1, COUNT + 1)
    # one to make the table, one for all images, then those of the merging of fragments
    versions = index.store._table.list_versions()
    assert len(versions) <= 4
    again = Index.build(model_of(folder), folder / "photos", out=tmp_path / "index", engine="ray")
    assert again.changes.unchanged == COUNT and not again.changes.added


@pytest.mark.slow
def test_workers_write_to_an_object_store_and_read_from_it(job, cluster, bucket, tmp_path):
    folder, expected = job
    boto3 = pytest.importorskip("boto3")
    tar = write_tar(tmp_path / "a.tar", contents(folder / "photos"))
    boto3.client("s3", region_name="us-east-1").upload_file(str(tar), "photos", "shards/a.tar")
    backbone = model_of(folder)
    index = Index.build(backbone, f"{bucket}/shards", out=f"{bucket}/index", engine="ray")
    assert_same(index, {f"a.tar/{name}": row for name, row in expected.items()})
    assert [bad.name for bad in index.changes.skipped] == ["a.tar/broken.png"]
    assert_same(Index.open(f"{bucket}/index", backbone), rows_of(index))


@pytest.mark.slow
def test_changed_images_are_replaced_in_the_same_commit(job, cluster, tmp_path):
    folder, _ = job
    photos = write_photos(tmp_path / "photos", 8)
    backbone = model_of(folder)
    Index.build(backbone, photos, out=tmp_path / "index")
    (photos / "cats/1.png").write_bytes((photos / "dogs/0.png").read_bytes() + b" ")
    (photos / "new.png").write_bytes((photos / "dogs/2.png").read_bytes())
    index = Index.build(backbone, photos, out=tmp_path / "index", engine="ray")
    assert index.changes.changed == ("cats/1.png",) and index.changes.added == ("new.png",)
    assert_same(index, rows_of(Index.build(backbone, photos, out=tmp_path / "other")))


@pytest.mark.slow
def test_workers_whiten_as_the_driver_decided(job, cluster, tmp_path, monkeypatch):
    monkeypatch.setitem(index_module.fit_spec.__globals__, "FEWEST", 10)
    options = {"facet": "value:1", "channels": 6, "whiten": "no"}
    built = [
        Index.build(model_of(job[0]), job[0] / "photos", out=tmp_path / e, engine=e, **options)
        for e in ("local", "ray")
    ]
    here, there = (index.store.fetch(index.names).features for index in built)
    assert built[1].spec.whitening == built[0].spec.whitening != ""
    assert (here.descriptors - there.descriptors).abs().max() < 2e-3  # stored in half precision
    assert (here.patches - there.patches).abs().max() < 2e-2  # and in one byte


@pytest.mark.slow
def test_a_node_that_goes_away_loses_nothing(job, cluster, tmp_path):
    folder, expected = job
    node = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    calls = itertools.count()

    def progress(*_):
        if next(calls) == 2:
            cluster.remove_node(node, allow_graceful=False)

    out, backbone = tmp_path / "index", model_of(folder)
    index = Index.build(backbone, folder / "photos", out=out, engine="ray", progress=progress)
    assert next(calls) > 2
    assert_same(index, expected)


@pytest.mark.slow
def test_a_bad_file_stops_a_strict_build_in_one_sentence(job, cluster, tmp_path):
    out, backbone = tmp_path / "index", model_of(job[0])
    with pytest.raises(ImageError, match=r"broken\.png") as caught:
        Index.build(backbone, job[0] / "photos", out=out, engine="ray", strict=True)
    assert "\n" not in str(caught.value)


BUILD = """
import sys, torch
torch.set_num_threads(1)
from clearvit.backbones.load import load
from clearvit.retrieval import index_on_ray
from clearvit.retrieval.index.index import Index
import ray
index_on_ray.COMMIT_SECONDS = 0.05
folder, out = sys.argv[1:]
ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
print("started", flush=True)
Index.build(load(f"dir:{folder}/model"), f"{folder}/photos", out=out, engine="ray", batch=1,
            progress=lambda *a: print("progress", flush=True))
"""


@pytest.mark.slow
def test_twenty_kills_of_two_workers_lose_and_double_nothing(job, cluster, tmp_path):
    folder, expected = job
    rng, kills = random.Random(0), 0
    for trial in range(30):
        with hunted(rng.uniform(0, 0.3)) as killed:
            out = tmp_path / f"worker-{trial}"
            index = Index.build(model_of(folder), folder / "photos", out=out, engine="ray", batch=1)
        kills += len(killed)
        assert_same(index, expected)
        if kills >= 20:
            break
    assert kills >= 20


@pytest.mark.slow
def test_killed_drivers_lose_and_double_nothing(job, tmp_path):
    folder, expected = job
    backbone, begun = model_of(folder), []
    for calls in (1, 4, 7, 10):
        out = tmp_path / f"driver-{calls}"
        kill_a_driver(folder, out, calls)
        index = Index.open(out, backbone)
        begun.append(len(rows_of(index)))
        assert_same(Index.build(backbone, folder / "photos", out=out), expected)
    assert any(0 < count < COUNT for count in begun)  # it goes on where it was


@contextmanager
def hunted(wait):
    """Kill one busy worker after some seconds, or as soon as there is one then."""
    ended, killed = threading.Event(), []

    def hunt():
        pause = wait
        while not ended.wait(pause) and not killed:
            for pid in busy_workers("_write_fragment")[:1]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            pause = 0.002

    hunter = threading.Thread(target=hunt)
    hunter.start()
    try:
        yield killed
    finally:
        ended.set()
        hunter.join()


def kill_a_driver(folder, out, calls):
    """End the process that builds after some of its tasks have finished."""
    line = [sys.executable, "-c", BUILD, str(folder), str(out)]
    root = Path(__file__).parents[2]
    process = subprocess.Popen(line, stdout=-1, stderr=subprocess.STDOUT, text=True, cwd=root)
    said = [line for line, _ in zip(process.stdout, range(2 + calls), strict=False)]
    assert len(said) == 2 + calls, said
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    time.sleep(0.5)  # its workers end when they notice
