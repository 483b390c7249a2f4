"""Throughput side by side; times come from a clock of the test's own."""

import json
import subprocess
import sys

import pytest
import timm
import torch

from clearvit.backbones.load import load
from clearvit.backbones.saved import save_backbone
from clearvit.bench import bench as room
from clearvit.bench import memory
from clearvit.bench.bench import bench, common_size
from clearvit.bench.config import BenchConfig
from clearvit.bench.machine import sgemm, this_machine
from clearvit.bench.timing import Spread, ratios, take_turns
from clearvit.errors import ModelError
from clearvit.prune.cost import macs
from clearvit.prune.prune import prune
from tests.conftest import tiny_network

QUICK = BenchConfig(batches=(1, 2), repeats=1, memory=False)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def work(self, seconds, name="", log=None):
        def run():
            self.now += seconds
            if log is not None:
                log.append(name)

        return run


def test_turns_are_interleaved_and_another_goes_first_each_round():
    clock, log = Clock(), []
    passes = [clock.work(s, name, log) for s, name in ((1, "a"), (2, "b"), (4, "c"))]
    times = take_turns(passes, repeats=3, patience=1e9, clock=clock)
    assert times == [[1] * 3, [2] * 3, [4] * 3]  # the first round is not among them
    assert "".join(log) == "abcbcacababc"


def test_patience_ends_the_rounds_but_three_are_made():
    for patience, rounds in ((0, 3), (45, 4), (1e9, 7)):
        clock = Clock()
        times = take_turns([clock.work(10)], repeats=7, patience=patience, clock=clock)
        assert len(times[0]) == rounds


def test_ratios_are_taken_round_by_round():
    assert ratios([2, 4, 9], [1, 4, 3]) == [2, 1, 3]
    assert Spread.of([2, 1, 3]) == Spread(2, 1, 3)


def test_the_numbers_follow_from_the_times(tiny, monkeypatch):
    def turns(passes, *, repeats, patience, advance):
        for run in passes:
            run()
        costs = [0.5, 0.25, 0.1]  # seconds: tiny, pruned, sgemm
        return [[cost, 2 * cost] for cost in costs]

    monkeypatch.setattr(room, "take_turns", turns)
    result = bench([tiny], keep=0.5, config=BenchConfig(batches=(4, 1), size=(64, 32)))
    assert [(row.model, row.batch) for row in result.rows] == [
        (name, batch)
        for batch in (1, 4)
        for name in (tiny.name, f"{tiny.name} pruned to 0.5, 0.25")
    ]
    first, second = result.rows[2:]
    assert first.speed == Spread(6.0, 4.0, 8.0) and first.ratio == Spread(1, 1, 1)
    assert second.speed.high == 16.0 and second.ratio == Spread(2, 2, 2)
    assert second.macs == macs(prune(tiny, keep=0.5), (64, 32)).total < first.macs
    assert second.share == pytest.approx((4 * second.macs / 0.25) / (1024**3 / 0.1))
    assert result.gemm == pytest.approx(0.75 * 1024**3 / 0.1)
    assert first.memory is None and first.size == (64, 32)


def test_it_runs_on_every_kind_of_backbone(tiny):
    told = []
    grid = load(timm.create_model("resnet10t", num_classes=0))
    adaptive = prune(tiny, budget="adaptive")
    result = bench(
        [tiny, grid, adaptive],
        config=QUICK,
        progress=lambda done, total: told.append((done, total)),
    )
    assert [row.macs is None for row in result.rows] == [False, True, True] * 2
    assert result.rows[0].ratio == Spread(1.0, 1.0, 1.0)
    assert told[-1][0] == told[-1][1] and result.machine.threads == torch.get_num_threads()
    text = result.text()
    assert text.splitlines()[0].split()[:4] == ["model", "px", "batch", "images/s"]
    assert "GMAC/s" in text and f"{torch.get_num_threads()} threads used" in text
    assert json.loads(json.dumps(result.to_json()))["rows"][1]["share"] is None


def test_the_size_is_that_of_a_graph_if_there_is_one(tiny):
    assert common_size([tiny], None) == (32, 32) and common_size([tiny], 50) == (48, 48)


def test_memory_is_measured_by_batch_and_unknown_where_that_fails(tmp_path, monkeypatch):
    """The process of its own is covered by the command, see tests/cli/test_bench.py."""
    path = f"dir:{save_backbone(load(tiny_network()), tmp_path / 'model')}"
    task = {"keep": [0.5, 0.25], "size": (32, 64), "batches": [3, 1], "threads": 1}
    found = memory.measure({"model": path, **task})
    assert list(found) == [1, 3] and all(50 < value < 20000 for value in found.values())
    answers = {0: 'noise\n{"1": 200.5, "3": 300}', 1: ""}
    for code, expected in ((0, {1: 200.5, 3: 300}), (1, None)):
        done = subprocess.CompletedProcess([], code, answers[code], "")
        monkeypatch.setattr(memory.subprocess, "run", lambda *a, done=done, **o: done)
        assert memory.peak_memory(path, **task) == expected


def test_the_peak_forgets_what_was_before():
    code = """
from clearvit.bench.memory import _forget_peak, _peak  # imports no torch
big = b"x" * (200 << 20)
del big
before = _peak()
_forget_peak()
print(before - _peak())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    if sys.platform == "linux":
        assert float(done.stdout) > 150


def test_bad_options_name_the_allowed():
    with pytest.raises(ModelError, match="nothing to time"):
        bench([])
    for options, words in (
        ({"batches": ()}, "sizes from 1"),
        ({"batches": (0,)}, "sizes from 1"),
        ({"repeats": 0}, "at least 1"),
    ):
        with pytest.raises(ModelError, match=words):
            BenchConfig(**options)


def test_the_machine_and_its_matrix_product():
    product, cost = sgemm(torch.device("cpu"))
    assert isinstance(product(), float) and cost == 1024**3
    assert this_machine().processor and "threads used" in str(this_machine())
