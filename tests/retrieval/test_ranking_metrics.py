import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.errors import ModelError
from clearvit.retrieval.ranking_metrics import drop_self, recall_at_k, retrieval_metrics
from tests.helpers import GOLDEN

METRICS = GOLDEN / "retrieval_metrics.npz"
SETS = ["perfect", "sop_like_5", "uneven", "uneven_singletons"]


def golden(name):
    arrays = np.load(METRICS)
    picked = {k.partition(".")[2]: arrays[k] for k in arrays.files if k.startswith(f"{name}.")}
    order = torch.from_numpy(picked["order_without_query"]).long()
    return picked, order, torch.from_numpy(picked["labels"])


def three(metrics):
    return [metrics.precision_at_1, metrics.r_precision, metrics.map_at_r]


@pytest.mark.parametrize("name", SETS)
def test_standard_is_pytorch_metric_learning(name):
    arrays, order, labels = golden(name)
    found = retrieval_metrics(order, labels)
    np.testing.assert_allclose(three(found), arrays["pml"], atol=1e-9)
    expected = arrays["standard_per_query"]
    expected[np.isnan(expected).any(1)] = np.nan  # left out altogether
    np.testing.assert_allclose(found.per_query, expected, atol=1e-9)
    assert found.without_match == int(arrays["n_singleton_queries"])
    assert found.queries == 200 - found.without_match


@pytest.mark.parametrize("name", SETS)
def test_diml_is_the_published_code(name):
    arrays, order, labels = golden(name)
    found = retrieval_metrics(order, labels, convention="diml")
    np.testing.assert_allclose(three(found), arrays["diml"], atol=1e-6)
    np.testing.assert_allclose(found.per_query, arrays["diml_per_query"], atol=1e-6)
    assert found.queries == 200


def test_a_query_in_its_own_list_is_taken_out():
    _, order, labels = golden("uneven")
    places = torch.randint(order.shape[1], (200,))
    longer = torch.stack(
        [
            torch.cat([row[:place], torch.tensor([i]), row[place:]])
            for i, (row, place) in enumerate(zip(order, places, strict=True))
        ]
    )
    assert torch.equal(drop_self(longer), order)
    assert three(retrieval_metrics(longer, labels)) == three(retrieval_metrics(order, labels))


def test_lists_that_are_cut_off_count_what_is_missing_as_misses():
    labels = torch.tensor([0, 0, 0, 0, 1])
    order = torch.tensor([[1, 4], [0, -1], [4, 0], [0, 1], [0, 1]])
    found = retrieval_metrics(order, labels)
    assert found.per_query[:4, 1].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 2 / 3])
    assert found.per_query[:4, 2].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 6, 2 / 3])
    assert found.queries == 4 and found.without_match == 1


def test_separate_queries_and_recall():
    labels, queries = torch.tensor([7, 8, 7, 9]), torch.tensor([8, 7])
    order = torch.tensor([[0, 2, 1, 3], [2, 1, 0, 3]])
    found = retrieval_metrics(order, labels, query_labels=queries, recall_at=(1, 2, 3))
    assert found.recall == {1: 0.5, 2: 0.5, 3: 1.0}
    assert found.per_query[1].tolist() == pytest.approx([1.0, 0.5, 0.5])
    assert recall_at_k(torch.tensor([[False, True], [False, False]]), at=(1, 2)) == {1: 0.0, 2: 0.5}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000))
def test_bounds_and_order_of_the_measures(seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (15,), generator=generator)
    order = torch.stack([torch.randperm(15, generator=generator) for _ in range(15)])
    standard, diml = (retrieval_metrics(order, labels, c) for c in ("standard", "diml"))
    for found in (standard, diml):
        there = found.per_query[~found.per_query.isnan().any(1)]
        assert ((there >= 0) & (there <= 1)).all()
        assert (there[:, 2] <= there[:, 1] + 1e-12).all()
    assert standard.recall[1] == pytest.approx(standard.precision_at_1)


def test_wrong_arguments_are_refused():
    _, order, labels = golden("perfect")
    with pytest.raises(ModelError, match="Closest: standard"):
        retrieval_metrics(order, labels, convention="standart")
    with pytest.raises(ModelError, match="names item 199, but there are 50 labels"):
        retrieval_metrics(order[:50], labels[:50])
    with pytest.raises(ModelError, match="one label per list"):
        retrieval_metrics(order, labels, query_labels=labels[:3])
