import pytest
import timm
import torch

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.errors import ModelError
from clearvit.testing.planted import KINDS
from tests.conftest import tiny_network


@pytest.fixture(scope="module")
def base():
    return load(tiny_network(img_size=64, reg_tokens=2, no_embed_class=True))


def test_the_original_is_left_as_it_was(base):
    pixels = torch.randn(2, 3, 64, 64)
    before = base.tokens(pixels).patches
    sick, _ = cv.testing.planted(base, "high-norm", 0.05, 0)
    assert not torch.equal(sick.tokens(pixels).patches, before)
    assert torch.equal(base.tokens(pixels).patches, before)


@pytest.mark.parametrize(("kind", "length"), [("high-norm", 8.0), ("low-norm", 0.1)])
def test_norms_are_as_promised_from_the_given_block_on(base, kind, length):
    pixels = torch.randn(3, 3, 64, 64)
    sick, mask = cv.testing.planted(base, kind, 0.05, 0, block=1)
    tokens = sick.tokens(pixels, layers=[0, 1, 2], norm=False)
    places = mask(pixels)
    assert places.shape == (3, 64) and (places.sum(1) == 3).all()
    clean = base.tokens(pixels, layers=[0], norm=False)
    assert torch.equal(tokens.layers[0].patches, clean.layers[0].patches)
    for block in (1, 2):
        norms = tokens.layers[block].norms
        healthy = norms.masked_fill(places, float("nan")).nanmedian(1, keepdim=True).values
        ratio = (norms / healthy)[places]
        assert ratio.min() > 0.8 * length and ratio.max() < 1.25 * length


def test_positional_artifacts_sit_at_the_same_places_and_have_a_usual_length(base):
    pixels = torch.randn(4, 3, 64, 64)
    sick, mask = cv.testing.planted(base, "positional", 0.05, 0, block=2)
    places = mask(pixels)
    assert (places == places[0]).all()
    norms = sick.tokens(pixels, norm=False).norms
    typical = base.tokens(pixels, norm=False).norms.median(1, keepdim=True).values
    assert torch.allclose(norms[places], typical.expand(4, 64)[places], rtol=1e-3)
    clean = base.tokens(pixels, norm=False).patches
    assert torch.equal(sick.tokens(pixels, norm=False).patches[~places], clean[~places])


@pytest.mark.parametrize("kind", KINDS)
def test_the_mask_does_not_depend_on_the_batch(base, kind):
    pixels = torch.randn(5, 3, 64, 64)
    sick, mask = cv.testing.planted(base, kind, 0.1, 3)
    alone = torch.cat([mask(pixels[i : i + 1]) for i in range(5)])
    assert torch.equal(mask(pixels), alone)
    whole = sick.tokens(pixels, norm=False).patches
    apart = torch.cat([sick.tokens(pixels[i : i + 1], norm=False).patches for i in range(5)])
    assert torch.allclose(whole, apart, atol=1e-4)


def test_places_differ_by_picture_and_by_seed(base):
    pixels = torch.randn(2, 3, 64, 64)
    _, first = cv.testing.planted(base, "high-norm", 0.1, 0)
    _, second = cv.testing.planted(base, "high-norm", 0.1, 1)
    assert not torch.equal(first(pixels)[0], first(pixels)[1])
    assert not torch.equal(first(pixels), second(pixels))


def test_other_sizes_and_prefix_tokens(base):
    pixels = torch.randn(1, 3, 40, 72)
    sick, mask = cv.testing.planted(base, "high-norm", 0.02, 0)
    tokens = sick.tokens(pixels, norm=False)
    assert mask(pixels).shape == (1, 45)
    assert tokens.registers.shape[1] == 2
    assert mask(pixels, size=64).shape == (1, 64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("highnorm", 0.1), "Closest: high-norm"),
        (("high-norm", 0), "fraction in"),
        (("low-norm", 0.6), "fraction"),
    ],
)
def test_wrong_arguments_are_named(base, arguments, message):
    with pytest.raises(ModelError, match=message):
        cv.testing.planted(base, *arguments)


def test_grid_backbones_are_refused():
    with pytest.raises(ModelError, match="grid-only"):
        cv.testing.planted(load(timm.create_model("resnet18")), "high-norm")


def test_fingerprints_differ_by_fault(base):
    prints = {
        cv.testing.planted(base, kind, 0.1, seed).backbone.fingerprint()
        for kind in KINDS
        for seed in (0, 1)
    }
    assert len(prints | {base.fingerprint()}) == 7


def test_later_blocks_may_be_left_to_repair_what_they_get(tiny):
    pixels = torch.randn(2, 3, 32, 32)
    sick, mask = cv.testing.planted(tiny, "high-norm", 0.1, block=0, until=1)
    places = mask(pixels)
    tokens = sick.tokens(pixels, layers=[0, 1, 2], norm=False)
    for block in (0, 1):
        norms = tokens.layers[block].norms
        assert (norms[places].min() > 4 * norms.median()).item()
    third = torch.cat([tokens.layers[1].prefix, tokens.layers[1].patches], 1)
    with torch.no_grad():
        untouched = tiny.run_block(2, third, None)[:, 1:]
    assert torch.allclose(tokens.layers[2].patches, untouched, atol=1e-5)


def test_what_is_not_lossy_keeps_the_content_of_the_patch(tiny):
    pixels = torch.randn(2, 3, 32, 32)
    clean = tiny.tokens(pixels, layers=[1], norm=False).layers[1].patches
    sick, mask = cv.testing.planted(tiny, "high-norm", 0.2, block=1, until=1, lossy=False)
    places = mask(pixels)
    added = sick.tokens(pixels, layers=[1], norm=False).layers[1].patches - clean
    assert torch.equal(added[~places], torch.zeros_like(added[~places]))
    for mine, where in zip(added, places, strict=True):
        torch.testing.assert_close(mine[where], mine[where][:1].expand(int(where.sum()), -1))
    shrunk, mask = cv.testing.planted(tiny, "low-norm", 0.2, block=1, until=1, lossy=False)
    patches = shrunk.tokens(pixels, layers=[1], norm=False).layers[1].patches
    cosine = torch.cosine_similarity(patches, clean, dim=-1)
    torch.testing.assert_close(cosine, torch.ones_like(cosine))
