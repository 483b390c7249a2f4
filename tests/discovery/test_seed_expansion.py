import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.discovery import lost, to_pixels
from clearvit.discovery.seed_expansion import degrees
from clearvit.errors import ModelError
from tests.helpers import GOLDEN

pytestmark = pytest.mark.filterwarnings("ignore:.*the box is meaningless")


def in_pixels(found, golden):
    return [round(s) for s in to_pixels(found.box, golden["grid"], golden["image_size"])]


def check_plain(golden, features, prefix):
    for variant in ("raw", "centred"):
        given = features - features.mean(0) if variant == "centred" else features
        found = lost(given, golden["grid"])
        name = f"{prefix}{variant}"
        # The order of equal degrees is ours; where there are none, the published code's answer.
        assert in_pixels(found, golden) == golden[f"{name}_box_stable_ties"].tolist()
        assert found.seed == golden[f"{name}_seed_stable_ties"]
        if golden[f"{name}_robust"]:
            assert in_pixels(found, golden) == golden[f"{name}_box"].tolist()
            assert found.seed == golden[f"{name}_seed"]


def check_biases(golden, features, prefix):
    unit = F.normalize(features, dim=1)
    cases = [golden[f"{prefix}bias_{part}"] for part in ("values", "boxes", "seeds", "robust")]
    assert cases[3].any()
    for bias, box, seed, robust in zip(*cases, strict=True):
        if robust:
            found = lost(unit, golden["grid"], bias=float(bias))
            assert in_pixels(found, golden) == box.tolist() and found.seed == seed


@pytest.mark.parametrize("kind", ["keys", "values"])
@pytest.mark.parametrize("image", ["coffee", "flower"])
def test_boxes_and_seeds_are_those_of_the_published_code(image, kind):
    # Rounded to half precision, which changes none of these answers, only cells inside a box.
    golden = np.load(GOLDEN / f"lost_{image}_{kind}.npz")
    features = torch.from_numpy(golden["features"]).float()
    check_plain(golden, features, "")
    check_biases(golden, features, "")
    centred = features - features.mean(0)
    assert (degrees(centred) - torch.from_numpy(golden["centred_degree"])).abs().max() <= 2


def test_boxes_seeds_and_cells_are_the_same_in_full_precision():
    golden = np.load(GOLDEN / "lost_china_full.npz")
    features = torch.from_numpy(golden["values"])
    check_plain(golden, features, "values_")
    check_biases(golden, features, "values_")
    # Ties of the degree leave the seed and the voters open; there are none here.
    assert golden["values_raw_n_seed_ties"] == 1 and not golden["values_raw_cut_is_tied"]
    mask = lost(features, golden["grid"]).mask.numpy()
    assert (mask == golden["values_raw_component"]).all()


def test_raw_keys_of_dinov2_give_the_whole_image_and_a_warning():
    golden = np.load(GOLDEN / "lost_coffee_keys.npz")
    features = torch.from_numpy(golden["features"]).float()
    with pytest.warns(UserWarning, match="100.0 % of the affinities are positive"):
        found = lost(features, golden["grid"])
    assert found.degenerate and found.seed == 0
    assert found.box == (0, 0, *golden["grid"][::-1]) and found.mask.all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not lost(features - features.mean(0), golden["grid"]).degenerate


def direct_lost(features, grid, k, bias):
    """The formulas word for word, in double precision."""
    affinity = features.double().numpy() @ features.double().numpy().T + bias
    degree = [sum(row[q] > 0 for q in range(len(row)) if q != p) for p, row in enumerate(affinity)]
    order = sorted(range(len(degree)), key=lambda p: degree[p])
    voters = [q for q in order[:k] if affinity[order[0], q] > 0]
    mask = affinity[voters].sum(0) > 0
    reached, before = {order[0]}, set()
    while reached != before:
        before = set(reached)
        for p in before:
            for q in range(len(mask)):
                (r0, c0), (r1, c1) = divmod(p, grid[1]), divmod(q, grid[1])
                if mask[q] and abs(r0 - r1) + abs(c0 - c1) == 1:
                    reached.add(q)
    rows, columns = [p // grid[1] for p in reached], [p % grid[1] for p in reached]
    return order[0], (min(columns), min(rows), max(columns) + 1, max(rows) + 1), degree


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(2, 6), st.integers(1, 40), st.integers(0, 9), st.booleans())
def test_lost_is_its_formula_on_any_grid(rows, columns, k, seed, biased):
    generator = torch.Generator().manual_seed(seed)
    # Whole numbers: no sum depends on its order, ties abound.
    features = torch.randint(-2, 4, (rows * columns, 5), generator=generator).float()
    features[:, 0] += 0.5
    bias = -0.75 if biased else 0.0
    found = lost(features, (rows, columns), k, bias=bias)
    start, box, degree = direct_lost(features, (rows, columns), k, bias)
    assert degrees(features, bias=bias).tolist() == degree
    assert found.seed == start
    if float(features[start].square().sum()) + bias > 0:  # else nobody votes
        assert found.box == box


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 7), st.integers(1, 7), st.integers(0, 99))
def test_seed_mask_and_box_belong_together_and_channels_have_no_order(rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randint(-3, 4, (rows * columns, 6), generator=generator).float()
    found = lost(features, (rows, columns))
    x0, y0, x1, y1 = found.box
    assert 0 <= x0 < x1 <= columns and 0 <= y0 < y1 <= rows
    assert found.mask.shape == (rows, columns) and found.mask.flatten()[found.seed]
    assert found.mask[y0:y1, x0:x1].sum() == found.mask.sum()
    other = lost(features[:, torch.randperm(6, generator=generator)], (rows, columns))
    assert other.box == found.box and other.seed == found.seed


def test_degrees_do_not_depend_on_the_blocks(monkeypatch):
    features = torch.randn(700, 8)
    affinity = features @ features.T > 0
    whole = affinity.sum(1) - affinity.diagonal().long()
    for block in (1, 64, 512, 700, 10_000):
        monkeypatch.setattr("clearvit.discovery.seed_expansion.BLOCK", block)
        assert (degrees(features) - whole).abs().max() <= 1  # products near zero may round apart


def test_features_of_zeros_give_the_seed_patch_and_a_warning():
    with pytest.warns(UserWarning, match="0.0 % of the affinities"):
        found = lost(torch.zeros(6, 4), (2, 3))
    assert found.degenerate and found.box == (0, 0, 1, 1)


@pytest.mark.parametrize(
    ("features", "grid", "k", "word"),
    [
        (torch.ones(6, 4), (2, 4), 100, "grid of 2 x 4"),
        (torch.ones(1, 6, 4), (2, 3), 100, "class token"),
        (torch.full((6, 4), float("nan")), (2, 3), 100, "NaN"),
        (torch.ones(6, 4), (2, 3), 0, "k is 0"),
    ],
)
def test_wrong_features_are_named(features, grid, k, word):
    with pytest.raises(ModelError, match=word):
        lost(features, grid, k)
