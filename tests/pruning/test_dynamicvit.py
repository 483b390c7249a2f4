"""Official DynamicViT checkpoints give the official kept sets, scores, tokens and logits."""

import argparse

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from clearvit.errors import ModelError
from clearvit.pruning import import_dynamicvit
from clearvit.pruning.modules import Predictor, Predictors
from tests.conftest import tiny_network
from tests.helpers import GOLDEN
from tests.helpers.golden_dynamicvit import KEEP, STAGES, official_outputs, save_checkpoint

SMALL = GOLDEN / "dynamicvit_predictor.npz"


def test_the_predictor_is_the_official_one():
    golden = {key: torch.from_numpy(array) for key, array in np.load(SMALL).items()}
    predictor = Predictor(96)
    weights = {k.removeprefix("weights."): t for k, t in golden.items() if k.startswith("weights.")}
    predictor.load_state_dict(weights, strict=True)
    with torch.no_grad():
        scores = predictor(golden["patches"])
    assert (scores - golden["scores"]).abs().max() <= 1e-4


def test_the_global_half_averages_over_the_kept_only():
    predictor = Predictor(8)
    for parameter in predictor.parameters():
        torch.nn.init.normal_(parameter)
    patches, decision = torch.randn(1, 6, 8), torch.tensor([[1.0, 0, 1, 1, 0, 0]])
    with torch.no_grad():
        kept = predictor(patches[:, decision[0].bool()])
        masked = predictor(patches, decision)
    assert torch.allclose(masked[:, decision[0].bool()], kept, atol=1e-6)


def test_parameters_are_as_many_as_the_paper_has():
    assert sum(p.numel() for p in Predictors(384, 3).parameters()) == 723_750


def test_a_checkpoint_gives_the_official_outputs(tmp_path):
    official = official_outputs()
    pruned = import_dynamicvit(save_checkpoint(tmp_path / "model.safetensors"), keep=KEEP)
    assert pruned.plan.stages == STAGES
    tokens = pruned.tokens(official["input"])
    for number, stage in enumerate(STAGES):
        kept = torch.stack([mask.nonzero()[:, 0] for mask in tokens.kept_stages[stage]])
        assert kept.tolist() == official[f"eval_kept_{number}"].tolist()
    order = official["eval_kept_by_score_2"].long()
    patches = tokens.patches.gather(1, order[..., None].expand(-1, -1, 48))
    final = torch.cat([tokens.prefix, patches], 1)
    assert (final - official["eval_tokens"]).abs().max() <= 1e-4
    logits = pruned.network.head(tokens.cls).detach()
    assert (logits - official["eval_logits"]).abs().max() <= 1e-4
    dense = pruned.dense.tokens(official["input"]).patches
    assert (dense - official["dense_tokens"]).abs().max() <= 1e-4


def checkpoint():
    """A tiny network with two predictors under the official names."""
    network = tiny_network(num_classes=5)
    state = network.state_dict()
    learned = Predictors(24, 2).state_dict()
    state |= {f"score_predictor.{key}": t for key, t in learned.items()}
    return state


def test_pickled_checkpoints_with_options_are_read_without_running_code(tmp_path):
    state = checkpoint()
    torch.save({"model": state, "args": argparse.Namespace(lr=1)}, tmp_path / "official.pth")
    save_file(state, tmp_path / "same.safetensors")
    one = import_dynamicvit(tmp_path / "official.pth", keep=0.5, heads=3)
    other = import_dynamicvit(tmp_path / "same.safetensors", keep=[0.5, 0.25], heads=3)
    assert one.plan == other.plan and one.plan.stages == (1, 2)
    pixels = torch.randn(2, 3, 32, 48)
    assert torch.equal(one.tokens(pixels).patches, other.tokens(pixels).patches)
    assert one.network.num_classes == 5 and one.preprocessing.size == (32, 32)
    for key, tensor in load_file(tmp_path / "same.safetensors").items():
        if key.startswith("score_predictor."):
            loaded = one.predictors.state_dict()[key.removeprefix("score_predictor.")]
            assert torch.equal(loaded, tensor)


class Evil:
    def __reduce__(self):
        return (print, ("code of a checkpoint ran",))


def test_bad_checkpoints_are_refused(tmp_path, capsys):
    with pytest.raises(ModelError, match="there is no checkpoint"):
        import_dynamicvit(tmp_path / "none.pth")
    torch.save({"model": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(ModelError, match="could run code"):
        import_dynamicvit(tmp_path / "evil.pth")
    assert "ran" not in capsys.readouterr().out
    (tmp_path / "text.safetensors").write_text("nothing")
    with pytest.raises(ModelError, match="cannot read"):
        import_dynamicvit(tmp_path / "text.safetensors")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ModelError, match="holds no tensors"):
        import_dynamicvit(tmp_path / "list.pth")
    state = checkpoint()
    plain = {key: t for key, t in state.items() if "predictor" not in key}
    save_file(plain, tmp_path / "plain.safetensors")
    with pytest.raises(ModelError, match=r"it has no score_predictor\.\*"):
        import_dynamicvit(tmp_path / "plain.safetensors")
    lv = {key: t for key, t in state.items() if not key.startswith("patch_embed.proj")}
    save_file(lv, tmp_path / "lv.safetensors")
    with pytest.raises(ModelError, match=r"patch_embed\.proj\.weight"):
        import_dynamicvit(tmp_path / "lv.safetensors")
    save_file(state | {"blocks.0.extra": torch.ones(1)}, tmp_path / "extra.safetensors")
    with pytest.raises(ModelError, match=r"unexpected blocks\.0\.extra"):
        import_dynamicvit(tmp_path / "extra.safetensors")
    save_file(state, tmp_path / "good.safetensors")
    with pytest.raises(ModelError, match="must divide the 24 channels"):
        import_dynamicvit(tmp_path / "good.safetensors", heads=5)
    with pytest.raises(ModelError, match="one for each"):
        import_dynamicvit(tmp_path / "good.safetensors", keep=KEEP)
