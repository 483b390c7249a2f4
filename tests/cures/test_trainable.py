"""Which weights train: parts, low-rank factors, their learning rates."""

import copy
import dataclasses

import pytest
import torch

import clearvit as cv
from clearvit.cures.config import CureConfig
from clearvit.cures.registers import fold_class_position, split_class_position, with_registers
from clearvit.cures.trainable import param_groups, parameters_of, unfreeze
from clearvit.errors import ModelError
from clearvit.training.low_rank import add_factors, linear_layers, merge_factors
from tests.conftest import tiny_network

PUBLISHED = ("registers", "positions", "patches", "last")


@pytest.fixture
def student(tiny):
    return with_registers(tiny, torch.randn(2, 24))


def tokens(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator)


def test_the_published_choice(student):
    names = unfreeze(student, CureConfig(unfreeze=PUBLISHED))
    assert {name.split(".")[0] for name in names} == {
        *("reg_token", "pos_embed", "patch_embed", "blocks")
    }
    assert all(n.startswith("blocks.2.") for n in names if n.startswith("blocks"))
    assert {n for n, p in student.network.named_parameters() if p.requires_grad} == names


@pytest.mark.parametrize(
    ("part", "blocks"),
    [("last", {"2"}), ("last-2", {"1", "2"}), ("last-4", {"0", "1", "2"})],
)
def test_last_blocks(student, part, blocks):
    assert {name.split(".")[1] for name in parameters_of(student, part)} == blocks


def test_all_is_all_but_the_head(student):
    names = {n for n, _ in student.network.named_parameters() if not n.startswith("head")}
    assert parameters_of(student, "all") == names


@pytest.mark.parametrize("part", ["lst", "last-0"])
def test_parts_that_do_not_exist_name_those_that_do(student, part):
    with pytest.raises(ModelError, match=f"no part '{part}'.*registers, positions"):
        parameters_of(student, part)


def test_decay_and_rates(student):
    config = CureConfig(unfreeze=("all",), lr=4.0, lr_scale=(0.25, 0.5, 0.75), weight_decay=0.01)
    unfreeze(student, config)
    found = {}
    for group in param_groups(student.network, config):
        for parameter in group["params"]:
            found[id(parameter)] = (group["lr"], group["weight_decay"])
    rates = {"reg_token": 1.0, "pos_embed": 2.0, "patch_embed": 3.0}
    for name, parameter in student.network.named_parameters():
        rate, decay = found[id(parameter)]
        assert rate == rates.get(name.split(".")[0], 4.0)
        assert decay == (0.01 if name.endswith("weight") and parameter.ndim > 1 else 0.0)
    everything = dataclasses.replace(config, decay_all=True)
    assert {g["weight_decay"] for g in param_groups(student.network, everything)} == {0.01}


def test_the_class_position_trains_as_a_row_of_the_table(tiny, student):
    """One AdamW step on the split token equals one on a table with a row for the class token."""
    pixels = tokens(2, 3, 32, 32)
    before = student.tokens(pixels).patches
    split_class_position(student.network, tiny.network)
    assert torch.equal(student.tokens(pixels).patches, before)
    names = unfreeze(student, CureConfig(unfreeze=("positions",)))
    assert names == {"pos_embed", "parametrizations.cls_token.0.position"}
    table = tiny.network.pos_embed.detach().clone()
    config = CureConfig(
        unfreeze=("positions",),
        decay_all=True,
        weight_decay=0.1,
        lr=0.01,
        lr_scale=(1.0, 1.0, 1.0),
    )
    optimizer = torch.optim.AdamW(param_groups(student.network, config))
    student.forward(pixels).patches.square().sum().backward()
    gradient = dict(student.network.named_parameters())[
        "parametrizations.cls_token.0.position"
    ].grad.clone()
    optimizer.step()
    fold_class_position(student.network)
    step = 0.01 * gradient / (gradient.abs() + 1e-8)  # the first step of Adam
    row = table[:, :1] * (1 - 0.01 * 0.1) - step
    expected = tiny.network.cls_token.detach() + row
    assert torch.allclose(student.network.cls_token, expected, atol=1e-6)
    assert {n for n, _ in student.network.named_parameters()} >= {"cls_token", "pos_embed"}


# --- low-rank factors ---------------------------------------------------------------------------


def randomize_factors(network):
    """Give every factor values, as a training does."""
    rng = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("low_rank_up"):
                parameter.copy_(0.05 * torch.randn(parameter.shape, generator=rng))


@pytest.mark.parametrize("kind", ["vit", "eva", "clip"])
def test_factors_change_nothing_at_first_and_stay_when_they_are_merged(kind):
    backbone = backbone_of(kind)
    pixels = tokens(2, 3, 32, 32)
    names = set(backbone.network.state_dict())
    before = backbone.tokens(pixels).patches
    add_factors(backbone, 4, seed=0)
    assert torch.equal(backbone.tokens(pixels).patches, before)
    randomize_factors(backbone.network)
    changed = backbone.tokens(pixels).patches
    assert not torch.allclose(changed, before, atol=1e-3)
    factors = merge_factors(backbone.network)
    assert torch.allclose(backbone.tokens(pixels).patches, changed, atol=1e-4)
    assert set(backbone.network.state_dict()) == names
    assert all(up.shape[1] == down.shape[0] == 4 for up, down in factors.values())
    assert not any(layer._forward_hooks for layer in backbone.network.modules())


def backbone_of(kind):
    from clearvit.backbones.clip_heads import dense_clip

    if kind == "eva":  # its qkv is read without being called, with biases of its own
        options = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
        network = __import__("timm").create_model("eva02_tiny_patch14_224", **options)
        return cv.load(network.eval())
    plain = cv.load(copy.deepcopy(tiny_network(num_classes=20, global_pool="token")))
    return dense_clip(plain, "maskclip") if kind == "clip" else plain


def test_every_factor_gets_a_gradient():
    for kind in ("vit", "eva"):
        backbone = backbone_of(kind)
        names = unfreeze(backbone, CureConfig(rank=3))
        randomize_factors(backbone.network)
        backbone.forward(tokens(1, 3, 32, 32)).patches.square().sum().backward()
        own = dict(backbone.network.named_parameters())
        factors = [name for name in names if "low_rank" in name]
        assert len(factors) == 2 * len(list(linear_layers(backbone)))
        assert all(own[name].grad.abs().sum() > 0 for name in factors)


def test_the_default_trains_factors_norms_biases_positions_and_registers(student):
    names = unfreeze(student, CureConfig())
    matrices = [n for n in names if n.startswith("blocks") and n.endswith("weight")]
    assert all("norm" in name for name in matrices)
    assert {"reg_token", "pos_embed", "norm.weight", "blocks.0.attn.qkv.bias"} <= names
    assert "cls_token" not in names and "patch_embed.proj.weight" not in names
    rates = {
        group["name"]: group["lr"] for group in param_groups(student.network, CureConfig(lr=1.0))
    }
    assert rates["blocks"] == 1.0 > rates["norms"] > rates["positions"] > 0


def test_the_rate_is_that_of_what_trains(student):
    for parts, rate in ((("low-rank",), 2e-4), (("all",), 1e-5)):
        other = copy.deepcopy(student)
        config = CureConfig(unfreeze=parts)
        unfreeze(other, config)
        rates = [g["lr"] for g in param_groups(other.network, config) if g["name"] == "blocks"]
        assert set(rates) == {rate}


def test_blocks_behind_the_layer_get_no_factors(student):
    student.depth = 2
    names = {name for name, _ in linear_layers(student)}
    assert names and not any(name.startswith("blocks.2.") for name in names)
