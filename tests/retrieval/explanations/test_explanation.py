from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import clearvit
from clearvit.errors import ImageError, StoreError
from clearvit.retrieval.config import Matching
from clearvit.retrieval.explanations.explanation import NOT_FOUND, explain_pair
from clearvit.retrieval.explanations.explanation_figure import (
    DIMMED,
    contribution_rows,
    draw_explanation,
    tint_parts,
)
from clearvit.retrieval.explanations.explanation_page import explain_page
from clearvit.retrieval.explanations.fine_tokens import extract_fine
from clearvit.retrieval.matching.parts import find_parts
from clearvit.retrieval.matching.patch_matching import LocalFeatures, match
from clearvit.retrieval.matching.pooling import pool_patches
from tests.helpers.hostile import write_good

MATCHINGS = [
    Matching("transport"),
    Matching("transport", mass=0.6),
    Matching("transport", mass="auto"),
    Matching("mutual"),
    Matching("chamfer"),
    Matching("chamfer", cross="minus", cross_mean=True),
    Matching("transport", cross="correlation"),
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
    for matching in MATCHINGS[:-2]:
        explanation = explain_pair(
            same, same, (2, 3), matching=matching, global_similarity=1, weight=1
        )
        patch_similarity = float(match(same, same, matching).score)
        assert explanation.patch_similarity == pytest.approx(patch_similarity, abs=1e-5)


def shared_square(seed, row, column):
    """A fine image of noise, 12 x 12, with one thing at a place; and its coarse 4 x 4 patches."""
    generator = torch.Generator().manual_seed(seed)
    thing = 3 * torch.randn(64, generator=torch.Generator().manual_seed(7))
    image = torch.randn(12, 12, 64, generator=generator)
    image[row : row + 3, column : column + 3] = thing
    flat = image.flatten(0, 1)
    coarse = F.normalize(pool_patches(flat, (12, 12), (4, 4)), dim=-1)
    return flat, LocalFeatures(coarse[None])


def test_parts_and_the_rest_sum_to_the_score_and_a_part_gets_what_lies_inside_it():
    (fine, coarse), (other, coarse_other) = shared_square(1, 3, 3), shared_square(2, 6, 9)
    plain = explain_pair(
        coarse, coarse_other, (4, 4), matching=Matching(), global_similarity=0.4, weight=0.5
    )
    explanation = replace(plain, parts=find_parts(fine, other, ((12, 12), (12, 12))))
    assert explanation.found
    parts = explanation.list_parts()
    # The squares fill cell (1, 1) of the coarse query and (2, 3) of the coarse hit.
    covering = next(p for p in parts if p.query_area == pytest.approx(9 / 144, abs=0.02))
    inside = float(plain.contributions[5, 11])
    assert covering.contribution == pytest.approx(inside, abs=0.02) and inside > 0.05
    total = sum(row[-1] for row in contribution_rows(explanation))
    assert total == pytest.approx(explanation.score, abs=1e-6)
    line = explanation.list_lines()[0]
    assert 0.25 <= line.query[0] <= 0.5 and 0.75 <= line.hit[0] <= 1 and 0.5 <= line.hit[1] <= 0.75


def test_without_a_shared_part_nothing_is_claimed():
    ours, theirs = (images(1, seed=seed) for seed in (1, 2))
    plain = explain_pair(ours, theirs, (3, 4), matching=Matching(), global_similarity=0, weight=1)
    nothing = find_parts(torch.ones(12, 8), -torch.ones(12, 8), ((3, 4), (3, 4)))
    explanation = replace(plain, parts=nothing)
    assert not explanation.found and explanation.list_parts() == explanation.list_lines() == []


def test_parts_are_tinted_and_strangers_dimmed():
    image = np.full((8, 8, 3), 200, np.uint8)
    parts = np.array([[0, -1], [-1, -1]])
    matched = np.array([[True, True], [False, False]])
    drawn = tint_parts(image, parts, matched)
    assert np.allclose(drawn[6, 1], DIMMED * 200 / 255)  # no counterpart
    assert np.allclose(drawn[1, 6], 200 / 255)  # a counterpart in the background
    assert not np.allclose(drawn[1, 1], 200 / 255)


def test_fine_tokens_have_twice_the_grid_and_those_of_a_pruned_model_all_patches(tiny):
    image = Image.new("RGB", (80, 80), "red")
    size = tiny.fitting_size()
    fine = extract_fine(tiny, image, size)
    grid = tiny.grid_of(size)
    assert fine.grid == (2 * grid[0], 2 * grid[1])
    assert fine.patches.shape == (4 * grid[0] * grid[1], tiny.width)
    pruned = clearvit.prune(tiny, keep=0.5)
    assert torch.allclose(extract_fine(pruned, image, size).patches, fine.patches, atol=1e-5)


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
    assert ("= score" in words) == rerank and "outside or between parts" in words


def test_the_page_lists_and_explains_every_hit(found, tmp_path):
    _, hits = found
    page = explain_page(hits, tmp_path / "why.html", figures=2).read_text("utf-8")
    pictures = 1 + len(hits) + 2  # the query, a thumbnail of each hit, two figures
    assert page.count("data:image/png") == pictures and f"{hits[0].score:.4f}" in page
    assert page.count('type="radio"') == len(hits)
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
    page = explain_page(hits, tmp_path / "why.html").read_text("utf-8")
    assert "No figure" in page and "no image" in page
    assert hits[0].explanation().parts.grids[0] == index.spec.grid  # from what the index keeps
    index.remove(hits[0].name)
    with pytest.raises(ImageError, match="no longer"):
        hits[0].explanation()
    with pytest.raises(StoreError, match="not in the index"):
        index.explain(query, hits[0].name)


def test_nothing_found_is_said_on_the_figure_and_the_page(tiny, tmp_path, monkeypatch):
    pytest.importorskip("lancedb")
    from clearvit.retrieval.index import hits as hits_module
    from clearvit.retrieval.index.index import Index

    paths = write_good(tmp_path / "photos", 2)
    index = Index.build(tiny, tmp_path / "photos", out=tmp_path / "index")

    def strangers(ours, theirs, grids, **options):
        return find_parts(torch.ones_like(ours), -torch.ones_like(theirs), grids)

    monkeypatch.setattr(hits_module, "find_parts", strangers)
    hits = index.search(paths[0])
    figure = draw_explanation(hits[0])
    words = " ".join(text.get_text() for text in figure.texts)
    assert NOT_FOUND[:-1] in words
    assert NOT_FOUND in explain_page(hits, tmp_path / "why.html").read_text("utf-8")
