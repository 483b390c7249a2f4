import pytest
import torch
import torch.nn.functional as F

from clearvit.retrieval.explanations import null_similarity
from clearvit.retrieval.explanations.null_similarity import needed_matches
from clearvit.retrieval.image_features import FeatureSpec, ImageFeatures
from clearvit.retrieval.index.index import Index
from clearvit.retrieval.matching.parts import FEWEST
from tests.helpers.made_photos import write_photos

GRID, CHANNELS = (4, 4), 32
SPEC = FeatureSpec(
    "none", "", (64, 64), GRID, GRID, "class", "uniform", CHANNELS, CHANNELS, facet="value:1"
)


def made(count, seed, like=None, noise=0.5):
    """Random images; near to one of them if `like` is given."""
    generator = torch.Generator().manual_seed(seed)
    descriptors = torch.randn(count, CHANNELS, generator=generator)
    patches = torch.randn(count, 16, CHANNELS, generator=generator)
    if like is not None:
        descriptors = like.descriptors * CHANNELS**0.5 + noise * descriptors
        patches = like.patches * CHANNELS**0.5 + noise * patches
    weights = torch.full((count, 16), 1 / 16)
    return ImageFeatures(F.normalize(descriptors, dim=-1), F.normalize(patches, dim=-1), weights)


def joined(*parts):
    return ImageFeatures(
        *(torch.cat([getattr(p, n) for p in parts]) for n in ("descriptors", "patches", "weights"))
    )


def test_a_hit_that_stands_out_needs_fewer_matches_than_a_random_image():
    query, null = made(1, 0), made(50, 1)
    near, stranger = made(1, 2, like=query), made(1, 3)
    notable = needed_matches(query, near, null, SPEC)
    plain = needed_matches(query, stranger, null, SPEC)
    assert notable < FEWEST < plain


def test_the_query_and_images_like_it_may_be_among_the_random_images():
    query = made(1, 0)
    null = joined(made(40, 1), query, *(made(1, seed, like=query) for seed in range(10, 18)))
    near = made(1, 2, like=query)
    assert needed_matches(query, near, null, SPEC) < FEWEST


def test_equal_images_divide_by_nothing():
    query = made(1, 0)
    null = joined(*[query] * 30)
    assert needed_matches(query, query, null, SPEC) > FEWEST


@pytest.mark.parametrize("count", [1, null_similarity.SMALLEST - 1])
def test_a_small_collection_has_no_null(count):
    query = made(1, 0)
    assert needed_matches(query, made(1, 2), made(count, 1), SPEC) == FEWEST


def test_an_index_gives_random_images_and_the_same_ones_again(tiny, tmp_path):
    pytest.importorskip("lancedb")
    photos = write_photos(tmp_path / "photos", 9, seed=5)
    index = Index.build(tiny, photos, out=tmp_path / "index")
    some, again = index.store.sample(4), index.store.sample(4)
    torch.testing.assert_close(some.patches, again.patches)
    assert len(some.descriptors) == 4 and len(index.store.sample(100).descriptors) == 9
