import pytest
import torch

from clearvit.images import find_images
from clearvit.retrieval.collected_features import (
    collect_features,
    gate_features,
    search_features,
)
from clearvit.retrieval.config import IndexConfig, Matching, SearchConfig
from clearvit.retrieval.image_features import make_spec
from clearvit.retrieval.index.index import Index
from tests.helpers.made_photos import write_photos

pytest.importorskip("lancedb")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("photos"), 9)


@pytest.fixture(scope="module")
def features(tiny, photos):
    spec = make_spec(tiny, IndexConfig())
    sources = sorted(find_images(photos), key=lambda source: source.name)
    return collect_features(tiny, sources, spec, ["attention", "uniform", "attention"], batch=4)


@pytest.mark.parametrize("weight", [0.5, None])
def test_collected_features_rank_as_an_index_does(features, tiny, photos, tmp_path, weight):
    """The query lies outside the gallery: the last image, by name, is not indexed."""
    index = Index.build(tiny, photos, out=tmp_path / "index")
    names = index.names
    index.remove(names[8])
    config = SearchConfig(k=8, rerank=4, weight=weight, method="chamfer")
    hits = index.search(photos / names[8], config=config)
    found = search_features(features, torch.tensor([8]), 8, "attention", config)
    assert [names[i] for i in found.order[0].tolist()] == hits.names
    if weight is None:
        assert found.note == hits.note
    else:
        scores = torch.tensor([hit.score for hit in hits[:4]])
        torch.testing.assert_close(found.score[0].sort(descending=True).values, scores)


def test_a_query_of_the_gallery_does_not_find_itself(features):
    config = SearchConfig(k=20, rerank=3, weight=1.0)
    found = search_features(features, torch.arange(9), 9, "uniform", config)
    assert found.order.shape == (9, 8) and not (found.order == torch.arange(9)[:, None]).any()
    gate = gate_features(features, 9, "uniform", Matching())
    assert gate.weight == 0  # nine images are too few
    assert torch.equal(found.reweight(gate).order, found.nearest.order)


def test_a_cache_gives_the_same_features_without_the_network(tiny, photos, tmp_path, monkeypatch):
    sources, spec = find_images(photos), make_spec(tiny, IndexConfig(grid=2))
    first = collect_features(tiny, sources, spec, ["uniform"], cache=tmp_path)
    monkeypatch.setattr("clearvit.retrieval.collected_features.extract_each", None)
    again = collect_features(tiny, sources, spec, ["uniform"], cache=tmp_path)
    assert torch.equal(first.patches["uniform"], again.patches["uniform"])
