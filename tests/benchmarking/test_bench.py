"""Throughput side by side; times come from a clock of the test's own."""

import json
import subprocess
import sys

import pytest
import timm
import torch

from clearvit.backbones.load import load
from clearvit.backbones.saved import save
from clearvit.benchmarking import bench as module
from clearvit.benchmarking import memory
from clearvit.benchmarking.bench import bench, common_size
from clearvit.benchmarking.config import BenchConfig
from clearvit.benchmarking.machine import Machine, sgemm, this_machine
from clearvit.errors import ModelError, OptionError
from clearvit.pruning.cost import macs
from clearvit.pruning.prune import prune
from clearvit.timing import Spread
from tests.conftest import tiny_network

QUICK = BenchConfig(batch=(1, 2), rounds=1, memory=False)


def test_the_numbers_follow_from_the_times(tiny, monkeypatch):
    def timer(passes, *, rounds, patience, advance, rest):
        assert rest == 0.0  # one library
        for run in passes:
            run()
        costs = [0.5, 0.25, 0.1]  # seconds: tiny, pruned, sgemm
        return [[cost, 2 * cost] for cost in costs]

    monkeypatch.setattr(module, "time_interleaved", timer)
    result = bench([tiny], keep=0.5, batch=(4, 1), size=(64, 32))
    assert [(row.model, row.batch) for row in result.rows] == [
        (name, batch)
        for batch in (1, 4)
        for name in (tiny.name, f"{tiny.name} pruned to 0.5, 0.25")
    ]
    first, second = result.rows[2:]
    assert first.speed == Spread(6.0, 4.0, 8.0) and first.ratio == Spread(1, 1, 1)
    assert second.speed.high == 16.0 and second.ratio == Spread(2, 2, 2)
    assert second.macs == macs(prune(tiny, keep=0.5), (64, 32)).total < first.macs
    assert second.gemm_fraction == pytest.approx((4 * second.macs / 0.25) / (1024**3 / 0.1))
    assert result.gemm == pytest.approx(0.75 * 1024**3 / 0.1)
    assert first.memory is None and first.size == (64, 32)


def test_it_runs_on_every_kind_of_backbone(tiny):
    calls = []
    grid = load(timm.create_model("resnet10t", num_classes=0))
    pruned = prune(tiny)
    result = bench(
        [tiny, grid, pruned],
        config=QUICK,
        progress=lambda *call: calls.append(call),
    )
    assert [row.macs is None for row in result.rows] == [False, True, False] * 2
    assert result.rows[0].ratio == Spread(1.0, 1.0, 1.0)
    assert calls[-1][1] == calls[-1][2] and result.machine.threads == torch.get_num_threads()
    text = result.text()
    assert text.splitlines()[0].split()[:4] == ["model", "px", "batch", "images/s"]
    assert "GMAC/s" in text and str(this_machine()) in text
    assert json.loads(json.dumps(result.to_json()))["rows"][1]["gemm_fraction"] is None


def test_the_size_is_that_of_a_graph_if_there_is_one(tiny):
    assert common_size([tiny], None) == (32, 32) and common_size([tiny], 50) == (48, 48)


def test_memory_is_measured_by_batch_and_unknown_where_that_fails(tmp_path, monkeypatch):
    """The process of its own is covered by the command, see tests/cli/test_bench.py."""
    path = f"dir:{save(load(tiny_network()), tmp_path / 'model')}"
    task = {"keep": [0.5, 0.25], "size": (32, 64), "batches": [3, 1], "threads": 1}
    found = memory.measure({"model": path, **task})
    assert list(found) == [1, 3] and all(50 < value < 20000 for value in found.values())
    answers = {0: 'noise\n{"1": 200.5, "3": 300}', 1: ""}
    for code, expected in ((0, {1: 200.5, 3: 300}), (1, None)):
        done = subprocess.CompletedProcess([], code, answers[code], "")
        monkeypatch.setattr(memory.subprocess, "run", lambda *a, done=done, **o: done)
        assert memory.peak_memory(path, **task) == expected


def test_the_peak_can_be_reset():
    code = """
from clearvit.benchmarking.memory import _reset_peak, _peak  # imports no torch
big = b"x" * (200 << 20)
del big
before = _peak()
_reset_peak()
print(before - _peak())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    if sys.platform == "linux":
        assert float(done.stdout) > 150


def test_bad_options_name_the_allowed():
    with pytest.raises(ModelError, match="nothing to time"):
        bench([])
    for options, words in (
        ({"batch": ()}, "sizes from 1"),
        ({"batch": (0,)}, "at least 1"),
        ({"keep": "half"}, "keep"),
        ({"rounds": 0}, "at least 1"),
    ):
        with pytest.raises(OptionError, match=words):
            BenchConfig(**options)


def test_the_machine_and_its_matrix_product():
    product, cost = sgemm(torch.device("cpu"))
    assert isinstance(product(), float) and cost == 1024**3
    machine = Machine("AMD EPYC", cores=2, threads=1, torch="2.9")
    assert str(machine) == "AMD EPYC, 2 cores, 1 thread used, torch 2.9"
    assert this_machine().threads == torch.get_num_threads()
