"""`kill -9` at any moment: nothing lost, nothing doubled, the same bytes."""

import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clearvit.backbones.load import load
from clearvit.backbones.saved import save
from clearvit.shards.config import TokenConfig
from tests.conftest import tiny_network

KILLS = 20
CONFIG = TokenConfig(batch=2, shard=4, layers=(0,))


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A saved model and 80 photos, one of them broken."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "photos").mkdir()
    generator = np.random.default_rng(0)
    for i in range(80):
        pixels = generator.integers(0, 255, (120, 160, 3), dtype=np.uint8)
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


@pytest.fixture(scope="module")
def processes():
    """Processes that have imported torch and timm already, so that a kill hits the work itself."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["clearvit.shards.extract", "clearvit.backbones.saved"])
    return context


def run(processes, folder, out, kill_after=None):
    process = processes.Process(target=extract, args=(folder, out))
    process.start()
    process.join(kill_after)
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    return process.exitcode


def test_twenty_kills_at_random_moments_change_no_byte(job, processes, tmp_path):
    run(processes, job, tmp_path / "warm")  # the first process also starts the server
    began = time.monotonic()
    assert run(processes, job, tmp_path / "whole") == 0
    duration = time.monotonic() - began
    expected = contents(tmp_path / "whole")
    assert len(expected) == 20 + 2  # shards, plan and index

    generator = random.Random(0)
    killed = 0
    for trial in range(KILLS):
        out = tmp_path / f"trial-{trial}"
        exit_code = run(processes, job, out, kill_after=generator.uniform(0.1, 0.95) * duration)
        killed += exit_code == -signal.SIGKILL
        assert run(processes, job, out) == 0
        found = contents(out)
        assert sorted(found) == sorted(expected), f"trial {trial}"
        changed = [name for name in expected if found[name] != expected[name]]
        assert not changed, f"trial {trial}: {changed}"
    assert killed >= KILLS // 2  # else the job was too short to be a test


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds workers through /proc")
def test_a_ray_worker_killed_midway_loses_nothing(job, tmp_path):
    ray = pytest.importorskip("ray")
    from clearvit.shards.extract import save_tokens

    backbone = load(f"dir:{job}/model")
    config = TokenConfig(**{**vars(CONFIG), "engine": "ray"})
    victims = []
    finished = threading.Event()

    def hunt():
        while not finished.is_set() and not victims:
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    if (process / "cmdline").read_bytes().startswith(b"ray::_write_one"):
                        os.kill(int(process.name), signal.SIGKILL)
                        victims.append(process.name)
                        break
                except OSError:
                    continue
            time.sleep(0.02)

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    hunter = threading.Thread(target=hunt)
    hunter.start()
    try:
        store = save_tokens(backbone, job / "photos", out=tmp_path / "ray", config=config)
    finally:
        finished.set()
        hunter.join()
        ray.shutdown()
    assert victims, "no worker was caught at work"
    assert len(store) == 79 and len(set(store.names)) == 79
    assert [bad.name for bad in store.skipped] == ["017.png"]
    local = save_tokens(backbone, job / "photos", out=tmp_path / "local", config=CONFIG)
    assert local.names == store.names
    assert (local[:].patches - store[:].patches).abs().max() <= 2e-3  # float16, other thread count
