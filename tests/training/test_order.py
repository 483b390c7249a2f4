import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearvit.training.order import Order, generator
from clearvit.training.schedule import Schedule


@given(count=st.integers(1, 60), batch=st.integers(1, 20), seed=st.integers(0, 5))
def test_an_epoch_shows_no_image_twice(count, batch, seed):
    order = Order(count, min(batch, count), seed)
    for epoch in range(2):
        steps = range(epoch * order.steps, (epoch + 1) * order.steps)
        seen = [image for step in steps for image in order.images(step)]
        assert len(seen) == len(set(seen)) == order.steps * order.batch
        assert set(seen) <= set(range(count))


@given(processes=st.sampled_from([1, 2, 4]), step=st.integers(0, 30))
def test_processes_share_a_step(processes, step):
    order = Order(40, 8, 3)
    shares = [order.share(step, process, processes) for process in range(processes)]
    assert [image for share in shares for image in share] == order.images(step)
    assert {len(share) for share in shares} == {8 // processes}


def test_epochs_and_seeds_are_shuffled_differently():
    first, second = Order(100, 100, 0).images(0), Order(100, 100, 0).images(1)
    assert first != second
    assert first != Order(100, 100, 1).images(0)


def test_random_numbers_belong_to_a_number_whatever_was_drawn_before():
    torch.rand(7)
    again = torch.rand(3, generator=generator(1, 5))
    assert torch.equal(torch.rand(3, generator=generator(1, 5)), again)
    assert not torch.equal(torch.rand(3, generator=generator(1, 6)), again)


def test_the_rate_falls_as_published():
    schedule = Schedule(steps=10, epochs=100, end=0.05)
    assert schedule.factor(0) == 1.0
    for epoch in (1, 30, 99):  # lr(e) = lr0 (lr1 / lr0) ** (e / E)
        assert schedule.factor(10 * epoch) == pytest.approx(0.05 ** (epoch / 100))


def test_the_rate_rises_first():
    schedule = Schedule(steps=100, epochs=1, warmup=4)
    assert [schedule.factor(step) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
