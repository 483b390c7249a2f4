"""`kill -9` at any moment of a cure: the same command ends with the same weights, bit for bit."""

import os

import pytest
import torch
from safetensors.torch import load_file

from clearvit.backbones.load import load
from clearvit.backbones.saved import save
from clearvit.cures.config import CureConfig
from clearvit.cures.cure import cure
from clearvit.cures.results.cure_file import FILE
from clearvit.files import part_name
from tests.conftest import tiny_network
from tests.helpers.killed import Killer
from tests.helpers.launched import run_in_two_processes
from tests.helpers.photos import soft_photos

CONFIG = CureConfig(
    registers=2,
    rank=2,
    epochs=4,
    batch=4,
    lr=1e-3,
    held_out=0.2,
    views=4,
    patience=None,
    precision="no",
)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A saved model and 24 photos."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "photos").mkdir()
    soft_photos(folder / "photos", 24, size=(64, 64))
    save(load(tiny_network()), folder / "model")
    return folder


def work(folder, out):
    """Run in a process of its own, the one that is killed."""
    torch.set_num_threads(1)
    cure(load(f"dir:{folder}/model"), folder / "photos", out=out, config=CONFIG)


def test_what_a_killed_writer_left_is_removed(job, tmp_path):
    work(job, tmp_path / "out")
    name = part_name("model.safetensors").replace(f"-{os.getpid()}-", f"-{2**22 + 1}-")
    part = tmp_path / "out" / name  # of a process that is no more
    part.write_bytes(b"half")
    work(job, tmp_path / "out")
    assert not part.exists()


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_at_random_moments_change_no_bit(job, tmp_path, kills):
    killer = Killer(work, (job,), ["clearvit.cures.cure", "clearvit.backbones.load"])
    killer.run_whole(tmp_path / "whole")
    expected = load_file(tmp_path / "whole" / "model.safetensors")

    killed, number = 0, 0
    while killed < kills:  # several runs, each killed again and again until it is done
        out = tmp_path / f"killed-{number}"
        number += 1
        while killed < kills and killer.run_killed(out, at_once=killed % 2 == 0):
            killed += 1
        killer.run_whole(out)
        found = load_file(out / "model.safetensors")
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected)
        assert (out / FILE).read_bytes() == (tmp_path / "whole" / FILE).read_bytes()
        assert not [path for path in out.rglob(".*.part")]


@pytest.mark.slow
def test_two_processes_end_where_one_does(job, tmp_path):
    """Equal global batch: weights differ by the order of summation only."""
    run_in_two_processes("tests.cures.test_cure_killed", "work", tmp_path, job, tmp_path / "two")
    work(job, tmp_path / "one")
    one, two = (load_file(tmp_path / n / "model.safetensors") for n in ("one", "two"))
    assert max(float((one[key] - two[key]).abs().max()) for key in one) < 1e-4
