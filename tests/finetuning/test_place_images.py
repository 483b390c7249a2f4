import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.datasets.retrieval_dataset import RetrievalDataset
from clearvit.errors import TrainingError
from clearvit.finetuning.metric_losses import PLACE_MARGIN, Distillation, PlaceTriplets
from clearvit.finetuning.place_images import PlaceImages
from tests.conftest import tiny_network

QUICK = {"size": 32, "epochs": 1, "classes": 4, "precision": "no", "dimension": 8, "folds": 2}


def traverse(root, places=16):
    """Two drives along the same places: neighbors share a color, and frames have noise."""
    rng = np.random.default_rng(0)
    colors = rng.integers(30, 225, (places, 3))
    for part in ("query", "ref"):
        (root / part).mkdir(parents=True)
        for number, color in enumerate(colors):
            pixels = np.clip(color + rng.normal(0, 15, (40, 48, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / part / f"{number:03d}.png")
    truth = {str(i): [i] for i in range(places)}
    (root / "ground_truth.json").write_text(json.dumps(truth))
    return root


def msls(root, city="berlin", places=12, distance=40):
    for part in ("query", "database"):
        images = root / "train_val" / city / part / "images"
        images.mkdir(parents=True)
        rng = np.random.default_rng(1)
        rows = ["key,easting,northing"]
        for number in range(places):
            color = rng.integers(30, 225, 3)
            pixels = np.broadcast_to(color, (32, 32, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(images / f"{part[0]}{number}.jpg")
            rows.append(f"{part[0]}{number},{number * distance},0")
        (images.parent / "postprocessed.csv").write_text("\n".join(rows))
    return root


def places(count=24, gallery=24):
    paths = [f"g{i}.png" for i in range(gallery)]
    queries = tuple(f"q{i}.png" for i in range(count))
    positives = tuple(tuple(j for j in (i - 1, i, i + 1) if 0 <= j < gallery) for i in range(count))
    from pathlib import Path

    return PlaceImages(
        RetrievalDataset(
            "vpr",
            Path("."),
            tuple(map(Path, paths)),
            queries=tuple(map(Path, queries)),
            positives=positives,
        )
    )


def test_triplets_are_those_of_a_plain_loop():
    """[0.1 + |q - p|^2 - |q - n|^2]+ over the hardest negatives, never a positive."""
    torch.manual_seed(0)
    embeddings = torch.randn(12, 5)
    positive = torch.eye(6, dtype=torch.bool)
    positive[0, 1] = True
    unit = F.normalize(embeddings, dim=1)
    terms = []
    for q in range(6):
        near = float((unit[2 * q] - unit[2 * q + 1]).square().sum())
        far = [
            float((unit[2 * q] - unit[2 * j + 1]).square().sum())
            for j in range(6)
            if not positive[q, j]
        ]
        terms += [max(0.0, PLACE_MARGIN + near - d) for d in sorted(far)[:2]]
    found = float(PlaceTriplets(2)(embeddings, positive, 0))
    assert found == pytest.approx(sum(terms) / len(terms), rel=1e-5)


def test_a_batch_without_negatives_costs_nothing():
    found = PlaceTriplets(5)(torch.randn(4, 3), torch.ones(2, 2, dtype=torch.bool), 0)
    assert float(found) == 0 and torch.isfinite(found)


def test_distillation_is_zero_at_the_teacher():
    targets = torch.randn(6, 4)
    assert float(Distillation()(3 * targets, targets, 0)) == pytest.approx(0, abs=1e-6)
    assert float(Distillation()(-targets, targets, 0)) == pytest.approx(4, rel=1e-5)


def test_positives_of_held_out_queries_do_not_train():
    images = places()
    held = [3, 4]
    training = [g for g in range(images.groups) if g not in held]
    taken = set().union(*(images.positives[q] for q in images.queries(held)))
    order = images.order(training, 4, 2, seed=0)
    for step in range(5):
        batch = order.images(step)
        assert not taken & set(batch[1::2])
        marks = images.batch_labels(batch)
        assert bool(marks.diagonal().all())


def test_queries_that_find_their_place_score_one():
    images = places()
    vectors = torch.eye(24).repeat(2, 1)
    groups = list(range(images.groups))
    assert images.judge(vectors[images.members(groups)], groups).eq(1).all()
    wrong = torch.cat([torch.eye(24), torch.eye(24).roll(5, 0)])  # gallery first
    assert images.judge(wrong[images.members(groups)], groups)[:, 0].mean() < 0.2


def test_places_train_and_the_model_comes_back(tmp_path):
    images = traverse(tmp_path / "corridor")
    options = {**QUICK, "keep_anyway": True, "unfreeze": "last-2"}
    tuned = cv.finetune(load(tiny_network()), images, out=tmp_path / "out", **options)
    assert set(tuned.report.before) == {"R@1", "R@5"} and tuned.report.words == "runs of queries"
    assert cv.load(f"dir:{tmp_path / 'out'}").embedding == 8


def test_msls_gives_its_training_cities_and_a_teacher_is_followed(tmp_path):
    from clearvit.datasets.retrieval_layouts import read_retrieval

    root = msls(tmp_path / "msls")
    msls(root, "cph", places=5)
    assert len(read_retrieval(root, training=True).queries) == 12
    assert len(read_retrieval(root).queries) == 5
    teacher = tmp_path / "teacher"
    cv.save(load(tiny_network()), teacher)
    options = {**QUICK, "loss": "distill", "teacher": f"dir:{teacher}", "keep_anyway": True}
    tuned = cv.finetune(load(tiny_network()), root, out=tmp_path / "out", **options)
    assert tuned.embedding == cv.load(f"dir:{teacher}").width


def test_validation_cities_alone_do_not_train(tmp_path):
    root = msls(tmp_path / "msls", "sf")
    with pytest.raises(cv.ClearvitError, match="training cit"):
        cv.finetune(load(tiny_network()), root, out=tmp_path / "out", **QUICK)


def test_too_few_queries_are_refused(tmp_path):
    with pytest.raises(TrainingError, match="at least 4"):
        cv.finetune(
            load(tiny_network()), traverse(tmp_path / "c", 3), out=tmp_path / "out", **QUICK
        )
