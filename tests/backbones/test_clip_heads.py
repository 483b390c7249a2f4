"""Dense heads agree with their papers' formulas on open_clip's weights, written out in numpy."""

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearvit.backbones import clip_heads
from clearvit.backbones.capture import project
from clearvit.backbones.clip_heads import (
    HEADS,
    dense_clip,
    gaussian_window,
)
from clearvit.backbones.load import load
from tests.conftest import randomised, tiny_network
from tests.helpers.openclip_models import known_models, saved_model

TOLERANCE = 1e-5
MIXED = [head for head in HEADS if head != "clip"]


def sequence(tokens):
    return torch.cat([tokens.prefix, tokens.patches], 1)


# --- parity with open_clip's weights ----------------------------------------------------------


def layer_norm(x, state, name, eps):
    centered = x - x.mean(-1, keepdims=True)
    spread = np.sqrt((centered**2).mean(-1, keepdims=True) + eps)
    return centered / spread * state[f"{name}.weight"] + state[f"{name}.bias"]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def neighbors(height, width, std):
    """The window, one pair of patches after the other, with a class token in front."""
    omega = np.zeros((1 + height * width, 1 + height * width))
    for i in range(height * width):
        for j in range(height * width):
            distance = (i // width - j // width) ** 2 + (i % width - j % width) ** 2
            omega[1 + i, 1 + j] = np.exp(-distance / (2 * std**2))
    return omega


def published(visual, x, head, grid, std):
    """Replace the last block of open_clip's tower for what enters it, (T, C) -> (T, D)."""
    state = {key: t.detach().double().numpy() for key, t in visual.state_dict().items()}
    last = f"transformer.resblocks.{len(visual.transformer.resblocks) - 1}"
    eps, heads = visual.ln_post.eps, visual.transformer.resblocks[-1].attn.num_heads
    joined = layer_norm(x, state, f"{last}.ln_1", eps) @ state[f"{last}.attn.in_proj_weight"].T
    q, k, v = np.split(joined + state[f"{last}.attn.in_proj_bias"], 3, axis=-1)
    size = q.shape[-1] // heads
    out = np.zeros_like(v)
    for h in range(heads):
        part = slice(h * size, (h + 1) * size)
        qq = q[:, part] @ q[:, part].T / np.sqrt(size)
        kk = k[:, part] @ k[:, part].T / np.sqrt(size)
        weights = {
            "maskclip": lambda: np.eye(len(x)),
            "naclip": lambda kk=kk: softmax(kk + neighbors(*grid, std)),
            "sclip": lambda qq=qq, kk=kk: softmax(qq) + softmax(kk),
            "clearclip": lambda qq=qq: softmax(qq),
        }[head]()
        out[:, part] = weights @ v[:, part]
    out = out @ state[f"{last}.attn.out_proj.weight"].T + state[f"{last}.attn.out_proj.bias"]
    out = out * state.get(f"{last}.ls_1.gamma", 1.0)
    if head == "sclip":  # keeps the residual connections and the MLP
        block = visual.transformer.resblocks[-1]
        middle = torch.from_numpy(x + out).float()
        with torch.no_grad():
            out = (middle + block.ls_2(block.mlp(block.ln_2(middle)))).double().numpy()
    return layer_norm(out, state, "ln_post", eps) @ state["proj"]


@pytest.fixture(scope="module")
def open_clip_folder(tmp_path_factory):
    pytest.importorskip("open_clip")
    with known_models(tmp_path_factory.mktemp("configs")) as folder:
        yield folder


@pytest.fixture(
    scope="module", params=["plain", "quick", "oblong", "no-pre-norm", "norm-after-average"]
)
def tower(request, open_clip_folder):
    model, name = saved_model(request.param, open_clip_folder)
    return model, load(name)


@pytest.mark.parametrize("std", [5.0, 1.5])
@pytest.mark.parametrize("head", MIXED)
def test_heads_are_the_published_ones(tower, head, std):
    model, backbone = tower
    visual = model.visual
    pixels = torch.randn(2, 3, *visual.image_size)
    with torch.no_grad():
        entering = visual._embeds(pixels)
        for block in visual.transformer.resblocks[:-1]:
            entering = block(entering)
    tokens = dense_clip(backbone, head, std=std).tokens(pixels)
    expected = [published(visual, x.double().numpy(), head, tokens.grid, std) for x in entering]
    assert np.abs(sequence(tokens).numpy() - np.stack(expected)).max() <= TOLERANCE


def test_clip_projects_every_token(tower):
    model, backbone = tower
    visual = model.visual
    pixels = torch.randn(2, 3, *visual.image_size)
    with torch.no_grad():
        every = visual.ln_post(visual.transformer(visual._embeds(pixels))) @ visual.proj
    ours = sequence(dense_clip(backbone, "clip").tokens(pixels))
    assert (ours - every).abs().max() <= TOLERANCE


@pytest.mark.parametrize("head", HEADS)
def test_embedding_and_texts_stay_those_of_the_network(tower, head):
    _, backbone = tower
    pixels = torch.randn(2, 3, *backbone.preprocessing.size)
    dense = dense_clip(backbone, head)
    assert torch.equal(dense.embed(pixels), backbone.embed(pixels))
    assert dense.text is backbone.text
    assert dense.text.encode(["a cat"]).shape == (1, dense.width)


# --- other networks ---------------------------------------------------------------------------

NETWORKS = {
    "qk-norm": lambda: tiny_network(num_classes=10, qk_norm=True, scale_attn_norm=True),
    "layer-scale": lambda: tiny_network(num_classes=10, init_values=0.3),
    "no-bias": lambda: tiny_network(num_classes=10, qkv_bias=False, proj_bias=False),
    "registers": lambda: tiny_network(num_classes=10, reg_tokens=2, no_embed_class=True),
    "average": lambda: tiny_network(num_classes=10, global_pool="avg"),
    "eva": lambda: eva("eva02_tiny_patch14_224"),
    "eva-norm": lambda: eva("eva02_tiny_patch14_224", scale_attn_inner=True, init_values=0.3),
    "eva-mixed": lambda: eva("vit_small_patch16_rope_mixed_224"),
    "eva-fused": lambda: eva("eva02_tiny_patch14_224", qkv_fused=True),
}


def eva(name, **arguments):
    torch.manual_seed(0)
    options = {"depth": 3, "embed_dim": 24, "num_heads": 3, "img_size": 56, "num_classes": 10}
    return randomised(timm.create_model(name, dynamic_img_size=True, **options, **arguments))


@pytest.fixture(scope="module", params=NETWORKS)
def other(request):
    return load(NETWORKS[request.param]())


def pixels_for(backbone):
    return torch.randn(2, 3, 3 * backbone.patch[0], 4 * backbone.patch[1])


def test_the_attention_of_the_network_gives_its_own_last_block(other, monkeypatch):
    """With queries against keys instead of keys against keys the head is the block itself."""

    def plainly(key, value, scale, bias=None):
        query = project(attention, entered, "query", rope)
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scale)

    monkeypatch.setattr(clip_heads, "average_values", plainly)
    monkeypatch.setitem(
        clip_heads.RECIPES, "naclip", clip_heads.HeadRecipe(("key",), residual=True)
    )
    pixels, block = pixels_for(other), other.network.blocks[-1]
    attention = block.attn
    with torch.no_grad():
        x, _, rope = other.embed_pixels(pixels)
        for index in range(other.depth - 1):
            x = other.run_block(index, x, rope)
        entered = block.norm1(x)
        if getattr(other.network, "rope_mixed", False):
            rope = rope[-1]
        ours = sequence(dense_clip(other, "naclip").tokens(pixels))
    assert (ours - sequence(dense_clip(other, "clip").tokens(pixels))).abs().max() <= TOLERANCE


@pytest.mark.parametrize("head", HEADS)
def test_unused_parameters_are_those_without_gradient(other, head):
    dense = dense_clip(other, head)
    dense.network.zero_grad(set_to_none=True)
    sequence(dense.forward(pixels_for(other))).square().sum().backward()
    without = {n for n, p in dense.network.named_parameters() if p.grad is None}
    dense.network.zero_grad(set_to_none=True)
    assert dense.unused_parameters() == without
    assert without or head in ("clip", "sclip")


# --- the window -------------------------------------------------------------------------------

SIDES = st.integers(1, 6)
WINDOWS = {
    "grid": st.tuples(SIDES, SIDES),
    "prefix": st.integers(0, 3),
    "std": st.floats(0.3, 20),
}


@settings(max_examples=40, deadline=None)
@given(**WINDOWS)
def test_window_is_symmetric_and_one_at_its_own_patch(grid, prefix, std):
    window = gaussian_window(grid, prefix, std)
    assert window.shape == (prefix + grid[0] * grid[1],) * 2
    assert torch.equal(window, window.T)
    assert torch.equal(window.diagonal()[prefix:], torch.ones(grid[0] * grid[1]))
    assert not window[:prefix].any() and not window[:, :prefix].any()
    assert window.min() >= 0 and window.max() <= 1


@settings(max_examples=40, deadline=None)
@given(**WINDOWS)
def test_window_depends_on_the_distance_only(grid, prefix, std):
    height, width = grid
    window = gaussian_window(grid, prefix, std)[prefix:, prefix:].reshape(*grid, *grid)
    assert torch.equal(window[1:, :, 1:, :], window[:-1, :, :-1, :])
    assert torch.equal(window[:, 1:, :, 1:], window[:, :-1, :, :-1])
    if height == width:
        assert torch.equal(window, window.permute(1, 0, 3, 2))
    far = window[0, 0, -1, -1].item()
    steps = (height - 1) ** 2 + (width - 1) ** 2
    assert far == pytest.approx(np.exp(-steps / (2 * std**2)), rel=1e-5, abs=1e-30)
