import pytest
import timm
import torch

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.cures.test_time import test_time as moved_at_test_time
from clearvit.demo.photos import packaged_photos
from clearvit.errors import ModelError
from tests.conftest import tiny_network


@pytest.fixture(scope="module")
def base():
    network = tiny_network(img_size=64, depth=4, init_values=0.1)
    torch.nn.init.normal_(network.pos_embed)  # a trained network hears where a patch is
    return load(network)


@pytest.fixture(scope="module")
def pixels():
    return torch.randn(24, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def test_one_unit_is_rewired_and_the_original_left_as_it_was(base, pixels):
    before = {name: value.clone() for name, value in base.network.state_dict().items()}
    sick, _ = cv.testing.wired(base, pixels, 0.05, block=1)
    after = sick.network.state_dict()
    assert all(torch.equal(before[n], v) for n, v in base.network.state_dict().items())
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    mlp = "blocks.1.mlp."
    assert changed == {mlp + "fc1.weight", mlp + "fc1.bias", mlp + "fc2.weight"}
    rows = (before[mlp + "fc1.weight"] != after[mlp + "fc1.weight"]).any(1)
    columns = (before[mlp + "fc2.weight"] != after[mlp + "fc2.weight"]).any(0)
    assert rows.sum() == 1 and torch.equal(rows, columns)


def test_artifacts_are_long_rare_and_begin_at_the_block(base, pixels):
    sick, mask = cv.testing.wired(base, pixels, 0.05, block=1)
    places = mask(pixels)
    assert 0.01 < places.float().mean() <= 0.06
    tokens = sick.tokens(pixels, layers=[0, 1], norm=False)
    clean = base.tokens(pixels, layers=[0, 1], norm=False)
    assert torch.equal(tokens.layers[0].patches, clean.layers[0].patches)
    typical = clean.layers[1].norms.median()
    assert 5 < tokens.layers[1].norms[places].mean() / typical < 16
    assert clean.layers[1].norms.max() < 3 * typical


def test_places_move_when_the_picture_is_shifted(base, pixels):
    _, mask = cv.testing.wired(base, pixels, 0.1, block=1)
    here = mask(pixels).unflatten(1, (8, 8))
    there = mask(pixels.roll((16, 8), (2, 3))).unflatten(1, (8, 8)).roll((-2, -1), (1, 2))
    both = (here & there).sum() / here.sum()
    assert both < 0.5


def test_bad_requests_are_refused(base, pixels):
    with pytest.raises(ModelError, match=r"fraction in \(0, 0.5\]"):
        cv.testing.wired(base, pixels, 0.0)
    gated = load(
        timm.create_model(
            "vit_giant_patch14_reg4_dinov2", img_size=28, embed_dim=24, depth=2, num_heads=3
        )
    )
    with pytest.raises(ModelError, match="two linear layers"):
        cv.testing.wired(gated, torch.randn(1, 3, 28, 28))


@pytest.mark.slow
def test_the_test_time_cure_finds_the_unit(demo_backbone):
    photos = packaged_photos()
    base = demo_backbone.resized(224)
    sick, mask = cv.testing.wired(base, photos, block=3)
    cured = moved_at_test_time(sick, photos)
    block, unit = (int(word) for word in sick.name.split()[-3::2])
    assert unit in cured.neurons[block].tolist()
    places = mask(photos)
    truth = base.tokens(photos).patches[places]
    was = torch.cosine_similarity(sick.tokens(photos).patches[places], truth, dim=-1).mean()
    now = torch.cosine_similarity(cured.tokens(photos).patches[places], truth, dim=-1).mean()
    assert 1 - now < 0.2 * (1 - was)
