import dataclasses
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from clearvit.errors import ImageError, ModelError
from clearvit.evaluate.config import EvaluateConfig
from clearvit.evaluate.evaluate import evaluate
from clearvit.evaluate.retrieval_config import RetrievalConfig
from clearvit.retrieval.describe import SETTLED, describe, make_recipe
from clearvit.retrieval.matching import Matching
from clearvit.retrieval.metrics import retrieval_metrics
from clearvit.retrieval.rerank import rerank
from tests.dense.made_data import colour_image, save

PLAIN = EvaluateConfig(resamples=50, retrieval=RetrievalConfig(rerank=4, weights=(1.0,)))


def with_options(**options):
    return dataclasses.replace(PLAIN, retrieval=dataclasses.replace(PLAIN.retrieval, **options))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three classes of 4, 4 and 1 images, whose noise hides the class well."""
    root = tmp_path_factory.mktemp("classes")
    for i in range(9):
        save(root / "abc"[i // 4] / f"{i}.png", colour_image(i)[0])
    return root


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Three queries that are noisy copies of references 1, 3 and nothing."""
    root = tmp_path_factory.mktemp("places")
    for i in range(5):
        save(root / f"ref/{i}.png", colour_image(i)[0])
    chance = np.random.default_rng(0)
    for i, seed in enumerate((1, 3, 9)):
        noise = chance.integers(0, 9, colour_image(seed)[0].shape, dtype=np.uint8)
        save(root / f"query/{i}.png", colour_image(seed)[0] // 2 + noise)
    (root / "ground_truth.json").write_text(json.dumps({"0": [1], "1": [3, 4], "2": []}))
    return root


def test_rows_are_what_the_pure_functions_give(tiny, folder):
    table = evaluate(tiny, task="retrieval", data=folder, config=PLAIN)
    base, again = table.rows
    assert (base.setting, again.setting) == ("descriptors", "transport, attention, weight 1")
    paths = sorted(folder.rglob("*.png"))
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2])
    recipe = make_recipe(tiny)
    described = describe(tiny, next(tiny.pixels(paths)), recipe)
    similarity = described.descriptors @ described.descriptors.T
    similarity.fill_diagonal_(-torch.inf)
    images = described.locals(recipe)
    for row, weight in ((base, 0.0), (again, 1.0)):
        order = rerank(similarity, images, images, weight=weight, top=4).order
        for convention, tail in (("standard", ""), ("diml", " (diml)")):
            expected = retrieval_metrics(order, labels, convention, recall_at=(1, 5))
            assert row[f"P@1{tail}"].mean == pytest.approx(100 * expected.precision_at_1)
            assert row[f"RP{tail}"].mean == pytest.approx(100 * expected.r_precision)
            assert row[f"MAP@R{tail}"].mean == pytest.approx(100 * expected.map_at_r)
            if convention == "standard":
                assert row["R@5"].mean == pytest.approx(100 * expected.recall[5])
    gain = again["MAP@R"].mean - base["MAP@R"].mean
    assert again["Δ MAP@R"].mean == pytest.approx(gain)
    assert again["Δ MAP@R"].low <= gain <= again["Δ MAP@R"].high
    assert table.protocol["classes"] == 3 and table.protocol["gallery"] == 9


def test_every_comparison_is_a_row_and_the_guard_tells_its_weight(tiny, folder):
    config = with_options(
        methods=("transport", "mutual"),
        marginals=(*SETTLED, "cross"),
        masses=(1.0, 0.7, "auto"),
        weights=(0.5, "guard"),
        grid=3,
    )
    config = dataclasses.replace(config, limit=2, resamples=2)
    table = evaluate(tiny, task="retrieval", data=folder, config=config)
    names = [row.setting for row in table.rows]
    assert len(set(names)) == len(names) == 1 + 2 * 6 * (3 + 1)
    assert "transport, without_artifacts, mass auto, weight 0.5" in names
    assert "mutual, cross, guard (0)" in names  # nine images are too few to judge by
    for row in table.rows[1:]:
        if "guard (0)" in row.setting:
            assert row["Δ MAP@R"].mean == row["won"].mean == row["lost"].mean == 0
        if "mass 0.7" in row.setting:
            assert row["mass"].mean == pytest.approx(0.7, abs=1e-4)
        assert 0 < row["mass"].mean <= 1 + 1e-6


def test_places_are_found_by_their_list(tiny, places):
    table = evaluate(tiny, task="retrieval", data=places, config=PLAIN)
    assert table.protocol["layout"] == "vpr" and table.protocol["queries"] == 2
    assert table.rows[0].tested == 2 and table.rows[0]["R@5"].mean == 100
    queries, refs = (sorted((places / part).glob("*.png")) for part in ("query", "ref"))
    a, b = (F.normalize(tiny.tokens(paths).cls, dim=-1) for paths in (queries, refs))
    order = (a @ b.T).argsort(dim=1, descending=True)
    first = [int(order[0, 0]) == 1, int(order[1, 0]) in (3, 4)]
    assert table.rows[0]["R@1"].mean == pytest.approx(50 * sum(first))


def test_the_cache_saves_the_network_and_changes_nothing(tiny, folder, tmp_path, monkeypatch):
    config = dataclasses.replace(PLAIN, cache=tmp_path)
    first = evaluate(tiny, task="retrieval", data=folder, config=config)
    described = "clearvit.retrieval.features.describe_each"
    monkeypatch.setattr(described, None)
    assert evaluate(tiny, task="retrieval", data=folder, config=config).rows == first.rows


def test_fewer_queries_search_the_same_gallery(tiny, folder):
    config = dataclasses.replace(PLAIN, limit=2)
    table = evaluate(tiny, task="retrieval", data=folder, config=config)
    assert table.rows[0].tested == 2 and table.protocol["gallery"] == 9


def test_without_reranking_there_is_one_row(tiny, folder):
    table = evaluate(tiny, task="retrieval", data=folder, config=with_options(rerank=0))
    assert [row.setting for row in table.rows] == ["descriptors"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ("transprt",)}, "Closest: transport"),
        ({"marginals": ("rolout",)}, "Closest: rollout"),
        ({"masses": (0.0,)}, "mass is 0"),
        ({"masses": ("all",)}, "mass is all"),
        ({"weights": (-1.0,)}, "weight is -1"),
        ({"recall": ()}, "recall"),
        ({"masked": (1.5,)}, "masked"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(ModelError, match=message):
        RetrievalConfig(**options)


def test_only_transport_has_masses():
    found = list(RetrievalConfig(methods=("chamfer",), masses=(1.0, 0.5)).comparisons())
    assert found == [(Matching("chamfer"), "auto")]


def test_bad_data(tiny, places, tmp_path):
    with pytest.raises(ImageError, match="no folder"):
        evaluate(tiny, task="retrieval", data=tmp_path / "missing")
    truth = json.loads((places / "ground_truth.json").read_text())
    broken = tmp_path / "places"
    for part in ("query", "ref"):
        save(broken / part / "0.png", colour_image(0)[0])
    for content, message in (
        ({"0": [7]}, "query 0"),
        (truth | {"0": []}, "no query"),
        ([], "hold"),
    ):
        (broken / "ground_truth.json").write_text(json.dumps(content))
        with pytest.raises(ImageError, match=message):
            evaluate(tiny, task="retrieval", data=broken, config=PLAIN)
