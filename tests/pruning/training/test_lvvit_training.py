"""LV-ViT under DynamicViT: the official kept sets, losses, gradients and running statistics."""

import pytest
import torch

from clearvit.pruning import import_dynamicvit
from clearvit.pruning.config import PruneConfig
from clearvit.pruning.prune import prune
from clearvit.pruning.pruning_plan import make_plan
from clearvit.pruning.training import losses
from clearvit.pruning.training.masked_student import MaskedStudent, TrainingBatch
from clearvit.pruning.training.predictor_task import PredictorTask
from tests.helpers.golden_lvvit import KEEP, STAGES, official_outputs, save_checkpoint
from tests.helpers.made_training import interrupt, learned_by, paint, same, weights_of


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    path = tmp_path_factory.mktemp("lvvit") / "pruned.safetensors"
    return import_dynamicvit(save_checkpoint(path), keep=KEEP)


def test_a_pruned_checkpoint_gives_the_official_outputs(pruned):
    official = official_outputs()
    assert pruned.plan.stages == STAGES
    tokens = pruned.tokens(official["input"])
    for number, stage in enumerate(STAGES):
        kept = torch.stack([mask.nonzero()[:, 0] for mask in tokens.kept_stages[stage]])
        assert kept.tolist() == official[f"eval_kept_{number}"].tolist()
    order = official["eval_by_score"].long()[..., None].expand(-1, -1, 24)
    final = torch.cat([tokens.prefix, tokens.patches.gather(1, order)], 1)
    assert (final - official["eval_tokens"]).abs().max() <= 1e-4
    with torch.no_grad():
        logits = pruned.network.forward_head(torch.cat([tokens.prefix, tokens.patches], 1))
    assert (logits - official["eval_logits"]).abs().max() <= 1e-4


def student_of(pruned, **changes):
    config = PruneConfig.build({"preset": "dynamicvit", **changes})
    plan = make_plan(pruned.depth, keep=KEEP, scorer=None)
    student = MaskedStudent(pruned.dense, plan, config, logits=True, unfreeze=True)
    student.predictors.load_state_dict(pruned.predictors.state_dict())
    return student


def test_one_training_step_is_the_official_one(pruned):
    official = official_outputs()
    student = student_of(pruned)
    batch = TrainingBatch(official["input"], official["step_noise"], official["step_labels"])
    found = student(batch)
    total, labels, ratio, logits, patches = official["step_loss"].tolist()
    expected = {"loss": total, "labels": labels, "ratio": ratio / 3, "logits": logits}
    for name, value in (expected | {"tokens": patches}).items():
        assert abs(float(found[name].detach()) - value) <= 1e-4, name
    found["loss"].backward()
    learned = dict(student.predictors.named_parameters(prefix="score_predictor"))
    parameters = learned | dict(student.network.named_parameters())
    for key in [k for k in official if k.startswith("step_grad.")]:
        gradient, wanted = parameters[key.removeprefix("step_grad.")].grad, official[key]
        within = 1e-2 if "conv1" in key else 1e-3  # one pixel may fall on the other side of ReLU
        assert (gradient - wanted).abs().max() <= within * wanted.abs().max(), key
    after = student.network.state_dict()
    for key in [k for k in official if k.startswith("step_after.")]:
        assert (after[key.removeprefix("step_after.")] - official[key]).abs().max() <= 1e-5
    assert not student.network.patch_embed.bn1.training  # only inside the forward pass
    assert pruned.network.state_dict()["cls_token"].grad is None


def test_frozen_batch_norms_stay_as_they_were(pruned):
    official = official_outputs()
    student = student_of(pruned, batch_statistics=False)
    before = student.network.patch_embed.bn2.running_mean.clone()
    batch = TrainingBatch(official["input"], official["step_noise"], official["step_labels"])
    found = student(batch)
    assert torch.equal(student.network.patch_embed.bn2.running_mean, before)
    assert abs(float(found["loss"].detach()) - float(official["step_loss"][0])) > 1e-3
    assert student.moving_buffers == {}


def test_the_loss_of_patches_counts_kept_ones_only():
    ours, theirs = torch.randn(2, 6, 4), torch.randn(2, 6, 4)
    kept = torch.rand(2, 6) < 0.5
    p, q = theirs[kept].softmax(-1), ours[kept].softmax(-1)
    expected = (p * (p.log() - q.log())).sum() / kept.sum()
    assert torch.allclose(losses.patch_kl(ours, theirs, kept), expected, atol=1e-6)
    assert losses.patch_kl(ours, theirs, torch.zeros_like(kept)) == 0


def test_a_run_resumes_to_the_same_bits_with_its_running_statistics(pruned, tmp_path, monkeypatch):
    for number in range(5):
        paint(tmp_path / "classes" / f"{number}", 2, seed=number)

    def train(name):
        return prune(
            pruned.dense,
            tmp_path / "classes",
            out=tmp_path / name,
            preset="dynamicvit",
            size=48,
            batch=4,
            epochs=7,
            lr=1.0,
        )

    whole = train("whole")
    interrupt(monkeypatch, PredictorTask, 9, lambda: train("cut"))
    resumed = train("cut")
    assert same(learned_by(resumed), learned_by(whole))
    assert same(weights_of(resumed), weights_of(whole))
    name = "patch_embed.bn1.running_mean"
    assert not torch.equal(weights_of(whole)[name], weights_of(pruned.dense)[name])
