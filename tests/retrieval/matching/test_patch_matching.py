import pytest
import torch
import torch.nn.functional as F

from clearvit.errors import OptionError
from clearvit.retrieval.config import Matching
from clearvit.retrieval.matching.optimal_transport import transport
from clearvit.retrieval.matching.patch_matching import LocalFeatures, chamfer, match, mutual
from tests.helpers.planted_collection import planted_collection

METHODS = ["transport", "mutual", "chamfer"]


def test_mutual_and_chamfer_are_their_formulas():
    similarity = torch.rand(6, 8)
    u, v = torch.rand(6), torch.rand(8)
    u[2], v[5] = 0, 0
    u, v = u / u.sum(), v / v.sum()
    rows, columns = [0, 1, 3, 4, 5], [0, 1, 2, 3, 4, 6, 7]
    best_row = {i: max(columns, key=lambda j: similarity[i, j]) for i in rows}
    best_column = {j: max(rows, key=lambda i: similarity[i, j]) for j in columns}
    pairs = [(i, j) for i, j in best_row.items() if best_column[j] == i]
    expected = sum(float((u[i] + v[j]) / 2 * similarity[i, j]) for i, j in pairs)
    assert float(mutual(similarity, u, v)) == pytest.approx(expected, abs=1e-6)
    by_rows = sum(float(u[i] * similarity[i, j]) for i, j in best_row.items())
    by_columns = sum(float(v[j] * similarity[i, j]) for j, i in best_column.items())
    expected = (by_rows + by_columns) / 2
    assert float(chamfer(similarity, u, v)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_an_image_matches_itself_best_and_zero_features_give_numbers(method):
    _, images, _ = planted_collection(classes=3, members=2)
    assert match(images[:1], images, Matching(method)).score.argmax() == 0
    even = torch.full((9,), 1 / 9)
    if method != "transport":
        patches = images.patches[0]
        score = {"mutual": mutual, "chamfer": chamfer}[method](patches @ patches.T, even, even)
        assert float(score) == pytest.approx(1.0, abs=1e-5)
    nothing = match(LocalFeatures(torch.zeros(1, 9, 96)), images, Matching(method))
    assert torch.allclose(nothing.score, torch.zeros(6), atol=1e-6)


def test_cross_correlation_without_agreement_is_flagged_and_uniform():
    descriptors, images, _ = planted_collection(classes=3, members=2, channels=8)
    local = images.patches
    against = F.normalize(-local[:1].mean(1), dim=-1)
    for _ in range(50):  # into the cone where no location agrees
        against = F.normalize(
            against - 0.3 * (local[0] * (local[0] @ against[0] > 0)[:, None]).sum(0)
        )
    assert (local[0] @ against[0] <= 0).all()
    query = LocalFeatures(local[:1], descriptors=descriptors[:1])
    other = LocalFeatures(local[1:2], descriptors=against)
    found = match(query, other, Matching(cross="correlation"))
    assert not found.valid.any() and found.score.isfinite().all()


def test_weights_and_partial_mass_reach_transport():
    _, images, _ = planted_collection(classes=2, members=2)
    local, weights = images.patches, torch.rand(4, 9)
    images = LocalFeatures(local, weights)
    found = match(images[:1], images[1:], Matching("transport", mass=0.6, epsilon=0.1))
    for k in range(3):
        direct = transport(local[0] @ local[k + 1].T, weights[0], weights[k + 1], 0.1, 0.6)
        assert float(found.score[k]) == pytest.approx(float(direct.score), abs=1e-5)
    assert torch.allclose(found.mass, torch.tensor(0.6))


def test_wrong_options_are_refused():
    with pytest.raises(OptionError, match=r"Closest: chamfer"):
        Matching("chamfre")
    with pytest.raises(OptionError, match="mass"):
        Matching(mass=1.5)
    with pytest.raises(OptionError, match="auto"):
        Matching(mass="atuo")
