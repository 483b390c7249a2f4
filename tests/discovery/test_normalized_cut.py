import numpy as np
import pytest
import torch
import torch.nn.functional as F

from clearvit.discovery.normalized_cut import NO_EDGE, contrast, second_eigenvector, tokencut
from clearvit.errors import ModelError
from tests.helpers.made_features import two_things


def test_the_eigenvector_solves_the_generalised_problem():
    affinity = torch.rand(12, 12, dtype=torch.float64)
    affinity = affinity + affinity.T
    vector = second_eigenvector(affinity).numpy()
    a, d = affinity.numpy(), np.diag(affinity.sum(1).numpy())
    values = np.sort(np.linalg.eigvals(np.linalg.inv(d) @ (d - a)).real)
    assert np.allclose((d - a) @ vector, values[1] * d @ vector, atol=1e-9)
    assert vector[np.abs(vector).argmax()] > 0


def test_tokencut_is_its_formula():
    features, _ = two_things(noise=2.0)
    unit = F.normalize(features.double(), dim=1).numpy()
    affinity = np.where(unit @ unit.T > 0.2, 1.0, NO_EDGE)
    d = affinity.sum(1)
    values, vectors = np.linalg.eig((np.diag(d) - affinity) / d[:, None])
    vector = vectors[:, np.argsort(values.real)[1]].real
    side = vector > vector.mean()
    seed = np.abs(vector).argmax()
    side = side if side[seed] else ~side
    found = tokencut(features, (8, 10))
    assert found.seed == seed
    inside = found.mask.flatten().numpy()
    assert inside[seed] and not (inside & ~side).any()


def test_the_object_is_found_and_the_box_is_tight():
    features, mask = two_things()
    found = tokencut(features, (8, 10))
    assert found.box == (2, 1, 6, 5) and (found.mask == mask).all()
    assert found.score > 0.9 and not found.degenerate


@pytest.mark.parametrize(("tau", "word"), [(-1.0, "All"), (1.0, "No")])
def test_a_graph_that_cannot_be_cut_warns(tau, word):
    features, _ = two_things()
    with pytest.warns(UserWarning, match=f"{word} cosines"):
        assert tokencut(features, (8, 10), tau=tau).degenerate


def test_a_tau_that_is_no_cosine():
    with pytest.raises(ModelError, match="between -1 and 1"):
        tokencut(torch.ones(4, 2), (2, 2), tau=1.5)


def test_one_patch_is_its_own_object():
    with pytest.warns(UserWarning):
        assert tokencut(torch.ones(1, 3), (1, 1)).box == (0, 0, 1, 1)


def test_contrast_is_inside_minus_across():
    affinity = torch.tensor([[1.0, 0.8, 0.1], [0.8, 1.0, 0.3], [0.1, 0.3, 1.0]])
    assert contrast(affinity, torch.tensor([[True, True, False]])) == pytest.approx(0.9 - 0.2)
    assert contrast(affinity, torch.ones(1, 3).bool()) == 0
