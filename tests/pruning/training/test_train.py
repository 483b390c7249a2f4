"""Training predictors: what changes, what is learned, and runs that are cut off."""

import dataclasses
import json
import os

import pytest
import timm
import torch

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.backbones.saved import save
from clearvit.errors import ModelError, OptionError, StoreError, TrainingError
from clearvit.files import part_name
from clearvit.images import find_images
from clearvit.pruning.config import PruneConfig
from clearvit.pruning.prune import prune
from clearvit.pruning.pruned import PrunedBackbone
from clearvit.pruning.pruned_files import load_pruned
from clearvit.pruning.training.folder_labels import read_labels, soft_labels
from clearvit.pruning.training.predictor_task import PredictorTask
from clearvit.pruning.training.train import RESULT
from tests.conftest import tiny_network
from tests.helpers.made_training import (
    CPU,
    interrupt,
    learned_by,
    make_task,
    paint,
    same,
    weights_of,
)

QUICK = PruneConfig(
    warmup_epochs=0, finetune_epochs=0, epochs=2, batch=4, lr=1e-2, held_out=0.2, patience=None
)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    paint(folder, 10)
    return folder


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """Ten images in one folder for each of three classes, with a file that is none."""
    folder = tmp_path_factory.mktemp("classes")
    for number, name in enumerate(("bird", "cat", "dog")):
        paint(folder / name, 4, seed=number)
    (folder / "cat" / "bad.png").write_text("no image")
    return folder


def test_without_a_classifier_predictors_learn_and_nothing_else(photos, tmp_path):
    backbone = load(tiny_network())
    frozen = {name: p.requires_grad for name, p in backbone.network.named_parameters()}
    before = weights_of(backbone)
    phases = []
    pruned = prune(
        backbone, photos, out=tmp_path, config=QUICK, progress=lambda *said: phases.append(said)
    )
    assert isinstance(pruned, PrunedBackbone) and pruned.network is backbone.network
    assert same(weights_of(backbone), before)
    assert all(p.grad is None for p in backbone.network.parameters())
    assert {n: p.requires_grad for n, p in backbone.network.named_parameters()} == frozen
    report = pruned.report
    assert json.loads((tmp_path / RESULT).read_text()) == dataclasses.asdict(report)
    assert {"score", "output", "map"} <= report.before.keys()
    assert [row["epoch"] for row in report.epochs] == [0, 1, 2]
    assert {phase[0] for phase in phases} == {"check", "prune", "train"}
    (said,) = (phase[3] for phase in phases if phase[0] == "prune")
    assert "without labels" in said and "tokens" in said  # what "auto" chose
    assert phases[-1][1:3] == (4, 4)  # 8 images, 4 at a time, twice


def test_the_result_loads_as_it_is(photos, tmp_path):
    backbone = load(tiny_network())
    options = {"keep": [0.6, 0.3], "stages": [1, 2], "config": QUICK}
    pruned = prune(backbone, photos, out=tmp_path / "a", **options)
    again = cv.load(f"dir:{tmp_path / 'a'}")
    pixels = torch.randn(2, 3, 32, 48)
    assert isinstance(again, PrunedBackbone) and again.plan == pruned.plan
    assert same(learned_by(again), learned_by(pruned))
    assert torch.equal(again.tokens(pixels).patches, pruned.tokens(pixels).patches)
    assert torch.equal(again.tokens(pixels).kept, pruned.tokens(pixels).kept)
    part = (
        tmp_path
        / "a"
        / part_name("predictors").replace(
            f"-{os.getpid()}-",
            f"-{2**22 + 1}-",  # of a killed writer
        )
    )
    part.write_bytes(b"half")
    finished = prune(backbone, photos, out=tmp_path / "a", **options)
    assert not part.exists()
    assert same(learned_by(finished), learned_by(pruned)) and finished.network is backbone.network
    plain = timm.create_model(f"local-dir:{tmp_path / 'a'}", pretrained=True)
    assert same(dict(plain.state_dict()), weights_of(backbone))
    with pytest.raises(StoreError, match="keep was"):
        prune(backbone, photos, out=tmp_path / "a", keep=0.5, config=QUICK)


def test_the_same_without_a_directory(photos, tmp_path):
    kept = prune(load(tiny_network()), photos, out=tmp_path, config=QUICK)
    gone = prune(load(tiny_network()), photos, config=QUICK)
    assert same(learned_by(kept), learned_by(gone))


@pytest.mark.parametrize(
    ("stop", "unfreeze", "warmup"),
    [(1, False, 0), (2, True, 0), (3, True, 0), (1, False, 1), (3, True, 1)],
)
def test_an_interrupted_run_ends_with_the_same_bits(
    photos, tmp_path, monkeypatch, stop, unfreeze, warmup
):
    config = dataclasses.replace(QUICK, unfreeze=unfreeze, warmup_epochs=warmup)

    def train(name):
        return prune(load(tiny_network()), photos, out=tmp_path / name, config=config)

    whole = train("whole")
    interrupt(monkeypatch, PredictorTask, stop, lambda: train("cut"))
    resumed = train("cut")
    assert same(learned_by(resumed), learned_by(whole))
    assert same(weights_of(resumed), weights_of(whole))
    results = [json.loads((tmp_path / n / RESULT).read_text()) for n in ("whole", "cut")]
    assert results[0] == results[1]


def test_labels_train_the_backbone_too(labelled, tmp_path):
    backbone = load(tiny_network(num_classes=3))
    before = weights_of(backbone)
    config = dataclasses.replace(QUICK, epochs=6)
    pruned = prune(backbone, labelled, out=tmp_path, config=config)
    after = pruned.report.after
    assert {"accuracy", "cross_entropy"} <= after.keys()
    assert after["score"] == -after["cross_entropy"]
    assert [bad.name for bad in pruned.report.skipped] == ["cat/bad.png"]
    assert same(weights_of(backbone), before)  # the teacher, and the user's model
    assert pruned.network is not backbone.network
    again = cv.load(f"dir:{tmp_path}")
    assert same(weights_of(again), weights_of(pruned))


def test_an_unfrozen_backbone_waits_and_its_embeddings_never_change(labelled, tmp_path):
    def after(epochs, folder):
        backbone = load(tiny_network(num_classes=3))
        task = make_task(backbone, labelled / "dog", QUICK, logits=True, unfreeze=True)
        task.freeze_steps = 2
        fit_steps(task, epochs, tmp_path / folder)
        return weights_of(backbone), weights_of(task.student.backbone)

    start, waited = after(2, "waits")
    assert same(start, waited)
    start, moved = after(3, "moves")
    changed = {key for key in start if not torch.equal(start[key], moved[key])}
    assert not changed & {"cls_token", "pos_embed"}
    assert {"head.bias", "blocks.0.attn.qkv.weight", "patch_embed.proj.weight"} <= changed


def fit_steps(task, steps, folder):
    """Train for some epochs of one step and keep the last weights, not the best."""
    from clearvit.training.loop import FitConfig, accelerator_for, fit
    from clearvit.training.order import BatchOrder

    count = iter(range(100))
    task.evaluate = lambda module: {"score": float(next(count))}
    batch = len(task.images.training)
    config = FitConfig(epochs=steps, micro_batch=batch, end_factor=1.0)
    return fit(task, BatchOrder(batch, batch, 0), config, folder, accelerator_for(CPU))


def test_the_kept_fraction_reaches_its_target_and_the_loss_falls(photos, tmp_path):
    config = dataclasses.replace(QUICK, lr=3e-2)
    task = make_task(load(tiny_network()), photos, config)
    fixed = task.load_batch(range(8), 0)

    def measured():
        with torch.no_grad():
            return {name: float(value) for name, value in task.module(fixed).items()}

    with torch.no_grad():  # begin with keeping almost everybody
        for predictor in task.student.predictors:
            predictor.out_conv[4].bias.copy_(torch.tensor([1.0, -1.0]))
    before = measured()
    assert before["ratio"] > 0.1
    fit_steps(task, 40, tmp_path)
    after = measured()
    assert after["ratio"] < 0.05 and after["loss"] < before["loss"]


def test_all_randomness_belongs_to_the_step_and_the_image(photos):
    task = make_task(load(tiny_network()), photos, QUICK)
    whole, part = task.load_batch([0, 3, 5, 6], 7), task.load_batch([5, 6], 7)
    assert torch.equal(whole.pixels[2:], part.pixels) and torch.equal(whole.noise[2:], part.noise)
    other = task.load_batch([5, 6], 8)
    assert not torch.equal(other.noise, part.noise)
    plain = task._pixels([task.images.training[i] for i in range(8)])
    seen = torch.cat([task.load_batch(range(8), step).pixels for step in range(4)])
    turned, straight = (
        sum(bool(torch.equal(a, b)) for a, b in zip(seen, shown.repeat(4, 1, 1, 1), strict=True))
        for shown in (plain.flip(-1), plain)
    )
    assert turned + straight == 32 and min(turned, straight) > 5


def test_a_loss_that_is_not_finite_names_the_images(photos, tmp_path):
    with pytest.raises(TrainingError, match=r"was not taken: .*png"):
        prune(
            load(tiny_network()),
            photos,
            out=tmp_path,
            config=dataclasses.replace(QUICK, ratio_weight=2e9, lr=1e9),
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
    config = dataclasses.replace(
        QUICK, epochs=1, unfreeze=True, micro_batch=3, grad_checkpointing=True
    )
    pruned = prune(backbone, photos, keep=[0.5], stages=[1], config=config)
    assert pruned.tokens(torch.randn(1, 3, 32, 32)).patches.isfinite().all()


def test_half_precision_gives_almost_the_same(photos):
    task = make_task(load(tiny_network()), photos, QUICK, unfreeze=True)
    batch = task.load_batch(range(8), 0)
    exact = task.module(batch)
    with torch.autocast("cpu", torch.bfloat16):
        rough = task.module(batch)
    rough["loss"].backward()
    assert all(p.grad.isfinite().all() for p in task.module.parameters() if p.grad is not None)
    assert abs(float(rough["ratio"].detach() - exact["ratio"].detach())) < 0.02
    assert abs(float(rough["output"].detach() - exact["output"].detach())) < 0.05


def test_labels_are_those_of_image_folders(labelled, photos):
    from torchvision.datasets import ImageFolder

    images = [p for p in find_images(labelled) if "bad" not in p.name]
    expected = [n for path, n in ImageFolder(str(labelled)).samples if "bad" not in path]
    assert read_labels(labelled, images, "auto", classes=3) == expected
    assert read_labels(labelled, images, "none", classes=3) is None
    assert read_labels(labelled, images, "auto", classes=4) is None
    assert read_labels(photos, find_images(photos), "auto", classes=3) is None
    assert read_labels([str(p.source) for p in images], images, "auto", classes=3) is None
    with pytest.raises(TrainingError, match=r"each of the 4 classes.*there are 3 folders"):
        read_labels(labelled, images, "folders", classes=4)
    with pytest.raises(TrainingError, match="no classifier"):
        read_labels(labelled, images, "folders", classes=0)
    rows = soft_labels([2, 0], 4, 0.1)
    assert torch.allclose(rows[0], torch.tensor([0.025, 0.025, 0.925, 0.025]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keep": 1.0}, "nothing to train"),
        ({"keep": 1.5}, "at most 1"),
        ({"keep": "0.5x"}, "above 1"),
        ({"scorer": "fuse"}, "needs no training"),
        ({"stages": [3]}, "from 1 to 2"),
        ({"batch": 99}, "fewer than a batch"),
        ({"epochs": 0}, "at least 1"),
        ({"lr": 0.0}, "more than 0"),
        ({"warmup_epochs": -1}, "at least 0"),
        ({"finetune_epochs": -1}, "at least 0"),
        ({"held_out": 1.0}, "held_out"),
        ({"smoothing": 1.0}, "smoothing"),
        ({"mixup": 0.8, "batch": 3}, "even"),
        ({"objective": "token"}, "Closest: tokens"),
        ({"objective": "logits"}, "no classifier"),
        ({"labels": "folders"}, "no classifier"),
    ],
)
def test_what_cannot_be_done_is_refused_before_any_work(photos, tmp_path, options, words):
    out = tmp_path / "out"
    with pytest.raises((TrainingError, ModelError, OptionError), match=words):
        prune(load(tiny_network()), photos, out=out, config=QUICK, **options)
    assert not out.exists()


def test_other_directories_are_left_alone(photos, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(StoreError, match="not empty"):
        prune(load(tiny_network()), photos, out=tmp_path, config=QUICK)


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
    with pytest.raises(ModelError, match="cannot read"):
        load_pruned(tmp_path)
    save(prune(load(tiny_network()), keep=0.5), tmp_path)
    content = json.loads((tmp_path / "pruned.json").read_text())
    for change, words in (
        ({"format": 99}, "another version"),
        ({"scorer": None}, "cannot read"),
        ({"stages": [7, 8]}, "from 1 to 2"),
    ):
        (tmp_path / "pruned.json").write_text(json.dumps(content | change))
        with pytest.raises(ModelError, match=words):
            cv.load(f"dir:{tmp_path}")
    del content["fill"]
    (tmp_path / "pruned.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match="'fill' is missing"):
        cv.load(f"dir:{tmp_path}")


def test_real_weights_are_trained_and_load_again(demo_backbone, photos, tmp_path):
    config = PruneConfig(size=112, warmup_epochs=1, epochs=1, batch=4, held_out=0.2)
    pruned = prune(demo_backbone, photos, out=tmp_path, config=config)
    assert 0.3 < pruned.report.after["output"] < 1 and len(pruned.report.epochs) == 3
    assert same(learned_by(cv.load(f"dir:{tmp_path}")), learned_by(pruned))
    assert pruned.network is demo_backbone.network


def test_without_images_options_of_training_are_refused(tiny):
    with pytest.raises(OptionError, match="epochs is an option of training"):
        prune(tiny, epochs=3)
    with pytest.raises(OptionError, match="preset"):
        prune(tiny, preset="dynamicvit")
    assert prune(tiny).report is None
