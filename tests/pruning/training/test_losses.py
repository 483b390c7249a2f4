"""Each loss against its formula in plain numpy, and the official values."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.pruning.training import losses
from tests.helpers.golden_dynamicvit import official_outputs


def softmax(x):
    raised = np.exp(x - x.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def some(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_classes_and_divergence():
    student, teacher = some(4, 7), some(4, 7, seed=1)
    labels = some(4, 7, seed=2).softmax(-1)
    p, q = softmax(student.double().numpy()), softmax(teacher.double().numpy())
    expected = -(labels.numpy() * np.log(p)).sum(-1).mean()
    assert float(losses.cross_entropy(student, labels)) == pytest.approx(expected, abs=1e-5)
    expected = (q * np.log(q / p)).sum() / 4
    assert float(losses.kl_divergence(student, teacher)) == pytest.approx(expected, abs=1e-5)
    assert float(losses.kl_divergence(student, student)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("per", ["image", "batch"])
def test_ratio(per):
    decisions, keep = [(some(3, 10, seed=s) > 0).float() for s in range(2)], [0.7, 0.4]
    each = []
    for decision, target in zip(decisions, keep, strict=True):
        fractions = decision.numpy().mean(1)
        fractions = fractions if per == "image" else fractions.mean(keepdims=True)
        each.append(((fractions - target) ** 2).mean())
    assert float(losses.ratio_loss(decisions, keep, per)) == pytest.approx(np.mean(each), abs=1e-6)


@pytest.mark.parametrize("relative", [False, True])
def test_tokens(relative):
    ours, theirs, kept = some(3, 5, 4), some(3, 5, 4, seed=1) * 9, some(3, 5, seed=2) > 0
    total, count = 0.0, 0
    for image, patch in np.argwhere(kept.numpy()):
        a, b = ours[image, patch].double().numpy(), theirs[image, patch].double().numpy()
        total += ((a - b) ** 2).mean() / ((b**2).mean() if relative else 1)
        count += 1
    found = losses.token_loss(ours, theirs, kept, relative=relative)
    assert float(found) == pytest.approx(total / count, rel=1e-5)


def test_the_relative_error_is_a_fraction_of_the_teachers_energy():
    ours, theirs = some(3, 6), some(3, 6, seed=1)
    a, b = ours.double().numpy(), theirs.double().numpy()
    expected = (((a - b) ** 2).sum(1) / (b**2).sum(1)).mean()
    assert float(losses.relative_error(ours, theirs)) == pytest.approx(expected, rel=1e-5)


@given(st.floats(1e-3, 1e3))
@settings(deadline=None)
def test_relative_losses_do_not_depend_on_the_scale_of_tokens(scale):
    ours, theirs, kept = some(2, 5, 4), some(2, 5, 4, seed=1), some(2, 5, seed=2) > 0
    plain = losses.token_loss(ours, theirs, kept, relative=True)
    scaled = losses.token_loss(ours * scale, theirs * scale, kept, relative=True)
    assert float(scaled) == pytest.approx(float(plain), rel=1e-4)
    assert float(losses.relative_error(ours[0] * scale, theirs[0] * scale)) == pytest.approx(
        float(losses.relative_error(ours[0], theirs[0])), rel=1e-4
    )


def test_none_kept_and_a_teacher_of_zeros_are_finite():
    ours = some(2, 5, 4).requires_grad_()
    none_kept = torch.zeros(2, 5, dtype=torch.bool)
    assert float(losses.token_loss(ours.detach(), some(2, 5, 4, seed=1), none_kept)) == 0
    empty = losses.token_loss(ours, torch.zeros(2, 5, 4), none_kept, relative=True)
    assert empty.isfinite()
    empty.backward()
    assert ours.grad.isfinite().all()


def test_the_official_values():
    tensors = official_outputs()
    decisions = [tensors[f"loss_decision_{s}"] for s in range(3)]
    cases = [name for name in tensors["loss_cases"] if name.startswith("mse")]
    assert len(cases) == 8
    for case, values in zip(cases, tensors["loss_values"].numpy(), strict=False):
        _, per, weight, mask = case.split("-")
        kept = decisions[-1] > 0.5 if mask == "mask" else torch.zeros_like(decisions[-1]).bool()
        weights = losses.Weights(ratio=float(weight[1:]))
        parts = {
            "labels": losses.cross_entropy(tensors["loss_student_logits"], tensors["loss_labels"]),
            "ratio": losses.ratio_loss(decisions, tensors["loss_keep_ratio"].tolist(), per),
            "logits": losses.kl_divergence(
                tensors["loss_student_logits"], tensors["loss_teacher_logits"]
            ),
            "tokens": losses.token_loss(
                tensors["loss_student_tokens"], tensors["loss_teacher_tokens"], kept
            ),
        }
        total = sum(getattr(weights, name) * part for name, part in parts.items())
        found = [total, parts["labels"], 3 * parts["ratio"], parts["logits"], parts["tokens"]]
        assert np.abs(np.array([float(x) for x in found]) - values).max() <= 1e-4, case
