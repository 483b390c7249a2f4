import torch
from hypothesis import given
from hypothesis import strategies as st

from clearvit.training.order import BatchOrder, seeded_generator


@given(count=st.integers(1, 60), batch=st.integers(1, 20), seed=st.integers(0, 5))
def test_an_epoch_shows_no_image_twice(count, batch, seed):
    order = BatchOrder(count, min(batch, count), seed)
    for epoch in range(2):
        steps = range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch)
        seen = [image for step in steps for image in order.images(step)]
        assert len(seen) == len(set(seen)) == order.steps_per_epoch * order.batch
        assert set(seen) <= set(range(count))


@given(processes=st.sampled_from([1, 2, 4]), step=st.integers(0, 30))
def test_processes_share_a_step(processes, step):
    order = BatchOrder(40, 8, 3)
    shares = [order.local_images(step, process, processes) for process in range(processes)]
    assert [image for share in shares for image in share] == order.images(step)
    assert {len(share) for share in shares} == {8 // processes}


def test_epochs_and_seeds_are_shuffled_differently():
    first, second = BatchOrder(100, 100, 0).images(0), BatchOrder(100, 100, 0).images(1)
    assert first != second
    assert first != BatchOrder(100, 100, 1).images(0)


def test_random_numbers_belong_to_a_number_whatever_was_drawn_before():
    torch.rand(7)
    again = torch.rand(3, generator=seeded_generator(1, 5))
    assert torch.equal(torch.rand(3, generator=seeded_generator(1, 5)), again)
    assert not torch.equal(torch.rand(3, generator=seeded_generator(1, 6)), again)
