"""Fine-tuning of the hard-pruned model."""

import dataclasses

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.pruning.config import PruneConfig
from clearvit.pruning.prune import prune
from clearvit.pruning.training.augmentation import random_crop
from clearvit.pruning.training.finetune import FinetuneTask, PrunedStudent
from clearvit.training.order import seeded_generator
from tests.conftest import tiny_network
from tests.helpers.launched import run_in_two_processes
from tests.helpers.made_training import interrupt, learned_by, make_task, paint, same, weights_of

QUICK = PruneConfig(
    warmup_epochs=1,
    epochs=1,
    finetune_epochs=2,
    unfreeze=True,
    batch=4,
    lr=1e-2,
    held_out=0.2,
    patience=None,
)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    paint(folder, 10)
    return folder


def fill_weights(pruned):
    return {key: tensor.clone() for key, tensor in pruned.learned_fill.state_dict().items()}


def test_an_unfrozen_model_is_finetuned_and_loads_as_it_is(photos, tmp_path):
    backbone = load(tiny_network())
    before, phases = weights_of(backbone), []
    pruned = prune(
        backbone, photos, out=tmp_path, config=QUICK, progress=lambda *said: phases.append(said[0])
    )
    assert same(weights_of(backbone), before) and "fine-tune" in phases
    assert pruned.plan.fill == "learned" and pruned.plan.merge
    assert [row["epoch"] for row in pruned.report.finetune] == [0, 1, 2]
    assert pruned.report.after in pruned.report.finetune
    again, pixels = cv.load(f"dir:{tmp_path}"), torch.randn(2, 3, 32, 48)
    assert torch.equal(again.tokens(pixels).patches, pruned.tokens(pixels).patches)
    finished = prune(backbone, photos, out=tmp_path, config=QUICK)
    assert torch.equal(finished.tokens(pixels).patches, pruned.tokens(pixels).patches)


def test_a_frozen_model_trains_its_fill_alone(photos):
    backbone = load(tiny_network())
    config = dataclasses.replace(QUICK, unfreeze=False, merge=False)
    pruned = prune(backbone, photos, config=config)
    assert pruned.network is backbone.network and not pruned.plan.merge
    untrained = FinetuneTask(make_task(backbone, photos, config), merge=False).student.fill
    assert not same(fill_weights(pruned), dict(untrained.state_dict()))


def test_unfreezing_without_labels_finetunes_by_default(photos, tmp_path):
    for unfreeze, expected in ((True, 4), (False, 0)):
        config = dataclasses.replace(
            QUICK, finetune_epochs=None, unfreeze=unfreeze, warmup_epochs=0
        )
        pruned = prune(load(tiny_network()), photos, config=config)
        assert len(pruned.report.finetune) == (expected + 1 if expected else 0)


@pytest.mark.parametrize("stop", [0, 1, 3])
def test_an_interrupted_finetuning_ends_with_the_same_bits(photos, tmp_path, monkeypatch, stop):
    def train(name):
        return prune(load(tiny_network()), photos, out=tmp_path / name, config=QUICK)

    whole = train("whole")
    interrupt(monkeypatch, FinetuneTask, stop, lambda: train("cut"))
    resumed = train("cut")
    assert same(learned_by(resumed), learned_by(whole)) and same(
        fill_weights(resumed), fill_weights(whole)
    )
    assert same(weights_of(resumed), weights_of(whole))


def train_in(photos, out):
    torch.manual_seed(0)
    prune(load(tiny_network(depth=4)), photos, out=out, config=QUICK)


@pytest.mark.slow
def test_two_processes_end_where_one_does(photos, tmp_path):
    """Equal global batch: weights differ by the order of summation only."""
    run_in_two_processes(
        "tests.pruning.training.test_finetune", "train_in", tmp_path, photos, tmp_path / "two"
    )
    train_in(photos, tmp_path / "one")
    for name in ("model", "predictors", "fill"):
        one, two = (load_file(tmp_path / n / f"{name}.safetensors") for n in ("one", "two"))
        assert max(float((one[key] - two[key]).abs().max()) for key in one) < 1e-4


def test_predictors_and_embeddings_are_frozen_and_blocks_after_the_first_stage_train(photos):
    own = make_task(load(tiny_network(depth=4)), photos, QUICK, unfreeze=True)
    task = FinetuneTask(own, merge=True)
    task.module(task.load_batch([0, 1], 0))["loss"].backward()
    moved = {name for name, p in task.module.named_parameters() if p.grad is not None}
    first = own.student.plan.stages[0]
    assert {f"network.blocks.{first}.attn.qkv.weight", "network.norm.weight"} <= moved
    assert {"fill.outer.weight", "fill.outer.bias"} <= moved
    frozen = ("network.pos_embed", "network.cls_token", "network.patch_embed", "network.blocks.0.")
    assert not any(name.startswith(frozen) for name in moved)
    assert all(p.grad is None for p in own.student.predictors.parameters())
    named = [p for group in task.param_groups() for p in group["params"]]
    assert len(named) == len({id(p) for p in named})
    assert {id(p) for p in named} == {id(p) for p in task.module.parameters() if p.requires_grad}


def test_the_loss_is_that_of_the_model_that_is_used(photos):
    own = make_task(load(tiny_network(depth=4)), photos, QUICK, unfreeze=True)
    student, pixels = PrunedStudent(own.student, merge=True), torch.randn(2, 3, 32, 32)
    found = {name: part.detach() for name, part in student(pixels).items()}
    ours, theirs = student.pruned.tokens(pixels), own.student.teacher.tokens(pixels)
    for name, a, b in (("output", ours.cls, theirs.cls), ("map", ours.patches, theirs.patches)):
        each = (a - b).square().mean(-1) / b.square().mean(-1)
        assert float(found[name]) == pytest.approx(float(each.mean()), rel=1e-4)


def test_all_randomness_belongs_to_the_step_and_the_image(photos):
    task = FinetuneTask(make_task(load(tiny_network()), photos, QUICK), merge=True)
    whole, part = task.load_batch([0, 3, 5, 6], 7), task.load_batch([5, 6], 7)
    assert torch.equal(whole[2:], part) and not torch.equal(task.load_batch([5, 6], 8), part)


@pytest.mark.parametrize("size", [(1, 1), (1, 400), (37, 23), (300, 200)])
def test_crops_lie_inside_and_are_large(size):
    image = Image.new("RGB", size)
    for number in range(40):
        crop = random_crop(image, seeded_generator(0, number))
        assert 1 <= crop.width <= size[0] and 1 <= crop.height <= size[1]
        assert crop.width >= round(0.6 * size[0]) - 1 and crop.height >= round(0.6 * size[1]) - 1
    sizes = {random_crop(image, seeded_generator(0, number)).size for number in range(40)}
    assert len(sizes) > 1 or min(size) == 1
