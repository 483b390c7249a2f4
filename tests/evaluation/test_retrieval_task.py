import json
from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from clearvit.errors import ImageError, OptionError
from clearvit.evaluation.config import FaithfulnessConfig, RetrievalTaskConfig
from clearvit.evaluation.evaluate import evaluate
from clearvit.evaluation.retrieval_task import list_comparisons
from clearvit.retrieval.config import IndexConfig, Matching, ResolvedWeights
from clearvit.retrieval.image_features import extract_features, make_spec
from clearvit.retrieval.ranking_metrics import retrieval_metrics
from clearvit.retrieval.reranking import rerank
from tests.helpers.made_data import colour_image, save_png

PLAIN = {"rerank": 4, "weights": (1.0,)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three classes of 4, 4 and 1 images, whose noise hides the class well."""
    root = tmp_path_factory.mktemp("classes")
    for i in range(9):
        save_png(root / "abc"[i // 4] / f"{i}.png", colour_image(i)[0])
    return root


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Three queries that are noisy copies of references 1, 3 and nothing."""
    root = tmp_path_factory.mktemp("places")
    for i in range(5):
        save_png(root / f"ref/{i}.png", colour_image(i)[0])
    rng = np.random.default_rng(0)
    for i, seed in enumerate((1, 3, 9)):
        noise = rng.integers(0, 9, colour_image(seed)[0].shape, dtype=np.uint8)
        save_png(root / f"query/{i}.png", colour_image(seed)[0] // 2 + noise)
    (root / "ground_truth.json").write_text(json.dumps({"0": [1], "1": [3, 4], "2": []}))
    return root


def test_rows_are_what_the_pure_functions_give(tiny, folder):
    table = evaluate(tiny, task="retrieval", data=folder, **PLAIN)
    base, again = table.rows
    assert (base.setting, again.setting) == ("descriptors", "transport, attention, weight 1")
    paths = sorted(folder.rglob("*.png"))
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2])
    spec = make_spec(tiny, IndexConfig())
    features = extract_features(tiny, next(tiny.pixels(paths)), spec)
    similarity = features.descriptors @ features.descriptors.T
    similarity.fill_diagonal_(-torch.inf)
    images, matching = features.local_features(spec), Matching(method="transport")
    for row, weight in ((base, 0.0), (again, 1.0)):
        order = rerank(similarity, images, images, matching=matching, weight=weight, top=4).order
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


def test_every_comparison_is_a_row_and_the_gate_names_its_weight(tiny, folder):
    config = dict(
        PLAIN,
        methods=("transport", "mutual"),
        patch_weights=(*get_args(ResolvedWeights), "cross"),
        masses=(1.0, 0.7, "auto"),
        weights=(0.5, "gate"),
        grid=3,
        limit=2,
    )
    table = evaluate(tiny, task="retrieval", data=folder, **config)
    names = [row.setting for row in table.rows]
    assert len(set(names)) == len(names) == 1 + 2 * 6 * (3 + 1)
    assert "transport, without-artifacts, mass auto, weight 0.5" in names
    assert "mutual, cross, gate (0)" in names  # nine images are too few to judge by
    for row in table.rows[1:]:
        if "gate (0)" in row.setting:
            assert row["Δ MAP@R"].mean == row["won"].mean == row["lost"].mean == 0
        if "mass 0.7" in row.setting:
            assert row["mass"].mean == pytest.approx(0.7, abs=1e-4)
        assert 0 < row["mass"].mean <= 1 + 1e-6


def test_places_are_found_by_their_list(tiny, places):
    table = evaluate(tiny, task="retrieval", data=places, **PLAIN)
    assert table.protocol["layout"] == "vpr" and table.protocol["queries"] == 2
    assert table.rows[0].num_tested == 2 and table.rows[0]["R@5"].mean == 100
    queries, refs = (sorted((places / part).glob("*.png")) for part in ("query", "ref"))
    a, b = (F.normalize(tiny.tokens(paths).cls, dim=-1) for paths in (queries, refs))
    order = (a @ b.T).argsort(dim=1, descending=True)
    first = [int(order[0, 0]) == 1, int(order[1, 0]) in (3, 4)]
    assert table.rows[0]["R@1"].mean == pytest.approx(50 * sum(first))


def test_the_cache_saves_the_network_and_changes_nothing(tiny, folder, tmp_path, monkeypatch):
    config = dict(PLAIN, cache=tmp_path)
    first = evaluate(tiny, task="retrieval", data=folder, **config)
    described = "clearvit.retrieval.collected_features.extract_each"
    monkeypatch.setattr(described, None)
    assert evaluate(tiny, task="retrieval", data=folder, **config).rows == first.rows


def test_fewer_queries_search_the_same_gallery(tiny, folder):
    config = dict(PLAIN, limit=2)
    table = evaluate(tiny, task="retrieval", data=folder, **config)
    assert table.rows[0].num_tested == 2 and table.protocol["gallery"] == 9


def test_without_reranking_there_is_one_row(tiny, folder):
    table = evaluate(tiny, task="retrieval", data=folder, **{**PLAIN, "rerank": 0})
    assert [row.setting for row in table.rows] == ["descriptors"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ("transprt",)}, "Closest: transport"),
        ({"patch_weights": ("rolout",)}, "Closest: rollout"),
        ({"masses": (0.0,)}, "masses is 0"),
        ({"masses": ("all",)}, "masses is 'all'"),
        ({"weights": (-1.0,)}, "weights is -1"),
        ({"recall": (0,)}, "recall is 0"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(OptionError, match=message):
        RetrievalTaskConfig(**options)
    with pytest.raises(OptionError, match="hidden_fractions"):
        FaithfulnessConfig(hidden_fractions=(1.5,))


def test_only_transport_has_masses(tiny):
    config = RetrievalTaskConfig(methods=("chamfer",), masses=(1.0, 0.5))
    assert [one.matching for one in list_comparisons(tiny, config)] == [Matching(method="chamfer")]


def test_bad_data(tiny, places, tmp_path):
    with pytest.raises(ImageError, match="no folder"):
        evaluate(tiny, task="retrieval", data=tmp_path / "missing")
    truth = json.loads((places / "ground_truth.json").read_text())
    broken = tmp_path / "places"
    for part in ("query", "ref"):
        save_png(broken / part / "0.png", colour_image(0)[0])
    for content, message in (
        ({"0": [7]}, "query 0"),
        (truth | {"0": []}, "no query"),
        ([], "hold"),
    ):
        (broken / "ground_truth.json").write_text(json.dumps(content))
        with pytest.raises(ImageError, match=message):
            evaluate(tiny, task="retrieval", data=broken, **PLAIN)
