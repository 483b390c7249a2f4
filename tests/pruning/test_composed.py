"""prune(cure(x)): registers survive every stage, and every verb takes the result."""

import pytest
import torch

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.comparison.config import CompareConfig
from clearvit.cures.registers import with_registers
from clearvit.pruning.config import SCORERS
from clearvit.pruning.prune import prune
from tests.conftest import tiny_network
from tests.helpers.made_data import voc_masks
from tests.helpers.photos import soft_photos

REGISTERS = 3


@pytest.fixture(scope="module")
def cured():
    torch.manual_seed(0)
    return with_registers(load(tiny_network(depth=4)), torch.randn(REGISTERS, 24))


@pytest.fixture(scope="module")
def pruned(cured):
    return prune(cured, keep=0.6)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return soft_photos(tmp_path_factory.mktemp("photos"), 8)


@pytest.mark.parametrize("scorer", SCORERS)
def test_registers_enter_every_block_as_they_left_the_one_before(cured, scorer):
    entered, left = [], []
    handles = [
        handle
        for block in cured.network.blocks
        for handle in (
            block.register_forward_pre_hook(lambda _m, given: entered.append(given[0])),
            block.register_forward_hook(lambda _m, _g, out: left.append(out)),
        )
    ]
    try:
        tokens = prune(cured, keep=0.3, scorer=scorer).tokens(torch.randn(2, 3, 40, 64))
    finally:
        for handle in handles:
            handle.remove()
    prefix = 1 + REGISTERS
    assert [x.shape[1] - prefix for x in entered] == [40, 12, 3, 1]
    for before, after in zip(left, entered[1:], strict=False):
        assert torch.equal(before[:, :prefix], after[:, :prefix])
    normed = cured.network.norm(left[-1])
    assert torch.equal(tokens.registers, normed[:, 1:prefix])
    assert torch.equal(tokens.cls, normed[:, 0])


def test_large_and_oblong_images(cured):
    for size in ((384, 384), (384, 128), (8, 8)):
        tokens = prune(cured, keep=0.5).tokens(torch.randn(1, 3, *size))
        patches = size[0] // 8 * (size[1] // 8)
        assert tokens.patches.shape == (1, patches, 24) and tokens.patches.isfinite().all()
        assert int(tokens.kept.sum()) == max(1, patches // 8)


VERBS = {
    "save": lambda b, photos, out: cv.load(f"dir:{cv.save(b, out)}").tokens(photos),
    "save_tokens": lambda b, photos, out: cv.save_tokens(b, photos, out=out),
    "look": lambda b, photos, out: cv.look(b, photos / "0.png", out=out),
    "diagnose": lambda b, photos, out: cv.diagnose(b, photos),
    "denoise": lambda b, photos, out: cv.denoise(b, photos / "0.png", views=3),
    "discover": lambda b, photos, out: cv.discover(b, photos / "0.png"),
    "index": lambda b, photos, out: cv.Index.build(b, photos, out=out).search(photos / "1.png"),
    "compare": lambda b, photos, out: cv.compare(
        [b.dense, b],
        photos,
        config=CompareConfig(
            limit=3, shifted_images=1, reference_images=1, views=2, rounds=1, shown_images=1
        ),
    ),
    "evaluate": lambda b, photos, out: cv.evaluate(
        b, task="segmentation", data=voc_masks(out), size=32, limit=2
    ),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_takes_it(pruned, photos, tmp_path, verb):
    result = VERBS[verb](pruned, photos, tmp_path / "out")
    assert result is not None
    if isinstance(result, cv.Tokens):
        assert result.registers.shape[1] == REGISTERS and result.patches.isfinite().all()


def test_a_dense_index_is_asked_by_the_pruned_model(cured, pruned, photos, tmp_path):
    cv.Index.build(cured, photos, out=tmp_path / "index")
    hits = cv.Index.open(tmp_path / "index", pruned).search(photos / "4.png", k=8)
    assert hits[0].name == "4.png"
