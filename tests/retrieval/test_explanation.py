import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from clearvit.errors import ImageError, StoreError
from clearvit.retrieval.config import Matching
from clearvit.retrieval.explanation import explain_pair
from clearvit.retrieval.explanation_page import contribution_rows, draw_explanation, explain_page
from clearvit.retrieval.matching.patch_matching import LocalFeatures, match
from tests.helpers.hostile import write_good

MATCHINGS = [
    Matching(),
    Matching(mass=0.6),
    Matching(mass="auto"),
    Matching("mutual"),
    Matching("chamfer"),
    Matching(cross=True),
]


def images(count, cells=12, channels=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    patches = F.normalize(torch.randn(count, cells, channels, generator=generator), dim=-1)
    weights = torch.rand(count, cells, generator=generator)
    weights[:, 0] = 0  # a patch that does not count
    descriptors = F.normalize(torch.randn(count, channels, generator=generator), dim=-1)
    return LocalFeatures(patches, weights / weights.sum(1, keepdim=True), descriptors)


@pytest.mark.parametrize("matching", MATCHINGS, ids=str)
@pytest.mark.parametrize("weight", [0.7, 0.0])
def test_contributions_sum_to_the_score_of_match(matching, weight):
    query, hit = images(1, seed=1), images(1, seed=2)
    explanation = explain_pair(
        query, hit, (3, 4), matching=matching, global_similarity=0.4, weight=weight
    )
    patch_similarity = float(match(query, hit, matching).score)
    assert explanation.patch_similarity == pytest.approx(patch_similarity, abs=1e-5)
    total = sum(row[-1] for row in contribution_rows(explanation))
    assert total == pytest.approx(
        0.4 + 0.7 * patch_similarity if weight else patch_similarity, abs=1e-5
    )
    if weight:
        assert total == pytest.approx(explanation.score, abs=1e-5)
    else:
        assert explanation.score == 0.4


def test_ties_share_in_every_method():
    same = LocalFeatures(F.normalize(torch.ones(1, 6, 4), dim=-1))
    for matching in MATCHINGS[:-1]:
        explanation = explain_pair(
            same, same, (2, 3), matching=matching, global_similarity=1, weight=1
        )
        patch_similarity = float(match(same, same, matching).score)
        assert explanation.patch_similarity == pytest.approx(patch_similarity, abs=1e-5)


def test_planted_matches_are_the_strongest_and_strangers_are_unmatched():
    generator = torch.Generator().manual_seed(0)
    query = F.normalize(torch.randn(12, 64, generator=generator), dim=-1)
    strangers = F.normalize(torch.randn(12, 64, generator=generator), dim=-1)
    order = torch.randperm(12, generator=generator)
    hit = strangers.clone()
    shared = order[:6]
    hit[shared] = query[:6]  # patch i of the query lies at order[i] of the hit
    explanation = explain_pair(
        LocalFeatures(query[None]),
        LocalFeatures(hit[None]),
        (3, 4),
        matching=Matching(mass=0.5),
        global_similarity=0.5,
        weight=1,
    )
    pairs = {
        (m.query[0] * 4 + m.query[1], m.hit[0] * 4 + m.hit[1]) for m in explanation.strongest(6)
    }
    assert pairs == {(i, int(order[i])) for i in range(6)}
    assert explanation.query_unmatched.flatten().tolist() == [False] * 6 + [True] * 6
    assert not explanation.hit_unmatched.flatten()[shared].any()


def test_nothing_positive_gives_no_lines():
    query, hit = LocalFeatures(torch.eye(4)[None]), LocalFeatures(-torch.eye(4)[None])
    explanation = explain_pair(
        query, hit, (2, 2), matching=Matching("mutual"), global_similarity=0, weight=1
    )
    assert explanation.strongest() == []


@pytest.fixture(scope="module")
def found(tiny, tmp_path_factory):
    pytest.importorskip("lancedb")
    from clearvit.retrieval.index.index import Index

    folder = tmp_path_factory.mktemp("explain")
    write_good(folder / "photos", 4)
    index = Index.build(tiny, folder / "photos", out=folder / "index")
    return index, index.search(folder / "photos" / index.names[0], rerank=4, weight=0.5)


@pytest.mark.parametrize("rerank", [True, False])
def test_explain_writes_a_figure(found, tmp_path, rerank):
    index, hits = found
    if not rerank:
        hits = index.search(hits.query.source)
    path = hits[1].explain(tmp_path / "deep/why.png")
    with Image.open(path) as picture:
        assert picture.width == 1600
    figure = draw_explanation(hits[1])
    words = " ".join(text.get_text() for axes in figure.axes for text in axes.texts)
    assert ("= score" in words) == rerank and "all other" in words


def test_the_page_lists_and_explains_every_hit(found, tmp_path):
    _, hits = found
    page = explain_page(hits, tmp_path / "why.html", figures=2).read_text("utf-8")
    assert page.count("data:image/png") == 2 and f"{hits[0].score:.4f}" in page
    assert "The first 4 by global similarity" in page


def test_a_file_that_is_gone_is_named_and_the_page_goes_on(tiny, tmp_path):
    pytest.importorskip("lancedb")
    from clearvit.retrieval.index.index import Index

    paths = write_good(tmp_path / "photos", 2)
    index = Index.build(tiny, tmp_path / "photos", out=tmp_path / "index")
    query = Image.new("RGB", (40, 40), "green")
    hits = index.search(query)
    for path in paths:
        path.unlink()
    with pytest.raises(ImageError, match="refresh"):
        hits[0].explain(tmp_path / "why.png")
    assert "No figure" in explain_page(hits, tmp_path / "why.html").read_text("utf-8")
    index.remove(hits[0].name)
    with pytest.raises(ImageError, match="no longer"):
        hits[0].explanation()
    with pytest.raises(StoreError, match="not in the index"):
        index.explain(query, hits[0].name)
