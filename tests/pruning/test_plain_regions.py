"""Plain regions enter as larger patches: which, with what value, and back on the full grid."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.errors import ModelError
from clearvit.pruning import macs
from clearvit.pruning.plain_regions import embed_cells, select_plain
from clearvit.pruning.prune import prune
from clearvit.pruning.pruning_plan import make_plan
from tests.conftest import tiny_network
from tests.helpers.made_pruned import BACKBONES

PATCH = 8


@pytest.fixture(scope="module")
def backbone():
    return load(tiny_network(depth=3, reg_tokens=1))


def half_plain(height, width, seed=0):
    """Noise on the left of images (1, 3, h, w), one color on the right."""
    pixels = torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(seed))
    pixels[..., width // 2 :] = 0.3
    return pixels


def test_the_plainest_cells_are_chosen(backbone):
    pixels = half_plain(8 * PATCH, 8 * PATCH)
    tokens = prune(backbone, keep=0.625, scorer="plain").tokens(pixels)
    kept = tokens.kept[0].reshape(8, 8)
    assert kept[:, :4].all()  # noise stays fine
    expected = torch.zeros(8, 4, dtype=torch.bool)
    expected[::2, ::2] = True  # the upper left patch stands for its cell
    assert torch.equal(kept[:, 4:], expected)
    assert torch.equal(tokens.kept_stages[0][0], tokens.kept[0])


def test_variance_is_that_of_pixels():
    pixels = torch.randn(2, 3, 48, 80) * torch.rand(2, 1, 48, 80)
    cells = pixels[:, :, :48, :80].numpy().reshape(2, 3, 3, 16, 5, 16)
    variance = cells.var((3, 5)).mean(1).reshape(2, -1)
    found = select_plain(pixels, (PATCH, PATCH), 6).numpy()
    for image in range(2):
        assert set(found[image]) == set(np.argsort(variance[image])[:6])


def test_what_enters_is_the_image_at_half_its_size(backbone):
    pixels = torch.randn(1, 3, 5 * PATCH, 6 * PATCH)
    with torch.no_grad():
        cells = embed_cells(backbone, pixels, (5, 6))
        sequence = backbone.embed_pixels(pixels).sequence
        fine = backbone.embed_patches(pixels).flatten(1, 2)
    positions = (sequence[:, 2:] - fine).reshape(5, 6, -1)  # of the patches
    for row in range(2):
        for column in range(3):
            area = pixels[:, :, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
            small = area.reshape(1, 3, 8, 2, 8, 2).mean((3, 5))
            with torch.no_grad():
                value = backbone.embed_patches(small)[0, 0, 0]
            place = positions[2 * row : 2 * row + 2, 2 * column : 2 * column + 2].mean((0, 1))
            assert torch.allclose(cells[0, 3 * row + column], value + place, atol=1e-5)


def test_a_region_of_one_color_enters_as_its_own_patch(backbone):
    pixels = torch.full((1, 3, 64, 64), 0.7)
    with torch.no_grad():
        cells = embed_cells(backbone, pixels, (8, 8))
        fine = backbone.embed_pixels(pixels).sequence[:, 2:].reshape(4, 2, 4, 2, -1).mean((1, 3))
    assert torch.allclose(cells, fine.reshape(1, 16, -1), atol=1e-5)


def test_unmerged_patches_keep_their_own_values_and_merged_ones_are_between(backbone):
    pixels = half_plain(8 * PATCH, 8 * PATCH)
    pruned = prune(backbone, keep=0.625, scorer="plain")
    tokens = pruned.tokens(pixels, norm=False)
    grid = tokens.patches[0].reshape(8, 8, -1)
    with torch.no_grad():
        x = pruned._begin(backbone.embed_pixels(pixels).sequence, pixels, (8, 8)).x
        for index in range(backbone.depth):
            x = backbone.run_block(index, x, None)
    short = x[0, 2:]
    assert torch.allclose(grid.reshape(64, -1)[tokens.kept[0]][:4], short[:4], atol=1e-5)
    low, high = short.amin(0) - 1e-5, short.amax(0) + 1e-5
    assert ((grid >= low) & (grid <= high)).all()


@given(st.integers(1, 7), st.integers(1, 7), st.floats(0.25, 1), st.integers(0, 99))
@settings(deadline=None, max_examples=15)
def test_any_grid_and_fraction(height, width, keep, seed):
    backbone = load(tiny_network(depth=2))
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(3, 3, PATCH * height, PATCH * width, generator=generator)
    pruned = prune(backbone, keep=keep, scorer="plain")
    tokens = pruned.tokens(pixels)
    patches = height * width
    count = pruned.plan.plain_count((height, width))
    assert tokens.patches.shape[1] == patches and tokens.kept.sum(1).tolist() == [count] * 3
    reachable = patches - 3 * (height // 2) * (width // 2)
    assert count <= max(int(patches * keep), reachable) and (patches - count) % 3 == 0
    if count == patches:
        assert torch.equal(tokens.patches, backbone.tokens(pixels).patches)
    alone = pruned.tokens(pixels[[2]])
    assert torch.equal(alone.kept[0], tokens.kept[2])
    assert torch.allclose(alone.patches[0], tokens.patches[2], atol=1e-5)


def test_saved_resized_and_captured(backbone, tmp_path):
    pixels = half_plain(64, 48)
    pruned = prune(backbone, keep=0.6, scorer="plain", out=tmp_path / "plain")
    again = cv.load(f"dir:{tmp_path / 'plain'}")
    assert again.plan == pruned.plan
    assert torch.equal(again.tokens(pixels).patches, pruned.tokens(pixels).patches)
    seen = pruned.tokens(pixels, layers=[1], capture=("key", "attention"))
    assert seen.key[1].shape[2] == 2 + 48 and seen.layers[1].patches.shape[1] == 48
    assert torch.allclose(seen.attention[1].sum(-1), torch.ones(()), atol=1e-5)
    assert pruned.with_keep(1.0).tokens(pixels).kept.all()


def test_the_cost_counts_the_second_embedding(backbone):
    dense, merged = macs(backbone, 64), macs(prune(backbone, keep=0.4, scorer="plain"), 64)
    embedding = 64 * 3 * PATCH**2 * backbone.width
    assert merged.scoring == embedding / 4 and merged.network < dense.dense
    assert macs(prune(backbone, keep=1.0, scorer="plain"), 64).total == dense.dense


def test_what_cannot_be_done_is_refused(backbone):
    for options, message in (
        ({"keep": 0.2}, "0.25 to 1"),
        ({"keep": (0.5, 0.4)}, "one fraction"),
        ({"stages": (2,)}, "no stages"),
        ({"fill": "mean"}, "leave fill='mean' out"),
    ):
        with pytest.raises(ModelError, match=message):
            prune(backbone, scorer="plain", **options)
    with pytest.raises(ModelError, match="rotary positions"):
        prune(BACKBONES["rotary, registers"](), scorer="plain")
    assert make_plan(12, keep=0.5, scorer="plain").stages == (0,)
