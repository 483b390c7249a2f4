"""`kill -9` at any moment: nothing lost, nothing doubled, the same bytes."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clearvit.backbones.load import load
from clearvit.backbones.saved import save
from clearvit.shards.config import TokenConfig
from tests.conftest import tiny_network
from tests.helpers.killed import Killer, kill_at_step

KILLS = 20
PHOTOS, SHARD = 40, 2
CONFIG = TokenConfig(batch=2, shard=SHARD, layers=(0,))


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A saved model and photos, one of them broken."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "photos").mkdir()
    rng = np.random.default_rng(0)
    for i in range(PHOTOS):
        pixels = rng.integers(0, 255, (48, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{i:03d}.png")
    (folder / "photos" / "017.png").write_bytes(b"broken")
    save(load(tiny_network()), folder / "model")
    return folder


def extract(folder, out):
    """Run in a process of its own, the one that is killed."""
    import torch

    from clearvit.shards.extract import save_tokens

    torch.set_num_threads(1)
    save_tokens(load(f"dir:{folder}/model"), folder / "photos", out=out, config=CONFIG)


def contents(folder: Path):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_twenty_kills_at_random_moments_change_no_byte(job, tmp_path):
    modules = ["clearvit.shards.extract", "clearvit.backbones.saved"]
    killer = Killer(extract, (job,), modules)
    killer.run_whole(tmp_path / "whole")
    expected = contents(tmp_path / "whole")
    assert len(expected) == PHOTOS // SHARD + 2  # shards, plan and index

    killed = 0
    for trial in range(KILLS):
        out = tmp_path / f"trial-{trial}"
        killed += killer.run_killed(out, at_once=trial % 2 == 0)
        killer.run_whole(out)
        found = contents(out)
        assert sorted(found) == sorted(expected), f"trial {trial}"
        changed = [name for name in expected if found[name] != expected[name]]
        assert not changed, f"trial {trial}: {changed}"
    assert killed >= KILLS // 2  # those at once; a later one may find the work done


def test_a_ray_worker_killed_midway_loses_nothing(job, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    from clearvit.shards.extract import save_tokens

    out, mark = tmp_path / "ray", tmp_path / "killed"

    def kill_the_first():
        """Run when a worker starts: the first that writes a shard dies while it does."""
        kill_at_step(str(out), step=2, mark=mark)

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.getcwd(), *sys.path]))  # of the workers
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        runtime_env={"worker_process_setup_hook": kill_the_first},
    )
    backbone = load(f"dir:{job}/model")
    config = replace(CONFIG, engine="ray")
    try:
        store = save_tokens(backbone, job / "photos", out=out, config=config)
    finally:
        ray.shutdown()
    assert mark.exists()
    assert len(store) == len(set(store.names)) == PHOTOS - 1
    assert [bad.name for bad in store.skipped] == ["017.png"]
    local = save_tokens(backbone, job / "photos", out=tmp_path / "local", config=CONFIG)
    assert local.names == store.names
    assert (local[:].patches - store[:].patches).abs().max() <= 2e-3  # float16, other thread count
