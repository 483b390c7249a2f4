"""Probe and prototypes averaged: the formula, and what counts as an example."""

import numpy as np
import pytest
import torch

from clearvit.segmentation.patch_classifiers import PROTOTYPE_TEMPERATURE, fit_classifier
from clearvit.segmentation.patch_sets import PatchSet, Rows


def patch_set(images):
    """Two classes in every example, around two means; `images` says which image each is of."""
    rng = np.random.default_rng(0)
    parts = []
    for number in range(len(images)):
        for place, mean in enumerate(((3, 0, 0, 1), (0, 3, 0, 1))):
            tokens = torch.tensor(rng.normal(mean, 1, (10, 4)), dtype=torch.float32)
            labels = torch.eye(2)[place].expand(10, 2)
            parts.append(Rows(tokens, labels, torch.full((10,), number)))
    rows = Rows(*(torch.cat([getattr(p, n) for p in parts]) for n in ("tokens", "labels", "items")))
    return PatchSet(rows, rows, rows.tokens, torch.tensor(images))


@pytest.mark.parametrize(("images", "wanted"), [([5], 1), ([5, 5], 1), ([5, 7, 9], 3)])
def test_halves_of_one_image_are_one_example(images, wanted):
    assert patch_set(images).examples_per_class() == wanted


def test_mixed_is_the_weighted_mean_of_probe_and_prototypes():
    data = patch_set([0, 1, 2])
    tokens = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
    weights = fit_classifier("mixed", data).tensors
    scores = tokens.numpy() @ weights["weight"].numpy().T + weights["bias"].numpy()
    probe = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    unit = tokens.numpy() / np.linalg.norm(tokens.numpy(), axis=1, keepdims=True)
    votes = np.exp(unit @ weights["bank"].numpy().T / PROTOTYPE_TEMPERATURE)
    votes = votes / votes.sum(1, keepdims=True) @ weights["labels"].numpy()
    expected = 3 / 5 * probe + 2 / 5 * votes  # three examples of each class, two as prior
    found = fit_classifier("mixed", data)(tokens).numpy()
    assert np.allclose(found, expected, atol=1e-5)


def test_what_is_left_out_is_not_counted():
    data = patch_set([0, 1, 2]).without([1])
    assert data.examples_per_class() == 2
    assert float(fit_classifier("mixed", data).tensors["share"]) == pytest.approx(2 / 4)
