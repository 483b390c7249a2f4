"""Patch weights of CvT and Swin against plain transcriptions, and through the verbs."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import clearvit as cv
from clearvit.backbones.guarded_timm import timm
from clearvit.backbones.load import load
from clearvit.backbones.sources.staged_attention import BlockAttention
from clearvit.errors import ModelError
from clearvit.retrieval.staged_rollout import drawn_attention, staged_rollout, staged_weights
from tests.helpers import GOLDEN
from tests.helpers.class_folders import class_folders


@pytest.fixture
def cvt(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    stages = {"embed_dim": [8, 16, 24], "num_heads": [1, 2, 3], "depth": [1, 2, 3]}
    transformers.CvtModel(transformers.CvtConfig(**stages)).save_pretrained(tmp_path / "cvt")
    return load(f"hf:{tmp_path / 'cvt'}")


def swin(size=56, window=7):
    torch.manual_seed(0)
    options = {"img_size": size, "window_size": window, "embed_dim": 8, "depths": (1, 1, 1, 2)}
    heads = (1, 1, 2, 2)
    return timm.create_model("swin_tiny_patch4_window7_224", num_heads=heads, **options)


def read(backbone, pixels):
    with torch.no_grad(), backbone.reader() as blocks:
        backbone.forward(pixels)
    return blocks


def test_rollout_through_stages_is_that_of_the_published_code():
    stored = np.load(GOLDEN / "rollout.npz")
    tensors = {
        key: torch.from_numpy(stored[f"cvt.{key}"]) for key in ("stage0", "stage1", "stage2")
    }
    blocks = [
        BlockAttention(tensors["stage0"][None], (8, 8), (8, 8)),
        BlockAttention(tensors["stage1"][None], (8, 8), (8, 8)),
        *(BlockAttention(one[None], (4, 4), (4, 4), 1) for one in tensors["stage2"]),
    ]
    found, grid = staged_rollout(blocks, official=True)
    assert grid == (4, 4)
    np.testing.assert_allclose(found[0], stored["cvt.official_mu_batch1"], atol=1e-6)


def transcribe(blocks, to, official):
    """The spec of the paper's code, block by block, in plain torch."""
    joint = None
    for number, block in enumerate(blocks):
        a = block.weights[0].double()
        a = a.amin(0) if official else a.mean(0)
        if official:
            count = int(0.1 * a.numel())
            a = a.flatten().scatter(0, a.flatten().topk(count, largest=False).indices, 0).view_as(a)
        a = a[block.prefix :, block.prefix :]
        a = F.adaptive_avg_pool2d(a.unflatten(1, block.keys), to).flatten(1)
        a = F.adaptive_avg_pool2d(a.T.unflatten(1, block.queries), to).flatten(1).T
        step = F.normalize(a + torch.eye(len(a)).double(), p=1 if official else 2, dim=1)
        if number == 0:
            joint = step if official else a
        else:
            joint = step @ joint
    mean = joint.mean(0)
    return mean / mean.sum()


@pytest.mark.parametrize("official", [True, False], ids=["code", "paper"])
def test_rollout_of_cvt_is_its_transcription(cvt, official):
    """Queries on 16 x 16 attend to keys on 8 x 8; all maps are averaged to the coarsest, 2 x 2."""
    blocks = read(cvt, torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1)))
    assert [b.queries for b in blocks] == [(16, 16), *[(8, 8)] * 2, *[(4, 4)] * 3]
    assert [b.keys for b in blocks] == [(8, 8), *[(4, 4)] * 2, *[(2, 2)] * 3]
    assert [b.prefix for b in blocks] == [0, 0, 0, 1, 1, 1]
    for block in blocks:
        assert torch.allclose(block.weights.sum(-1), torch.ones(()), atol=1e-5)
    found, grid = staged_rollout(blocks, official=official)
    assert grid == (2, 2)
    torch.testing.assert_close(
        found[0].double(), transcribe(blocks, grid, official), rtol=1e-5, atol=1e-6
    )


def test_attention_of_swin_is_that_of_its_window():
    """At the published size one window covers the last stage: plain softmax of q k' + bias."""
    backbone = load(swin(224))
    pixels = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    entered = []
    block = backbone.network.layers[-1].blocks[-1]
    handle = block.attn.register_forward_pre_hook(lambda module, inputs: entered.append(inputs[0]))
    blocks = read(backbone, pixels)
    handle.remove()
    assert len(blocks) == 2 and blocks[-1].queries == blocks[-1].window == (7, 7)
    q, k, _ = block.attn.qkv(entered[0]).unflatten(2, (3, 2, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    logits = q @ k.transpose(-1, -2) * block.attn.scale + block.attn._get_rel_pos_bias()
    expected = logits.softmax(-1).mean((1, 2))
    torch.testing.assert_close(drawn_attention(blocks[-1]), expected, atol=1e-5, rtol=1e-4)
    weights = staged_weights(blocks, "rollout", (7, 7))
    assert weights.shape == (2, 49) and torch.allclose(weights.sum(1), torch.ones(2))


def test_windows_that_were_shifted_come_back_to_their_place():
    weights = torch.zeros(1, 4, 1, 4, 4)
    weights[0, 0, 0, :, 0] = 1  # all queries of the first window look at its first patch
    weights[0, 1:, 0] = 0.25
    block = BlockAttention(weights, (4, 4), (4, 4), 0, (2, 2), (1, 1))
    drawn = drawn_attention(block).view(4, 4)
    assert int(drawn.argmax()) == 5 and drawn[1, 1] == pytest.approx(0.25)


def test_several_windows_have_attention_and_no_rollout():
    backbone = load(swin(128, 2))
    blocks = read(backbone, torch.randn(1, 3, 128, 128))
    assert blocks[-1].shift == (1, 1) and staged_weights(blocks, "attention", (4, 4)).shape == (
        1,
        16,
    )
    with pytest.raises(ModelError, match="windows cover only parts"):
        staged_weights(blocks, "rollout", (4, 4))


def test_reading_changes_no_token_and_leaves_nothing_behind(cvt):
    pixels = torch.randn(1, 3, 64, 64)
    before = cvt.tokens(pixels).patches
    read(cvt, pixels)
    hooks = [m for m in cvt.network.modules() if m._forward_hooks or m._forward_pre_hooks]
    assert torch.equal(cvt.tokens(pixels).patches, before) and not hooks


@pytest.mark.parametrize("kind", ["attention", "rollout", "rollout-min"])
def test_the_index_keeps_such_weights(cvt, tmp_path, kind):
    images = class_folders(tmp_path / "images", 3, 2)
    options = {"out": tmp_path / kind, "size": 64, "grid": 2, "patch_weights": kind}
    index = cv.Index.build(cvt, images, **options)
    assert index.spec.patch_weights == kind
    hits = index.search(images / "class1" / "0.png", weight=1.0, method="transport")
    assert hits[0].entry.name == "class1/0.png"
    table = cv.evaluate(
        [cvt], task="retrieval", data=images, size=64, grid=2, patch_weights=(kind,)
    )
    assert any(kind in row.setting for row in table.rows)


def test_a_network_without_attention_says_so(tmp_path):
    network = timm.create_model("resnet18", num_classes=0)
    images = class_folders(tmp_path / "images", 2, 2)
    for kind in ("attention", "rollout"):
        with pytest.raises(ModelError, match="no attention"):
            cv.Index.build(load(network), images, out=tmp_path / kind, patch_weights=kind)
