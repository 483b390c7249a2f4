import dataclasses
import json

import numpy as np
import pytest

from clearvit.backbones.load import load
from clearvit.errors import ImageError, ModelError, OptionError
from clearvit.evaluation import correspondence_task, segmentation_task
from clearvit.evaluation.config import (
    ClassificationConfig,
    DepthConfig,
    KnnSegmentationConfig,
    SegmentationConfig,
)
from clearvit.evaluation.evaluate import evaluate
from clearvit.evaluation.evaluation_table import Result, make_row, resample_metrics
from clearvit.evaluation.registry import TASKS
from clearvit.probes.knn import fit_knn
from tests.conftest import tiny_network
from tests.helpers.made_data import class_folder, colour_image, depth_folder, save_png, voc_masks


@pytest.fixture(scope="module")
def voc(tmp_path_factory):
    return voc_masks(tmp_path_factory.mktemp("voc"))


@pytest.fixture(scope="module")
def other():
    return load(tiny_network(reg_tokens=2, no_embed_class=True))


def test_two_models_few_and_all_labels_in_one_table(tiny, other, voc, tmp_path):
    table = evaluate(
        [tiny, other],
        task="segmentation",
        data=voc,
        iterations=150,
        num_labelled=(2, None),
        seeds=3,
        cache=tmp_path,
        subset=("background", "aeroplane"),
    )
    assert [(row.num_labelled, row.seeds, row.num_tested) for row in table.rows] == 2 * [
        (2, 3, 4),
        (6, 1, 4),
    ]
    assert table.rows[0].model != table.rows[2].model
    few, every = table.rows[:2]
    assert few["mIoU"].std is not None and every["mIoU"].std is None
    assert every["mIoU"].low <= every["mIoU"].mean <= every["mIoU"].high
    assert every["mIoU of 2"].mean > 60  # half of the pixels are of one class
    assert table.protocol["layout"] == "voc" and table.protocol["train_images"] == 6
    content = json.loads(json.dumps(table.to_json()))
    assert content["rows"][1]["values"]["mIoU"]["mean"] == every["mIoU"].mean
    assert len(table.text().splitlines()) == 5 and "±" in table.text()
    assert len(list(tmp_path.iterdir())) == 4  # two models, two splits


def test_the_cache_saves_the_network_and_changes_nothing(tiny, voc, tmp_path, monkeypatch):
    first = evaluate(tiny, task="knn-segmentation", data=voc, cache=tmp_path)
    without = evaluate(tiny, task="knn-segmentation", data=voc)
    monkeypatch.setattr(type(tiny), "forward", None)
    again = evaluate(tiny, task="knn-segmentation", data=voc, cache=tmp_path)
    assert first.rows == again.rows == without.rows
    assert first.rows[0].setting == "kNN" and first.rows[0]["pixels"].mean > 60


def test_the_probe_on_pixels_and_sliding_windows_run(tiny, voc):
    options = {"probe": "sgd", "iterations": 2, "inference": "slide", "limit": 1}
    table = evaluate(tiny, task="segmentation", data=voc, **options)
    assert table.rows[0].setting == "linear, sgd" and table.rows[0].num_tested == 1
    assert table.protocol["iterations"] == 2


@pytest.mark.parametrize("probe", ["fast", "sgd"])
def test_depth(tiny, tmp_path, probe):
    config = DepthConfig(probe=probe, iterations=2)
    table = evaluate(tiny, task="depth", data=depth_folder(tmp_path), config=config)
    assert set(table.rows[0].values) == {"RMSE", "AbsRel", "delta1", "delta2", "delta3"}
    assert 0 < table.rows[0]["RMSE"].mean < 8 and table.rows[0].num_tested == 3


def test_classification_with_and_without_splits(tiny, tmp_path):
    methods = ("knn", "linear", "prototypes")
    config = ClassificationConfig(methods=methods, pooling="both", seeds=2)
    plain = evaluate(
        tiny, task="classification", data=class_folder(tmp_path / "plain"), config=config
    )
    assert [row.setting for row in plain.rows] == list(methods)
    assert all((r.num_labelled, r.num_tested, r.seeds) == (12, 3, 2) for r in plain.rows)
    assert plain.rows[1]["top-1"].mean > 60  # of three classes
    root = class_folder(tmp_path / "split", each=3, splits=("train", "val"))
    numbers = {"config": config, "num_labelled": (1, None)}
    split = evaluate(tiny, task="classification", data=root, **numbers)
    assert [(row.num_labelled, row.seeds) for row in split.rows] == 3 * [(3, 2)] + 3 * [(9, 1)]


def test_geometric_correspondence(tiny, tmp_path):
    for i in range(3):
        save_png(tmp_path / f"{i}.png", colour_image(i)[0])
    seen = []
    table = evaluate(
        tiny,
        task="geometric-correspondence",
        data=tmp_path,
        limit=2,
        seeds=2,
        progress=lambda stage, done, total, note="": seen.append((done, total)),
    )
    assert table.rows[0].num_tested == 2 and seen == 2 * [(1, 2), (2, 2)]
    assert 0 <= table.rows[0]["PCK@0.05"].mean <= table.rows[0]["PCK@0.1"].mean <= 100


def test_means_deviations_and_intervals():
    rows = [np.array([[1.0, 1.0], [3.0, 1.0]]), np.array([[2.0, 1.0], [4.0, 1.0]])]
    result = Result("s", 5, rows, lambda sums: {"m": sums[..., 0] / sums[..., 1]})
    found = resample_metrics(result, seed=0)
    measure = make_row("a", result, found)["m"]
    assert measure.mean == 2.5 and measure.std == pytest.approx(np.sqrt(0.5))
    assert (measure.low, measure.high) == (1.5, 3.5) and measure.difference is None


def test_differences_are_paired_by_image_and_seed():
    rng = np.random.default_rng(0)
    levels = rng.normal(50, 20, (30, 1))  # images differ much, models by about 2 in each
    raw = [np.hstack([levels + shift, np.ones((30, 1))]) for shift in (0.0, 5.0)]
    better = [rows + np.hstack([rng.normal(2, 1, (30, 1)), np.zeros((30, 1))]) for rows in raw]
    results = [Result("s", 5, rows, lambda sums: {"m": sums[..., 0] / sums[..., 1]})
               for rows in (raw, better)]  # fmt: skip
    first, second = (resample_metrics(result, seed=0) for result in results)
    measure = make_row("b", results[1], second, first)["m"]
    apart = measure.difference
    assert apart.mean == pytest.approx(measure.mean - make_row("a", results[0], first)["m"].mean)
    assert 1 < apart.low < apart.mean < apart.high < 3
    assert measure.high - measure.low > 5 * (apart.high - apart.low)


def test_models_of_one_name_are_told_apart(tiny, tmp_path):
    save_png(tmp_path / "a.png", colour_image(0)[0])
    table = evaluate([tiny, tiny], task="geometric-correspondence", data=tmp_path)
    assert table.rows[0].model != table.rows[1].model
    apart = table.to_json()["rows"][1]["values"]["PCK@0.1"]["difference"]
    assert apart == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert table.to_json()["rows"][0]["values"]["PCK@0.1"]["difference"] is None
    assert "+0." in table.text().splitlines()[2]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (SegmentationConfig, {"probe": "slow"}, "use fast, sgd"),
        (ClassificationConfig, {"methods": ("kn",)}, "Closest: knn"),
        (SegmentationConfig, {"num_labelled": (0,)}, "at least 1"),
        (KnnSegmentationConfig, {"seeds": 0}, "seeds is 0"),
        (DepthConfig, {"min_depth": 3.0, "max_depth": 2.0}, "less than max_depth"),
        (DepthConfig, {"penalty": 0.0}, "more than 0"),
    ],
)
def test_options_that_do_not_fit(kind, options, message):
    with pytest.raises(OptionError, match=message):
        kind(**options)


def test_the_memory_of_knn_segmentation_is_as_large_as_asked(tiny, voc, monkeypatch):
    banks = []

    def record(tokens, labels, **options):
        banks.append(len(tokens))
        return fit_knn(tokens, labels, **options)

    monkeypatch.setattr(segmentation_task, "fit_knn", record)
    for memory in (250_000, 12):
        evaluate(tiny, task="knn-segmentation", data=voc, memory=memory, k=3)
    assert banks[1] <= 12 < banks[0]


def test_options_of_other_tasks_are_refused_with_the_closest_name(tiny, voc):
    with pytest.raises(OptionError, match=r"Closest: .*num_labelled"):
        evaluate(tiny, task="segmentation", data=voc, labelled=(3,))
    with pytest.raises(OptionError, match="no option 'k'"):
        evaluate(tiny, task="segmentation", data=voc, k=3)
    with pytest.raises(OptionError, match="takes a SegmentationConfig"):
        evaluate(tiny, task="segmentation", data=voc, config=DepthConfig())


def test_every_task_has_at_most_15_options():
    for name, task in TASKS.items():
        assert len(dataclasses.fields(task.config)) <= 15, name


def test_wrong_tasks_models_and_data(tiny, voc, tmp_path):
    with pytest.raises(OptionError, match="Closest: segmentation"):
        evaluate(tiny, task="segmentations", data=voc)
    with pytest.raises(ModelError, match="at least one"):
        evaluate([], task="segmentation", data=voc)
    with pytest.raises(ImageError, match="subset names 'dogs'"):
        evaluate(tiny, task="segmentation", data=voc, subset=("dogs",))
    with pytest.raises(ImageError, match="is in both splits"):
        evaluate(tiny, task="segmentation", data=voc, split="train")
    broken = voc_masks(tmp_path)
    (broken / "JPEGImages/000003.png").write_bytes(b"no picture")
    with pytest.raises(ImageError, match=r"000003\.png"):
        evaluate(tiny, task="segmentation", data=broken)


def test_data_are_read_once_and_before_a_model_is_taken(tiny, tmp_path, monkeypatch):
    def load():
        raise AssertionError("a model was taken")
        yield

    with pytest.raises(ImageError, match="is no folder"):
        evaluate(load(), task="segmentation", data=tmp_path / "nowhere")
    reads = []
    module = "clearvit.evaluation.correspondence_task.find_images"
    find = correspondence_task.find_images
    monkeypatch.setattr(module, lambda data: reads.append(data) or find(data))
    save_png(tmp_path / "a.png", colour_image(0)[0])
    evaluate([tiny, tiny], task="geometric-correspondence", data=tmp_path)
    assert reads == [tmp_path]


def test_the_demo_model_end_to_end(demo_backbone, voc):
    options = {"size": 112, "limit": 2, "iterations": 150}
    table = evaluate(demo_backbone, task="segmentation", data=voc, **options)
    assert table.rows[0]["pixels"].mean > 80
