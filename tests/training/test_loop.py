"""The loop on a task small enough to check by hand."""

import json
import math

import pytest
import torch
from torch import nn

from clearvit.errors import StoreError, TrainingError
from clearvit.training.loop import (
    BEST,
    STATE,
    FitConfig,
    accelerator_for,
    check_divisible,
    fit,
    lr_factor,
)
from clearvit.training.order import BatchOrder

CPU = torch.device("cpu")


class Line(nn.Module):
    """Learn y = 2 x."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.slope = nn.Parameter(torch.randn(3))
        self.fixed = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x):
        return {"loss": ((self.slope * x - 2 * x) ** 2).mean()}


class LineTask:
    def __init__(self, *, bad_at=None, best=None):
        self.module = Line()
        self.data = torch.randn(24, 3, generator=torch.Generator().manual_seed(1))
        self.bad_at, self.best, self.evaluations = bad_at, best, 0

    def param_groups(self):
        return [{"params": [self.module.slope], "lr": 0.1, "weight_decay": 0.0}]

    def load_batch(self, images, step):
        data = self.data[list(images)]
        return data * float("nan") if step == self.bad_at else data

    def evaluate(self, module):
        self.evaluations += 1
        if self.best is not None:
            return {"score": -abs(self.evaluations - 1 - self.best)}
        return {"score": -float((module.slope.detach() - 2).abs().sum())}

    def image_names(self, images):
        return [f"image-{i}" for i in images]


def run(task, folder, **options):
    config = FitConfig(**({"epochs": 4, "micro_batch": 4, "save_every": 3} | options))
    return fit(task, BatchOrder(24, 4, 0), config, folder, accelerator_for(CPU))


def test_it_learns_and_leaves_the_best_weights(tmp_path):
    task = LineTask()
    state = run(task, tmp_path, epochs=20, patience=None, end_factor=1.0)
    assert (task.module.slope.detach() - 2).abs().max() < 0.1
    assert state.step == 20 * 6
    assert [row["epoch"] for row in state.history] == list(range(21))


def test_micro_batches_change_rounding_only(tmp_path):
    whole, parts = LineTask(), LineTask()
    run(whole, tmp_path / "a")
    run(parts, tmp_path / "b", micro_batch=1)
    assert torch.allclose(whole.module.slope, parts.module.slope, atol=1e-6)


@pytest.mark.parametrize("ema", [0.0, 0.9])
@pytest.mark.parametrize("stop", [1, 4, 5, 6, 7, 13, 23])
def test_an_interrupted_run_ends_with_the_same_bits(tmp_path, stop, ema):
    expected = LineTask()
    final = run(expected, tmp_path / "whole", ema_decay=ema)

    class Killed(BaseException):
        pass

    task = LineTask()
    load = task.load_batch

    def killed(images, step):
        if step == stop:
            raise Killed
        return load(images, step)

    task.load_batch = killed
    with pytest.raises(Killed):
        run(task, tmp_path / "killed", ema_decay=ema)
    resumed = LineTask()
    state = run(resumed, tmp_path / "killed", ema_decay=ema)
    assert torch.equal(resumed.module.slope, expected.module.slope)
    assert state == final


def test_averaged_weights_are_evaluated_and_kept(tmp_path):
    last, mean = LineTask(), LineTask()
    seen = run(last, tmp_path / "a").history
    averaged = run(mean, tmp_path / "b", ema_decay=0.9).history
    assert averaged[0] == seen[0] and averaged[-1] != seen[-1]
    assert -float((mean.module.slope.detach() - 2).abs().sum()) == averaged[-1]["score"]


def test_it_stops_when_held_out_images_say_so(tmp_path):
    task = LineTask(best=2)  # the third evaluation, epoch 2, is the best one
    state = run(task, tmp_path, epochs=50, patience=3)
    assert (state.best_epoch, state.step, state.stopped) == (2, 5 * 6, True)
    assert run(LineTask(best=2), tmp_path, epochs=50, patience=3).step == 5 * 6  # and stays so


def test_the_weights_before_training_can_be_the_best(tmp_path):
    task, start = LineTask(best=0), LineTask().module.slope
    run(task, tmp_path, patience=2)
    assert torch.equal(task.module.slope, start)


def test_a_loss_that_is_no_number_is_named_and_changes_nothing(tmp_path):
    reference = LineTask()
    run(reference, tmp_path / "short", epochs=1, patience=None)
    task = LineTask(bad_at=6)
    with pytest.raises(TrainingError, match=r"step 7 \(epoch 2\).*loss is nan.*image-\d+"):
        run(task, tmp_path / "bad")
    healthy = LineTask()
    state = run(healthy, tmp_path / "bad", epochs=1, patience=None)
    assert state.step == 6  # everything before the bad step was kept
    assert torch.isfinite(healthy.module.slope).all()


def test_a_state_of_other_weights_is_refused(tmp_path):
    run(LineTask(), tmp_path)
    other = LineTask()
    other.module.fixed.requires_grad_(True)
    with pytest.raises(StoreError, match="other weights"):
        run(other, tmp_path)


def test_a_damaged_state_is_named(tmp_path):
    run(LineTask(), tmp_path)
    (tmp_path / STATE).write_bytes(b"damaged")
    with pytest.raises(StoreError, match="Delete it"):
        run(LineTask(), tmp_path)


def test_a_full_disk_keeps_the_last_state(tmp_path, monkeypatch):
    import clearvit.training.state as state_module

    run(LineTask(), tmp_path, epochs=1, patience=None)
    kept = (tmp_path / STATE).read_bytes()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state_module, "save_file", full)
    with pytest.raises(StoreError, match="disk is full"):
        run(LineTask(), tmp_path, epochs=2, patience=None)
    assert (tmp_path / STATE).read_bytes() == kept
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == [BEST, STATE]


def test_a_batch_that_cannot_be_split_is_refused():
    check_divisible(8, 4)
    with pytest.raises(TrainingError, match="multiple of 3"):
        check_divisible(8, 3)


def test_the_state_is_readable_without_clearvit(tmp_path):
    from safetensors import safe_open

    run(LineTask(), tmp_path)
    with safe_open(tmp_path / STATE, framework="pt") as file:
        assert json.loads(file.metadata()["state"])["step"] == 24
        assert "weights/slope" in file.keys()


def test_the_rate_falls_once_per_epoch():
    config = FitConfig(epochs=100, micro_batch=1, end_factor=0.05)
    assert lr_factor(0, 10, config) == lr_factor(9, 10, config) == 1.0
    for epoch in (1, 30, 99):
        assert lr_factor(10 * epoch, 10, config) == pytest.approx(0.05 ** (epoch / 100))


def test_the_rate_of_ph_reg_is_set_after_each_step_of_an_epoch():
    """A transcription: epochs count from 1; the optimizer starts at the full rate."""
    start, end, epochs, steps = 1e-4, 5e-6, 4, 3
    rate, expected = start, []
    for epoch in range(1, epochs + 1):
        for _ in range(steps):
            expected.append(rate)
            rate = start * (end / start) ** (epoch / epochs)
    config = FitConfig(epochs=epochs, micro_batch=1, schedule="ph-reg", end_factor=end / start)
    found = [start * lr_factor(step, steps, config) for step in range(epochs * steps)]
    assert found == pytest.approx(expected)


def test_the_rate_falls_along_a_cosine():
    config = FitConfig(epochs=2, micro_batch=1, schedule="cosine", end_factor=0.1)
    found = [lr_factor(step, 2, config) for step in range(4)]
    assert found == pytest.approx([0.55 + 0.45 * math.cos(math.pi * s / 4) for s in range(4)])


def test_the_rate_rises_first():
    config = FitConfig(epochs=1, micro_batch=1, warmup_steps=4)
    found = [lr_factor(step, 100, config) for step in range(5)]
    assert found == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_without_a_score_the_last_weights_are_kept(tmp_path):
    task, scored = LineTask(), LineTask(best=100)  # the later the better
    task.evaluate = lambda module: {}
    state = run(task, tmp_path / "a", patience=None)
    run(scored, tmp_path / "b", patience=None)
    assert (state.best_epoch, state.best_score) == (4, None)
    assert torch.equal(task.module.slope, scored.module.slope)


def test_refused_weights_are_never_the_result(tmp_path):
    class Refusing(LineTask):
        def evaluate(self, module):
            return {**super().evaluate(module), "refused": float(self.evaluations != 2)}

    assert run(Refusing(), tmp_path / "a", patience=None, end_factor=1.0).best_epoch == 1

    class RefusingAll(LineTask):
        def evaluate(self, module):
            return {**super().evaluate(module), "refused": 1.0}

    assert run(RefusingAll(), tmp_path / "b").best_epoch == 0
