import numpy as np
import pytest
import torch

from clearvit.backbones.load import load
from clearvit.dense.classification import aligned, drawn_by_class, knn, pooled, predict, prototypes
from clearvit.dense.features import extracted
from clearvit.dense.folders import read_labels
from clearvit.errors import ImageError, ModelError
from tests.conftest import tiny_network
from tests.dense.made_data import class_folder


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    return read_labels(class_folder(tmp_path_factory.mktemp("classes"), each=3))


def test_class_token_mean_patch_or_both(tiny, split):
    with extracted(tiny, split) as features:
        cls, mean, both, default = (
            pooled(features, kind, model="tiny", batch=4)
            for kind in ("class", "mean", "both", None)
        )
        tokens = features.tokens(range(9))
    assert torch.equal(cls, tokens.cls.float()) and torch.equal(cls, default)
    assert torch.allclose(mean, tokens.patches.float().mean(1))
    assert torch.equal(both, torch.cat([cls, mean], dim=1))


def test_a_model_without_class_token(split):
    backbone = load(tiny_network(class_token=False, global_pool="avg"))
    with extracted(backbone, split.chosen([0, 1])) as features:
        assert pooled(features, None, model="m").shape == (2, 24)
        with pytest.raises(ModelError, match="features='mean'"):
            pooled(features, "both", model="m")


def test_neighbours_agree_with_plain_numpy():
    train, test = torch.randn(40, 6), torch.randn(12, 6)
    labels = torch.arange(40) % 3
    found = knn(train, labels, test, classes=3, k=7, temperature=0.1).numpy()
    x, q = (v.numpy() / np.linalg.norm(v.numpy(), axis=1, keepdims=True) for v in (train, test))
    for i, similar in enumerate(q @ x.T):
        near = np.argsort(-similar)[:7]
        votes = np.zeros(3)
        np.add.at(votes, labels.numpy()[near], np.exp(similar[near] / 0.1))
        assert found[i] == votes.argmax()


@pytest.mark.parametrize("method", ["knn", "linear", "prototypes"])
def test_separate_classes_are_told_apart(method):
    labels = torch.arange(30) % 3
    x = torch.eye(3)[labels] * 4 + torch.randn(30, 3) * 0.3
    found = predict(method, x[:15], labels[:15], x[15:], classes=3, k=3)
    assert torch.equal(found, labels[15:])


def test_prototypes_average_directions():
    train = torch.tensor([[10.0, 0.0], [0.0, 1.0], [0.0, 1.0], [-1.0, 0.0]])
    labels = torch.tensor([0, 0, 1, 1])
    found = prototypes(train, labels, torch.tensor([[1.0, 0.9], [-1.0, 0.5]]), classes=2)
    assert found.tolist() == [0, 1]


def test_draws_by_class():
    labels = [0] * 5 + [1] * 4 + [2] * 6
    two = drawn_by_class(labels, 2, seed=1)
    assert np.bincount([labels[i] for i in two]).tolist() == [2, 2, 2]
    assert set(two) <= set(drawn_by_class(labels, 3, seed=1)) and two == sorted(two)
    assert drawn_by_class(labels, None, seed=0) == list(range(15))
    kept = drawn_by_class(labels, None, seed=0, rest=True)
    assert np.bincount([labels[i] for i in kept]).tolist() == [4, 3, 5]
    most = drawn_by_class(labels, 99, seed=0, rest=True)
    assert np.bincount([labels[i] for i in most]).tolist() == [4, 3, 5]
    with pytest.raises(ImageError, match="has one image"):
        drawn_by_class([0, 0, 1], None, seed=0, rest=True)


def test_classes_are_numbered_alike(split):
    other = aligned(split, ("red", "blue", "green"))
    assert [other.classes[i] for i in other.labels] == [split.classes[i] for i in split.labels]
    with pytest.raises(ImageError, match="'blue', which has no training image"):
        aligned(split, ("red", "green"))
