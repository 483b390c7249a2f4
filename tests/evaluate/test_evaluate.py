import dataclasses
import json

import numpy as np
import pytest

from clearvit.backbones.load import load
from clearvit.errors import ImageError, ModelError
from clearvit.evaluate.config import EvaluateConfig
from clearvit.evaluate.evaluate import evaluate
from clearvit.evaluate.table import Result, as_row, found_by
from tests.conftest import tiny_network
from tests.dense.made_data import class_folder, colour_image, depth_folder, save, voc_masks

FEW = EvaluateConfig(resamples=20, iterations=150)


@pytest.fixture(scope="module")
def voc(tmp_path_factory):
    return voc_masks(tmp_path_factory.mktemp("voc"))


@pytest.fixture(scope="module")
def other():
    return load(tiny_network(reg_tokens=2, no_embed_class=True))


def test_two_models_few_and_all_labels_in_one_table(tiny, other, voc, tmp_path):
    config = dataclasses.replace(
        FEW, labelled=(2, None), draws=3, cache=tmp_path, subset=("background", "aeroplane")
    )
    table = evaluate([tiny, other], task="segmentation", data=voc, config=config)
    assert [(row.labelled, row.draws, row.tested) for row in table.rows] == 2 * [
        (2, 3, 4),
        (6, 1, 4),
    ]
    assert table.rows[0].model != table.rows[2].model
    few, every = table.rows[:2]
    assert few["mIoU"].spread is not None and every["mIoU"].spread is None
    assert every["mIoU"].low <= every["mIoU"].mean <= every["mIoU"].high
    assert every["mIoU of 2"].mean > 60  # half of the pixels are of one class
    assert table.protocol["layout"] == "voc" and table.protocol["train_images"] == 6
    content = json.loads(json.dumps(table.to_json()))
    assert content["rows"][1]["values"]["mIoU"]["mean"] == every["mIoU"].mean
    assert len(table.text().splitlines()) == 5 and "±" in table.text()
    assert len(list(tmp_path.iterdir())) == 4  # two models, two splits


def test_the_cache_saves_the_network_and_changes_nothing(tiny, voc, tmp_path, monkeypatch):
    config = dataclasses.replace(FEW, cache=tmp_path)
    first = evaluate(tiny, task="neighbours", data=voc, config=config)
    without = evaluate(tiny, task="neighbours", data=voc, config=FEW)
    monkeypatch.setattr(type(tiny), "forward", None)
    again = evaluate(tiny, task="neighbours", data=voc, config=config)
    assert first.rows == again.rows == without.rows
    assert first.rows[0].setting == "neighbours" and first.rows[0]["pixels"].mean > 60


@pytest.mark.parametrize("recipe", ["sgd", "paper"])
def test_recipes_and_windows_run(tiny, voc, recipe):
    config = dataclasses.replace(FEW, recipe=recipe, iterations=2, inference="slide", limit=1)
    table = evaluate(tiny, task="segmentation", data=voc, config=config)
    assert table.rows[0].setting == f"linear, {recipe}" and table.rows[0].tested == 1
    assert table.protocol["iterations"] == 2


@pytest.mark.parametrize("recipe", ["fast", "sgd"])
def test_depth(tiny, tmp_path, recipe):
    config = dataclasses.replace(FEW, recipe=recipe, iterations=2)
    table = evaluate(tiny, task="depth", data=depth_folder(tmp_path), config=config)
    assert set(table.rows[0].values) == {"RMSE", "AbsRel", "delta1", "delta2", "delta3"}
    assert 0 < table.rows[0]["RMSE"].mean < 8 and table.rows[0].tested == 3


def test_classification_with_and_without_splits(tiny, tmp_path):
    methods = ("knn", "linear", "prototypes")
    config = dataclasses.replace(FEW, methods=methods, features="both", draws=2)
    plain = evaluate(
        tiny, task="classification", data=class_folder(tmp_path / "plain"), config=config
    )
    assert [row.setting for row in plain.rows] == list(methods)
    assert all((row.labelled, row.tested, row.draws) == (12, 3, 2) for row in plain.rows)
    assert plain.rows[1]["top-1"].mean > 60  # of three classes
    root = class_folder(tmp_path / "split", each=3, splits=("train", "val"))
    config = dataclasses.replace(config, labelled=(1, None))
    split = evaluate(tiny, task="classification", data=root, config=config)
    assert [(row.labelled, row.draws) for row in split.rows] == 3 * [(3, 2)] + 3 * [(9, 1)]


def test_correspondence(tiny, tmp_path):
    for i in range(3):
        save(tmp_path / f"{i}.png", colour_image(i)[0])
    config = dataclasses.replace(FEW, limit=2, draws=2)
    seen = []
    table = evaluate(
        tiny,
        task="correspondence",
        data=tmp_path,
        config=config,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert table.rows[0].tested == 2 and seen == 2 * [(1, 2), (2, 2)]
    assert 0 <= table.rows[0]["PCK@0.05"].mean <= table.rows[0]["PCK@0.1"].mean <= 100


def test_means_spreads_and_intervals():
    rows = [np.array([[1.0, 1.0], [3.0, 1.0]]), np.array([[2.0, 1.0], [4.0, 1.0]])]
    result = Result("s", 5, rows, lambda sums: {"m": sums[..., 0] / sums[..., 1]})
    found = found_by(result, resamples=400, seed=0)
    measure = as_row("a", result, found)["m"]
    assert measure.mean == 2.5 and measure.spread == pytest.approx(np.sqrt(0.5))
    assert (measure.low, measure.high) == (1.5, 3.5) and measure.difference is None


def test_differences_are_those_of_the_same_images_and_draws():
    chance = np.random.default_rng(0)
    levels = chance.normal(50, 20, (30, 1))  # images differ much, models by about 2 in each
    raw = [np.hstack([levels + draw, np.ones((30, 1))]) for draw in (0.0, 5.0)]
    better = [rows + np.hstack([chance.normal(2, 1, (30, 1)), np.zeros((30, 1))]) for rows in raw]
    results = [Result("s", 5, rows, lambda sums: {"m": sums[..., 0] / sums[..., 1]})
               for rows in (raw, better)]  # fmt: skip
    first, second = (found_by(result, resamples=400, seed=0) for result in results)
    measure = as_row("b", results[1], second, first)["m"]
    apart = measure.difference
    assert apart.mean == pytest.approx(measure.mean - as_row("a", results[0], first)["m"].mean)
    assert 1 < apart.low < apart.mean < apart.high < 3
    assert measure.high - measure.low > 5 * (apart.high - apart.low)


def test_models_of_one_name_are_told_apart(tiny, tmp_path):
    save(tmp_path / "a.png", colour_image(0)[0])
    table = evaluate([tiny, tiny], task="correspondence", data=tmp_path, config=FEW)
    assert table.rows[0].model != table.rows[1].model
    apart = table.to_json()["rows"][1]["values"]["PCK@0.1"]["difference"]
    assert apart == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert table.to_json()["rows"][0]["values"]["PCK@0.1"]["difference"] is None
    assert "+0." in table.text().splitlines()[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipe": "slow"}, "use fast, sgd, paper"),
        ({"methods": ("kn",)}, "Closest: knn"),
        ({"labelled": (0,)}, "at least 1"),
        ({"draws": 0}, "draws is 0"),
        ({"depth": (3.0, 2.0)}, "nearest, farthest"),
        ({"penalty": 0.0}, "above 0"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(ModelError, match=message):
        EvaluateConfig(**options)


def test_wrong_tasks_models_and_data(tiny, voc, tmp_path):
    with pytest.raises(ModelError, match="Closest: segmentation"):
        evaluate(tiny, task="segmentations", data=voc)
    with pytest.raises(ModelError, match="at least one"):
        evaluate([], task="segmentation", data=voc)
    with pytest.raises(ImageError, match="subset names 'dogs'"):
        evaluate(
            tiny, task="segmentation", data=voc, config=dataclasses.replace(FEW, subset=("dogs",))
        )
    with pytest.raises(ImageError, match="is in both splits"):
        same = dataclasses.replace(FEW, test="train")
        evaluate(tiny, task="segmentation", data=voc, config=same)
    with pytest.raises(ModelError, match="no recipe 'paper'"):
        evaluate(tiny, task="depth", data=voc, config=dataclasses.replace(FEW, recipe="paper"))
    broken = voc_masks(tmp_path)
    (broken / "JPEGImages/000003.png").write_bytes(b"no picture")
    with pytest.raises(ImageError, match=r"000003\.png"):
        evaluate(tiny, task="segmentation", data=broken, config=FEW)


def test_the_demo_model_end_to_end(demo_backbone, voc):
    config = dataclasses.replace(FEW, size=112, limit=2)
    table = evaluate(demo_backbone, task="segmentation", data=voc, config=config)
    assert table.rows[0]["pixels"].mean > 80
