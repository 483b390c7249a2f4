"""Training predictors: what changes, what is learned, and runs that are cut off."""

import dataclasses
import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.backbones.saved import save_backbone
from clearvit.errors import ModelError, StoreError, TrainingError
from clearvit.images import find_images
from clearvit.prune.budgets import planned
from clearvit.prune.config import PruneConfig
from clearvit.prune.lessons import Class, Lessons
from clearvit.prune.losses import Weights
from clearvit.prune.pictures import labels_of, soft_labels
from clearvit.prune.prune import prune
from clearvit.prune.pruned import PrunedBackbone
from clearvit.prune.pupil import Pupil
from clearvit.prune.saved import load_pruned
from clearvit.prune.train import RESULT, train_predictors
from clearvit.training.pictures import split
from tests.conftest import tiny_network

QUICK = PruneConfig(foresee=0, settle=0, epochs=2, batch=4, lr=1e-2, validation=0.2, patience=None)
CPU = torch.device("cpu")


def paint(folder, count, seed=0):
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    for i in range(count):
        pixels = generator.integers(0, 255, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((40, 40)).save(folder / f"{i:02d}.png")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    paint(folder, 10)
    return folder


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """Ten pictures in one folder for each of three classes, with a file that is none."""
    folder = tmp_path_factory.mktemp("classes")
    for number, name in enumerate(("bird", "cat", "dog")):
        paint(folder / name, 4, seed=number)
    (folder / "cat" / "bad.png").write_text("no picture")
    return folder


def weights(backbone):
    return {key: tensor.clone() for key, tensor in backbone.network.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def learned(pruned):
    return {k: t.clone() for k, t in pruned.predictors.state_dict().items()}


def test_without_a_classifier_predictors_learn_and_nothing_else(photos, tmp_path):
    backbone = load(tiny_network())
    frozen = {name: p.requires_grad for name, p in backbone.network.named_parameters()}
    before = weights(backbone)
    phases = []
    pruned = train_predictors(
        backbone, photos, out=tmp_path, config=QUICK, report=lambda *said: phases.append(said)
    )
    assert isinstance(pruned, PrunedBackbone) and pruned.network is backbone.network
    assert same(weights(backbone), before)
    assert all(p.grad is None for p in backbone.network.parameters())
    assert {n: p.requires_grad for n, p in backbone.network.named_parameters()} == frozen
    result = json.loads((tmp_path / RESULT).read_text())
    assert not result["plan"]["unlock"] and not result["plan"]["labelled"]
    assert {"score", "output", "map"} <= result["before"].keys()
    assert [row["epoch"] for row in result["epochs"]] == [0, 1, 2]
    assert {phase[0] for phase in phases} == {"check", "train"}
    assert phases[-1][1:3] == (4, 4)  # 8 pictures, 4 at a time, twice


def test_the_result_loads_as_it_is(photos, tmp_path):
    backbone = load(tiny_network())
    options = {"keep": [0.6, 0.3], "stages": [1, 2], "config": QUICK}
    pruned = train_predictors(backbone, photos, out=tmp_path / "a", **options)
    again = cv.load(f"dir:{tmp_path / 'a'}")
    pixels = torch.randn(2, 3, 32, 48)
    assert isinstance(again, PrunedBackbone) and again.plan == pruned.plan
    assert same(learned(again), learned(pruned))
    assert torch.equal(again.tokens(pixels).patches, pruned.tokens(pixels).patches)
    assert torch.equal(again.tokens(pixels).kept, pruned.tokens(pixels).kept)
    part = tmp_path / "a" / f".predictors.safetensors.{2**22 + 1}.part"  # of a killed writer
    part.write_bytes(b"half")
    finished = train_predictors(backbone, photos, out=tmp_path / "a", **options)
    assert not part.exists()
    assert same(learned(finished), learned(pruned)) and finished.network is backbone.network
    plain = timm.create_model(f"local-dir:{tmp_path / 'a'}", pretrained=True)
    assert same(dict(plain.state_dict()), weights(backbone))
    with pytest.raises(StoreError, match="keep was"):
        train_predictors(backbone, photos, out=tmp_path / "a", keep=0.5, config=QUICK)


def test_the_same_without_a_directory(photos, tmp_path):
    kept = train_predictors(load(tiny_network()), photos, out=tmp_path, config=QUICK)
    gone = train_predictors(load(tiny_network()), photos, config=QUICK)
    assert same(learned(kept), learned(gone))


def lessons_of(backbone, folder, config, **options):
    pictures = find_images(folder)
    training, held = split(len(pictures), config.validation)
    plan = planned(
        backbone.depth, keep=0.5, stages=None, scorer=None, fill="similar", budget="fixed"
    )
    pupil = Pupil(
        backbone, plan, weights=Weights(), **({"logits": False, "unlock": False} | options)
    )
    taken = Class(pictures, None, training, held, (32, 32))
    return Lessons(pupil, taken, config, begin=0, foreseeing=0, device=CPU)


class Killed(BaseException):
    """Nobody catches it."""


def interrupt(monkeypatch, lessons, stop, train):
    """Begin a training that is cut off when it loads the pictures of a step."""
    load_batch = lessons.batch

    def killed(self, images, step):
        if step == stop:
            raise Killed
        return load_batch(self, images, step)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(lessons, "batch", killed)
        train()


@pytest.mark.parametrize(
    ("stop", "unlock", "foresee"),
    [(1, False, 0), (2, True, 0), (3, True, 0), (1, False, 1), (3, True, 1)],
)
def test_an_interrupted_run_ends_with_the_same_bits(
    photos, tmp_path, monkeypatch, stop, unlock, foresee
):
    config = dataclasses.replace(QUICK, unlock=unlock, foresee=foresee)

    def train(name):
        return train_predictors(load(tiny_network()), photos, out=tmp_path / name, config=config)

    whole = train("whole")
    interrupt(monkeypatch, Lessons, stop, lambda: train("cut"))
    resumed = train("cut")
    assert same(learned(resumed), learned(whole))
    assert same(weights(resumed), weights(whole))
    results = [json.loads((tmp_path / n / RESULT).read_text()) for n in ("whole", "cut")]
    assert results[0] == results[1]


def test_labels_make_it_dynamicvit(labelled, tmp_path):
    backbone = load(tiny_network(num_classes=3))
    before = weights(backbone)
    config = dataclasses.replace(QUICK, epochs=6)
    pruned = train_predictors(backbone, labelled, out=tmp_path, config=config)
    result = json.loads((tmp_path / RESULT).read_text())
    assert result["plan"]["labelled"] and result["plan"]["unlock"] and result["plan"]["logits"]
    assert {"accuracy", "entropy"} <= result["after"].keys()
    assert result["after"]["score"] == -result["after"]["entropy"]
    assert [bad["name"] for bad in result["skipped"]] == ["cat/bad.png"]
    assert same(weights(backbone), before)  # the teacher, and the user's model
    assert pruned.network is not backbone.network
    again = cv.load(f"dir:{tmp_path}")
    assert same(weights(again), weights(pruned))


def test_an_unlocked_backbone_waits_and_its_embeddings_never_change(labelled, tmp_path):
    def after(epochs, folder):
        backbone = load(tiny_network(num_classes=3))
        task = lessons_of(backbone, labelled / "dog", QUICK, logits=True, unlock=True)
        task.begin = 2
        fit_steps(task, epochs, tmp_path / folder)
        return weights(backbone), weights(task.pupil.backbone)

    start, waited = after(2, "waits")
    assert same(start, waited)
    start, moved = after(3, "moves")
    changed = {key for key in start if not torch.equal(start[key], moved[key])}
    assert not changed & {"cls_token", "pos_embed"}
    assert {"head.bias", "blocks.0.attn.qkv.weight", "patch_embed.proj.weight"} <= changed


def fit_steps(task, steps, folder):
    """Train for some epochs of one step and keep the last weights, not the best."""
    from clearvit.training.loop import FitConfig, accelerator_for, fit
    from clearvit.training.order import Order

    count = iter(range(100))
    task.score = lambda module: {"score": float(next(count))}
    batch = len(task.taken.training)
    config = FitConfig(epochs=steps, batch=batch, micro=batch, end=1.0)
    return fit(task, Order(batch, batch, 0), config, folder, accelerator_for(CPU))


def test_the_kept_share_comes_to_its_goal_and_the_loss_falls(photos, tmp_path):
    config = dataclasses.replace(QUICK, lr=3e-2)
    task = lessons_of(load(tiny_network()), photos, config)
    fixed = task.batch(range(8), 0)

    def measured():
        with torch.no_grad():
            return {name: float(value) for name, value in task.module(fixed).items()}

    with torch.no_grad():  # begin with keeping almost everybody
        for predictor in task.pupil.predictors:
            predictor.out_conv[4].bias.copy_(torch.tensor([1.0, -1.0]))
    before = measured()
    assert before["ratio"] > 0.1
    fit_steps(task, 40, tmp_path)
    after = measured()
    assert after["ratio"] < 0.05 and after["loss"] < before["loss"]


def test_all_chance_belongs_to_the_step_and_the_picture(photos):
    task = lessons_of(load(tiny_network()), photos, QUICK)
    whole, part = task.batch([0, 3, 5, 6], 7), task.batch([5, 6], 7)
    assert torch.equal(whole.pixels[2:], part.pixels) and torch.equal(whole.noise[2:], part.noise)
    other = task.batch([5, 6], 8)
    assert not torch.equal(other.noise, part.noise)
    plain = task._pixels([task.taken.training[i] for i in range(8)])
    seen = torch.cat([task.batch(range(8), step).pixels for step in range(4)])
    turned, straight = (
        sum(bool(torch.equal(a, b)) for a, b in zip(seen, shown.repeat(4, 1, 1, 1), strict=True))
        for shown in (plain.flip(-1), plain)
    )
    assert turned + straight == 32 and min(turned, straight) > 5


def test_a_loss_that_is_no_number_names_the_pictures(photos, tmp_path):
    with pytest.raises(TrainingError, match=r"was not taken: .*png"):
        train_predictors(
            load(tiny_network()),
            photos,
            out=tmp_path,
            config=dataclasses.replace(QUICK, ratio_weight=float("nan")),
        )


@pytest.mark.parametrize(
    "arguments",
    [
        {"class_token": False, "global_pool": "avg", "num_classes": 4},
        {"global_pool": "", "reg_tokens": 2},
        {"class_token": False, "global_pool": "map"},
    ],
)
def test_every_kind_of_head_can_teach(photos, arguments):
    backbone = load(tiny_network(**arguments))
    config = dataclasses.replace(QUICK, epochs=1, unlock=True, micro=3, recompute=True)
    pruned = train_predictors(backbone, photos, keep=[0.5], stages=[1], config=config)
    assert pruned.tokens(torch.randn(1, 3, 32, 32)).patches.isfinite().all()


def test_half_precision_gives_almost_the_same(photos):
    task = lessons_of(load(tiny_network()), photos, QUICK, unlock=True)
    lesson = task.batch(range(8), 0)
    exact = task.module(lesson)
    with torch.autocast("cpu", torch.bfloat16):
        rough = task.module(lesson)
    rough["loss"].backward()
    assert all(p.grad.isfinite().all() for p in task.module.parameters() if p.grad is not None)
    assert abs(float(rough["ratio"].detach() - exact["ratio"].detach())) < 0.02
    assert abs(float(rough["output"].detach() - exact["output"].detach())) < 0.05


def test_labels_are_those_of_image_folders(labelled, photos):
    from torchvision.datasets import ImageFolder

    pictures = [p for p in find_images(labelled) if "bad" not in p.name]
    expected = [n for path, n in ImageFolder(str(labelled)).samples if "bad" not in path]
    assert labels_of(labelled, pictures, "auto", classes=3) == expected
    assert labels_of(labelled, pictures, "none", classes=3) is None
    assert labels_of(labelled, pictures, "auto", classes=4) is None
    assert labels_of(photos, find_images(photos), "auto", classes=3) is None
    assert labels_of([str(p.source) for p in pictures], pictures, "auto", classes=3) is None
    with pytest.raises(TrainingError, match=r"each of the 4 classes.*there are 3 folders"):
        labels_of(labelled, pictures, "folders", classes=4)
    with pytest.raises(TrainingError, match="no classifier"):
        labels_of(labelled, pictures, "folders", classes=0)
    rows = soft_labels([2, 0], 4, 0.1)
    assert torch.allclose(rows[0], torch.tensor([0.025, 0.025, 0.925, 0.025]))


@pytest.mark.parametrize(
    ("options", "changes", "words"),
    [
        ({"keep": 1.0}, {}, "nothing to learn"),
        ({"keep": 1.5}, {}, "share in"),
        ({"stages": [3]}, {}, "from 1 to 2"),
        ({}, {"batch": 99}, "fewer than a batch"),
        ({}, {"epochs": 0}, "at least 1"),
        ({}, {"lr": 0.0}, "positive"),
        ({}, {"foresee": -1}, "0 for none"),
        ({}, {"settle": -1}, "0 for none"),
        ({}, {"validation": 1.0}, "validation"),
        ({}, {"smoothing": 1.0}, "smoothing"),
        ({}, {"objective": "token"}, "Closest: tokens"),
        ({}, {"objective": "logits"}, "no classifier"),
        ({}, {"labels": "folders"}, "no classifier"),
    ],
)
def test_what_cannot_be_done_is_said_before_any_work(photos, tmp_path, options, changes, words):
    config = dataclasses.replace(QUICK, **changes)
    out = tmp_path / "out"
    with pytest.raises((TrainingError, ModelError), match=words):
        train_predictors(load(tiny_network()), photos, out=out, config=config, **options)
    assert not out.exists()


def test_other_directories_are_left_alone(photos, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(StoreError, match="not empty"):
        train_predictors(load(tiny_network()), photos, out=tmp_path, config=QUICK)


@pytest.mark.parametrize("scorer", ["class", "merge"])
def test_models_pruned_without_training_are_saved_too(tmp_path, scorer):
    backbone, pixels = load(tiny_network(reg_tokens=2)), torch.randn(2, 3, 32, 32)
    pruned = prune(backbone, keep=0.5, scorer=scorer, fill="delta")
    cv.save(pruned, tmp_path)
    again = cv.load(f"dir:{tmp_path}")
    assert again.plan == pruned.plan and again.predictors is None
    assert torch.equal(again.tokens(pixels).patches, pruned.tokens(pixels).patches)
    assert again.fingerprint() == pruned.fingerprint()
    cv.save(backbone, tmp_path)  # a dense model takes the place of the pruned one
    assert not isinstance(cv.load(f"dir:{tmp_path}"), PrunedBackbone)


def test_damaged_directories_are_refused(tmp_path):
    with pytest.raises(ModelError, match="no pruned model"):
        load_pruned(tmp_path)
    save_backbone(prune(load(tiny_network()), keep=0.5), tmp_path)
    content = json.loads((tmp_path / "pruned.json").read_text())
    for change, words in (
        ({"format": 99}, "another version"),
        ({"learned": True}, "cannot read"),
        ({"stages": [7, 8]}, "from 1 to 2"),
    ):
        (tmp_path / "pruned.json").write_text(json.dumps(content | change))
        with pytest.raises(ModelError, match=words):
            cv.load(f"dir:{tmp_path}")
    del content["fill"]
    (tmp_path / "pruned.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match="does not say 'fill'"):
        cv.load(f"dir:{tmp_path}")


def test_real_weights_are_taught_and_come_back(demo_backbone, photos, tmp_path):
    config = PruneConfig(size=112, foresee=1, epochs=1, batch=4, validation=0.2)
    pruned = train_predictors(demo_backbone, photos, out=tmp_path, config=config)
    result = json.loads((tmp_path / RESULT).read_text())
    assert 0.3 < result["after"]["output"] < 1 and len(result["epochs"]) == 3
    assert same(learned(cv.load(f"dir:{tmp_path}")), learned(pruned))
    assert pruned.network is demo_backbone.network
