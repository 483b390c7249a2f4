"""Settling: the last lesson, on what is really run."""

import dataclasses
import json

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.prune.config import PruneConfig
from clearvit.prune.pictures import part_of
from clearvit.prune.settle import LastLessons, Settling
from clearvit.prune.train import RESULT, train_predictors
from clearvit.training.order import generator
from tests.conftest import tiny_network
from tests.prune.test_train import interrupt, learned, lessons_of, paint, same, weights
from tests.training.launched import run_in_two_processes

QUICK = PruneConfig(
    foresee=1, epochs=1, settle=2, unlock=True, batch=4, lr=1e-2, validation=0.2, patience=None
)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    paint(folder, 10)
    return folder


def filled(pruned):
    return {key: tensor.clone() for key, tensor in pruned.learned_fill.state_dict().items()}


def test_an_unlocked_model_settles_and_loads_as_it_is(photos, tmp_path):
    backbone = load(tiny_network())
    before, phases = weights(backbone), []
    pruned = train_predictors(
        backbone, photos, out=tmp_path, config=QUICK, report=lambda *said: phases.append(said[0])
    )
    assert same(weights(backbone), before) and "settle" in phases
    assert pruned.plan.fill == "learned" and pruned.plan.average
    result = json.loads((tmp_path / RESULT).read_text())
    assert [row["epoch"] for row in result["settling"]] == [0, 1, 2]
    assert result["after"] in result["settling"]
    again, pixels = cv.load(f"dir:{tmp_path}"), torch.randn(2, 3, 32, 48)
    assert torch.equal(again.tokens(pixels).patches, pruned.tokens(pixels).patches)
    finished = train_predictors(backbone, photos, out=tmp_path, config=QUICK)
    assert torch.equal(finished.tokens(pixels).patches, pruned.tokens(pixels).patches)


def test_a_locked_model_learns_its_fill_alone(photos):
    backbone = load(tiny_network())
    config = dataclasses.replace(QUICK, unlock=False, average=False)
    pruned = train_predictors(backbone, photos, config=config)
    assert pruned.network is backbone.network and not pruned.plan.average
    untrained = LastLessons(lessons_of(backbone, photos, config), average=False).settling.fill
    assert not same(filled(pruned), dict(untrained.state_dict()))


def test_unlocking_without_labels_settles_by_default(photos, tmp_path):
    for unlock, expected in ((True, 4), (False, 0)):
        config = dataclasses.replace(QUICK, settle=None, unlock=unlock, foresee=0)
        train_predictors(load(tiny_network()), photos, out=tmp_path / str(unlock), config=config)
        result = json.loads((tmp_path / str(unlock) / RESULT).read_text())
        assert result["plan"]["settle"] == expected
        assert len(result["settling"]) == (expected + 1 if expected else 0)


@pytest.mark.parametrize("stop", [0, 1, 3])
def test_an_interrupted_settling_ends_with_the_same_bits(photos, tmp_path, monkeypatch, stop):
    def train(name):
        return train_predictors(load(tiny_network()), photos, out=tmp_path / name, config=QUICK)

    whole = train("whole")
    interrupt(monkeypatch, LastLessons, stop, lambda: train("cut"))
    resumed = train("cut")
    assert same(learned(resumed), learned(whole)) and same(filled(resumed), filled(whole))
    assert same(weights(resumed), weights(whole))


def train_in(photos, out):
    torch.manual_seed(0)
    train_predictors(load(tiny_network(depth=4)), photos, out=out, config=QUICK)


@pytest.mark.slow
def test_two_processes_end_where_one_does(photos, tmp_path):
    """Equal global batch: weights differ by the order of summation only."""
    run_in_two_processes("tests.prune.test_settle", "train_in", tmp_path, photos, tmp_path / "two")
    train_in(photos, tmp_path / "one")
    for name in ("model", "predictors", "fill"):
        one, two = (load_file(tmp_path / n / f"{name}.safetensors") for n in ("one", "two"))
        assert max(float((one[key] - two[key]).abs().max()) for key in one) < 1e-4


def test_predictors_and_embeddings_stand_still_and_blocks_behind_the_first_stage_learn(photos):
    lessons = lessons_of(load(tiny_network(depth=4)), photos, QUICK, unlock=True)
    task = LastLessons(lessons, average=True)
    task.module(task.batch([0, 1], 0))["loss"].backward()
    moved = {name for name, p in task.module.named_parameters() if p.grad is not None}
    first = lessons.pupil.plan.stages[0]
    assert {f"network.blocks.{first}.attn.qkv.weight", "network.norm.weight"} <= moved
    assert {"fill.outer.weight", "fill.outer.bias"} <= moved
    locked = ("network.pos_embed", "network.cls_token", "network.patch_embed", "network.blocks.0.")
    assert not any(name.startswith(locked) for name in moved)
    assert all(p.grad is None for p in lessons.pupil.predictors.parameters())
    named = [p for group in task.groups() for p in group["params"]]
    assert len(named) == len({id(p) for p in named})
    assert {id(p) for p in named} == {id(p) for p in task.module.parameters() if p.requires_grad}


def test_the_loss_is_that_of_the_model_that_is_used(photos):
    lessons = lessons_of(load(tiny_network(depth=4)), photos, QUICK, unlock=True)
    settling, pixels = Settling(lessons.pupil, average=True), torch.randn(2, 3, 32, 32)
    found = {name: part.detach() for name, part in settling(pixels).items()}
    ours, theirs = settling.pruned.tokens(pixels), lessons.pupil.teacher.tokens(pixels)
    for name, a, b in (("output", ours.cls, theirs.cls), ("map", ours.patches, theirs.patches)):
        each = (a - b).square().mean(-1) / b.square().mean(-1)
        assert float(found[name]) == pytest.approx(float(each.mean()), rel=1e-4)


def test_all_chance_belongs_to_the_step_and_the_picture(photos):
    task = LastLessons(lessons_of(load(tiny_network()), photos, QUICK), average=True)
    whole, part = task.batch([0, 3, 5, 6], 7), task.batch([5, 6], 7)
    assert torch.equal(whole[2:], part) and not torch.equal(task.batch([5, 6], 8), part)


@pytest.mark.parametrize("size", [(1, 1), (1, 400), (37, 23), (300, 200)])
def test_parts_lie_inside_and_are_large(size):
    picture = Image.new("RGB", size)
    for number in range(40):
        part = part_of(picture, generator(0, number))
        assert 1 <= part.width <= size[0] and 1 <= part.height <= size[1]
        assert part.width >= round(0.6 * size[0]) - 1 and part.height >= round(0.6 * size[1]) - 1
    sizes = {part_of(picture, generator(0, number)).size for number in range(40)}
    assert len(sizes) > 1 or min(size) == 1
