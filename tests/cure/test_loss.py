import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearvit.cure.loss import confidence, cosine, distance


def test_the_loss_is_the_published_formula():
    generator = np.random.default_rng(0)
    student, target = generator.normal(size=(2, 2, 5, 7)).astype("float32")
    cos = (student * target).sum(-1) / (
        (np.linalg.norm(student, axis=-1) + 1e-8) * (np.linalg.norm(target, axis=-1) + 1e-8)
    )
    expected = (1 - cos.mean()) + 1.0 * ((student - target) ** 2).mean()
    found = distance(torch.from_numpy(student), torch.from_numpy(target), mse=1.0)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)


@given(scale=st.floats(0.1, 10), mse=st.floats(0, 2))
def test_it_is_zero_only_at_the_target(scale, mse):
    tokens = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    assert float(distance(tokens, tokens, mse=mse)) == pytest.approx(0, abs=1e-5)
    stretched = float(distance(scale * tokens, tokens, mse=0.0))
    assert stretched == pytest.approx(0, abs=1e-5)  # the cosine does not see the length


def test_weights_of_equal_size_change_nothing_and_zero_silences_a_patch():
    student, target = torch.randn(2, 2, 4, 3).unbind()
    plain = distance(student, target)
    assert torch.allclose(distance(student, target, weights=torch.full((2, 4), 7.0)), plain)
    weights = torch.ones(2, 4)
    weights[:, 0] = 0
    moved = student.clone()
    moved[:, 0] += 100
    assert torch.allclose(
        distance(moved, target, weights=weights), distance(student, target, weights=weights)
    )


def test_half_precision_is_computed_in_single():
    student = torch.randn(1, 4, 64).half() * 60
    assert cosine(student, student).dtype == torch.float32
    assert torch.isfinite(distance(student, -student))


def test_confidence_halves_the_usual_patch():
    variance = torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0]])
    weights = confidence(variance)
    assert weights[0, 0] == 1 and weights[0, 2] == 0.5
    assert (weights.diff() < 0).all()
    assert torch.isfinite(confidence(torch.zeros(1, 3))).all()
