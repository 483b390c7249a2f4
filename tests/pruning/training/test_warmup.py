"""Predictor warm-up: predictors learn, from dense passes alone, what later blocks attend to."""

import pytest
import torch

from clearvit.backbones.load import load
from clearvit.pruning.config import PruneConfig
from clearvit.pruning.modules import Predictors
from clearvit.pruning.pruning_plan import make_plan
from clearvit.pruning.training.masked_student import MaskedStudent, TrainingBatch
from clearvit.pruning.training.warmup import warmup_loss
from tests.conftest import tiny_network

PIXELS = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def plan_of(backbone, keep=0.5, stages=(1, 2)):
    return make_plan(backbone.depth, keep=keep, stages=stages, scorer=None)


class Knowing(Predictors):
    """Say with certainty what was wanted: `chosen` has the kept patches (B, N) of each stage."""

    def __init__(self, chosen):
        torch.nn.ModuleList.__init__(self)
        self.chosen = chosen

    def __getitem__(self, stage):
        right = torch.stack([self.chosen[stage], ~self.chosen[stage]], dim=-1)
        return lambda patches, decision: torch.where(right, 0.0, -1000.0)


@torch.no_grad()
def attended(backbone, plan):
    """Which patches each stage should keep, from attention matrices of the whole network."""
    blocks = range(backbone.depth)
    seen = backbone.forward(PIXELS, layers=blocks, capture="attention")
    rows = [seen.attention[b][:, :, 0, 1:].mean(1) for b in blocks]
    kept = torch.ones_like(rows[0], dtype=torch.bool)
    found = []
    for stage, count in zip(plan.stages, plan.counts(rows[0].shape[1]), strict=True):
        later = torch.stack(rows[stage:]).mean(0)
        for image in range(len(later)):
            candidates = kept[image].nonzero()[:, 0].tolist()
            ranked = sorted(candidates, key=lambda patch: -float(later[image, patch]))
            kept[image, ranked[count:]] = False
        found.append(kept.clone())
    return found


def test_the_target_is_the_attention_of_all_later_blocks():
    backbone = load(tiny_network())
    plan = plan_of(backbone)
    right = attended(backbone, plan)
    assert float(warmup_loss(backbone, Knowing(right), plan, PIXELS)) == 0
    swapped = [right[0], right[1].roll(1, dims=1)]
    assert float(warmup_loss(backbone, Knowing(swapped), plan, PIXELS)) > 10


def test_only_predictors_learn_and_they_do():
    backbone = load(tiny_network())
    plan = plan_of(backbone)
    student = MaskedStudent(backbone, plan, PruneConfig(), logits=False, unfreeze=True)
    batch = TrainingBatch(PIXELS, torch.zeros(3, 2, 16, 2), warmup=True)
    first = student(batch)
    first["loss"].backward()
    assert float(first["loss"].detach()) == pytest.approx(0.693, abs=0.01)  # a coin
    assert all(float(p.grad.abs().max()) > 0 for p in student.predictors.parameters() if p.ndim > 1)
    moved = [p.grad for p in student.network.parameters() if p.requires_grad]
    assert moved and all(not g.any() for g in moved)  # processes find a gradient everywhere
    optimizer = torch.optim.AdamW(student.predictors.parameters(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        loss = student(batch)["loss"]
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.35


@pytest.mark.parametrize(
    "arguments",
    [{"class_token": False, "global_pool": "avg"}, {"reg_tokens": 2}, {"qk_norm": True}],
)
def test_other_networks_warm_up_too(arguments):
    backbone = load(tiny_network(**arguments))
    plan = plan_of(backbone, keep=[0.6], stages=[2])
    predictors = Predictors(backbone.width, 1)
    loss = warmup_loss(backbone, predictors, plan, PIXELS)
    assert float(loss.detach()) == pytest.approx(0.68, abs=0.05)
