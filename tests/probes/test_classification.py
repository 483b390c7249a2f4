import numpy as np
import pytest
import torch

from clearvit.backbones.load import load
from clearvit.datasets.folders import read_labels
from clearvit.errors import ImageError, ModelError
from clearvit.probes.classification import (
    Classifier,
    align_classes,
    pool_features,
    predict_by_prototypes,
    sample_per_class,
)
from clearvit.probes.features import extract_features
from tests.conftest import tiny_network
from tests.helpers.made_data import class_folder


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    return read_labels(class_folder(tmp_path_factory.mktemp("classes"), each=3))


def test_class_token_mean_patch_or_both(tiny, split):
    with extract_features(tiny, split) as features:
        cls, mean, both, default = (
            pool_features(features, kind, model="tiny", batch=4)
            for kind in ("class", "mean", "both", None)
        )
        tokens = features.tokens(range(9))
    assert torch.equal(cls, tokens.cls.float()) and torch.equal(cls, default)
    assert torch.allclose(mean, tokens.patches.float().mean(1))
    assert torch.equal(both, torch.cat([cls, mean], dim=1))


def test_a_model_without_class_token(split):
    backbone = load(tiny_network(class_token=False, global_pool="avg"))
    with extract_features(backbone, split.select([0, 1])) as features:
        assert pool_features(features, None, model="m").shape == (2, 24)
        with pytest.raises(ModelError, match="pooling='mean'"):
            pool_features(features, "both", model="m")


def test_neighbors_agree_with_plain_numpy():
    train, test = torch.randn(40, 6), torch.randn(12, 6)
    labels = torch.arange(40) % 3
    knn = Classifier("knn", 3, k=7, temperature=0.1)
    found = knn.predict(train, labels, test).numpy()
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
    found = Classifier(method, 3, k=3).predict(x[:15], labels[:15], x[15:])
    assert torch.equal(found, labels[15:])


def test_prototypes_average_directions():
    train = torch.tensor([[10.0, 0.0], [0.0, 1.0], [0.0, 1.0], [-1.0, 0.0]])
    labels = torch.tensor([0, 0, 1, 1])
    found = predict_by_prototypes(train, labels, torch.tensor([[1.0, 0.9], [-1.0, 0.5]]), 2)
    assert found.tolist() == [0, 1]


def test_samples_per_class():
    labels = [0] * 5 + [1] * 4 + [2] * 6
    two = sample_per_class(labels, 2, seed=1)
    assert np.bincount([labels[i] for i in two]).tolist() == [2, 2, 2]
    assert set(two) <= set(sample_per_class(labels, 3, seed=1)) and two == sorted(two)
    assert sample_per_class(labels, None, seed=0) == list(range(15))
    kept = sample_per_class(labels, None, seed=0, leave_rest=True)
    assert np.bincount([labels[i] for i in kept]).tolist() == [4, 3, 5]
    most = sample_per_class(labels, 99, seed=0, leave_rest=True)
    assert np.bincount([labels[i] for i in most]).tolist() == [4, 3, 5]
    with pytest.raises(ImageError, match="has one image"):
        sample_per_class([0, 0, 1], None, seed=0, leave_rest=True)


def test_classes_are_numbered_alike(split):
    other = align_classes(split, ("red", "blue", "green"))
    assert [other.classes[i] for i in other.labels] == [split.classes[i] for i in split.labels]
    with pytest.raises(ImageError, match="'blue', which has no training image"):
        align_classes(split, ("red", "green"))
