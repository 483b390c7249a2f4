"""What tests of training a pruned model share."""

import numpy as np
import pytest
import torch
from PIL import Image

from clearvit.images import find_images
from clearvit.pruning.pruning_plan import make_plan
from clearvit.pruning.training.masked_student import MaskedStudent
from clearvit.pruning.training.predictor_task import PredictorTask, TrainingImages
from clearvit.training.held_out import split_held_out

CPU = torch.device("cpu")


def paint(folder, count, seed=0):
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for i in range(count):
        pixels = rng.integers(0, 255, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((40, 40)).save(folder / f"{i:02d}.png")


def weights_of(backbone):
    return {key: tensor.clone() for key, tensor in backbone.network.state_dict().items()}


def learned_by(pruned):
    return {key: tensor.clone() for key, tensor in pruned.predictors.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def make_task(backbone, folder, config, *, labels=None, **options):
    """A task of predictor training on all images of a folder."""
    sources = find_images(folder)
    training, held_out = split_held_out(len(sources), config.held_out)
    plan = make_plan(backbone.depth, keep=0.5, scorer=None)
    chosen = {"logits": False, "unfreeze": False} | options
    student = MaskedStudent(backbone, plan, config, **chosen)
    images = TrainingImages(sources, labels, training, held_out, (32, 32))
    return PredictorTask(student, images, config, freeze_steps=0, warmup_steps=0, device=CPU)


class Killed(BaseException):
    """Not caught by anything but the test."""


def interrupt(monkeypatch, kind, stop, train):
    """Begin a training that is killed when it loads the images of a step."""
    load_batch = kind.load_batch

    def killed(self, images, step):
        if step == stop:
            raise Killed
        return load_batch(self, images, step)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(kind, "load_batch", killed)
        train()
