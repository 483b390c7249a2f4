"""preset="dynamicvit": the published recipe."""

import math
import random

import numpy as np
import pytest
import torch

from clearvit.backbones.load import load
from clearvit.pruning.config import DYNAMICVIT, PruneConfig
from clearvit.pruning.prune import prune
from clearvit.pruning.training import losses
from clearvit.pruning.training.augmentation import seeded
from clearvit.pruning.training.predictor_task import PredictorTask
from clearvit.training.loop import FitConfig, lr_factor
from tests.conftest import tiny_network
from tests.helpers.made_training import interrupt, learned_by, make_task, paint, same, weights_of


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classes")
    for number, name in enumerate(("bird", "cat", "dog")):
        paint(folder / name, 4, seed=number)
    return folder


def recipe(**changes):
    return PruneConfig.build({"preset": "dynamicvit", **changes})


# The README's command for DeiT-S and LV-ViT (8 x 128 images), and defaults of the official script
PUBLISHED = {
    "epochs": 30,
    "batch": 1024,
    "micro_batch": 128,  # mixup, batch norms and the mean over kept tokens are those of one GPU
    "objective": "logits",
    "lr": 1e-3,
    "lr_batch": 1024,
    "min_lr": 1e-6,
    "schedule": "cosine",
    "lr_warmup_epochs": 5,
    "freeze_epochs": 5,
    "backbone_lr_scale": 0.01,
    "weight_decay": 0.05,
    "clip_norm": None,
    "ema_decay": 0.9999,
    "mixup": 0.8,
    "cutmix": 1.0,
    "smoothing": 0.1,
    "augmentation": "deit",
    "ratio_weight": 2.0,
    "ratio_target": "image",
    "labels": "folders",
    "unfreeze": True,
    "precision": "no",
    "batch_statistics": True,
    # what the paper has not
    "held_out": 0.0,
    "patience": None,
    "warmup_epochs": 0,
    "finetune_epochs": 0,
}


def test_the_recipe_is_the_published_one():
    config = recipe()
    assert {name: getattr(config, name) for name in PUBLISHED} == PUBLISHED
    assert set(DYNAMICVIT) == set(PUBLISHED)  # no number of the preset is left unchecked
    weights = losses.Weights(ratio=config.ratio_weight)
    assert (weights.labels, weights.ratio, weights.logits, weights.tokens) == (1.0, 2.0, 0.5, 0.5)


def test_images_are_augmented_as_published(labelled):
    task = make_task(load(tiny_network(num_classes=3)), labelled, recipe(batch=4), unfreeze=True)
    steps = {type(step).__name__: step for step in task.transform.transforms}
    crop, erase = steps["RandomResizedCropAndInterpolation"], steps["RandomErasing"]
    assert (crop.scale, crop.ratio) == ((0.08, 1.0), (3 / 4, 4 / 3))
    assert str(crop.interpolation).endswith("BICUBIC") or crop.interpolation == "bicubic"
    assert steps["RandomHorizontalFlip"].p == 0.5
    assert (erase.probability, erase.per_pixel, erase.max_count) == (0.25, True, 1)
    policy = steps["RandAugment"]
    assert policy.num_layers == 2 and {op.magnitude for op in policy.ops} == {9}
    assert {op.magnitude_std for op in policy.ops} == {0.5}
    mixup = task.mixup
    assert (mixup.mixup_alpha, mixup.cutmix_alpha, mixup.label_smoothing) == (0.8, 1.0, 0.1)
    assert (mixup.mix_prob, mixup.switch_prob, mixup.mode) == (1.0, 0.5, "batch")


def test_embeddings_are_never_trained_and_vectors_have_no_weight_decay(labelled):
    task = make_task(load(tiny_network(num_classes=3)), labelled, recipe(batch=4), unfreeze=True)
    names = {id(p): name for name, p in task.student.named_parameters()}
    trained = {}
    for group in task.param_groups():
        trained |= {names[id(p)]: group["weight_decay"] for p in group["params"]}
    assert not {name for name in trained if "pos_embed" in name or "cls_token" in name}
    for name, parameter in task.student.named_parameters():
        if name in trained:
            assert trained[name] == (0.05 if parameter.ndim > 1 else 0.0)
    left = {name for name, p in task.student.named_parameters() if p.requires_grad} - set(trained)
    assert not left
    optimizer = torch.optim.AdamW(task.param_groups())  # as the loop makes it
    assert optimizer.defaults["eps"] == 1e-8 and optimizer.defaults["betas"] == (0.9, 0.999)


def test_the_learning_rate_is_that_of_the_official_code():
    epochs, steps, warmup, base, last = 6, 4, 8, 1e-3, 1e-6
    falling = range(epochs * steps - warmup)
    expected = [*np.linspace(0, base, warmup)]
    expected += [
        last + 0.5 * (base - last) * (1 + math.cos(math.pi * i / len(falling))) for i in falling
    ]
    config = FitConfig(
        epochs=epochs, micro_batch=1, warmup_steps=warmup, schedule="cosine", end_factor=last / base
    )
    found = [base * lr_factor(step, steps, config) for step in range(epochs * steps)]
    assert found == pytest.approx(expected)


def test_rates_are_scaled_to_the_batch(labelled):
    config = recipe(batch=4)
    task = make_task(load(tiny_network(num_classes=3)), labelled, config, unfreeze=True)
    rates = {group["name"]: group["lr"] for group in task.param_groups()}
    assert rates["predictors"] == pytest.approx(1e-3 * 4 / 1024)
    assert rates["backbone"] == pytest.approx(1e-5 * 4 / 1024)


def test_images_are_augmented_and_mixed_the_same_way_again(labelled):
    config = recipe(batch=4)
    labels = [n // 4 for n in range(12)]
    backbone = load(tiny_network(num_classes=3))
    task = make_task(backbone, labelled, config, labels=labels, logits=True)
    state = random.getstate(), torch.get_rng_state()
    one, two, other = task.load_batch([0, 5, 9, 11], 3), task.load_batch([0, 5, 9, 11], 3), None
    other = task.load_batch([0, 5, 9, 11], 4)
    assert random.getstate() == state[0] and torch.equal(torch.get_rng_state(), state[1])
    assert torch.equal(one.pixels, two.pixels) and torch.equal(one.labels, two.labels)
    assert not torch.equal(one.pixels, other.pixels)
    assert torch.allclose(one.labels.sum(1), torch.ones(4), atol=1e-6)
    assert one.labels.max() <= 1 - 0.1 + 0.1 / 3 + 1e-6


def test_seeds_are_restored():
    np.random.seed(3)
    expected = np.random.rand()
    np.random.seed(3)
    with seeded(0, 5):
        first = (random.random(), np.random.rand(), float(torch.rand(1)))
    assert np.random.rand() == expected
    with seeded(0, 5):
        assert (random.random(), np.random.rand(), float(torch.rand(1))) == first


def test_a_run_keeps_the_averaged_weights_of_the_last_epoch_and_resumes(
    labelled, tmp_path, monkeypatch
):
    def train(name):
        backbone = load(tiny_network(num_classes=3))
        return prune(
            backbone, labelled, out=tmp_path / name, preset="dynamicvit", batch=4, epochs=7, lr=1.0
        )

    whole = train("whole")
    assert whole.report.best_epoch == 7 and whole.report.before == {}
    assert [set(row) for row in whole.report.epochs] == [{"epoch"}] * 8
    assert "nothing held out" in str(whole.report)
    interrupt(monkeypatch, PredictorTask, 17, lambda: train("cut"))
    resumed = train("cut")
    assert same(learned_by(resumed), learned_by(whole))
    assert same(weights_of(resumed), weights_of(whole))
    start = weights_of(load(tiny_network(num_classes=3)))
    moved = {key for key, value in weights_of(whole).items() if not torch.equal(value, start[key])}
    assert "head.bias" in moved and "pos_embed" not in moved
