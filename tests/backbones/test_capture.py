import threading

import pytest
import timm
import torch
import torch.nn.functional as F

from clearvit.backbones.load import load
from clearvit.errors import ModelError
from tests.conftest import randomised, tiny_network

NAMES = [
    "vit_tiny_patch16_224",
    "vit_small_patch14_reg4_dinov2",
    "eva02_tiny_patch14_224",
    "vit_small_patch16_dinov3",
    "vit_small_patch16_rope_mixed_224",
    "vit_base_patch16_siglip_224",
]


def hooks(network):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in network.modules())


@pytest.fixture(scope="module", params=NAMES)
def backbone(request):
    torch.manual_seed(0)
    return load(
        randomised(timm.create_model(request.param, depth=3, dynamic_img_size=True, num_classes=0))
    )


def seen_by_the_kernel(backbone, pixels, monkeypatch):
    """Queries, keys and values as the fused kernel itself receives them, block by block."""
    seen = []
    kernel = F.scaled_dot_product_attention

    def spy(query, key, value, **options):
        seen.append((query, key, value))
        return kernel(query, key, value, **options)

    with monkeypatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", spy)
        backbone.tokens(pixels)
    return seen


def test_captures_are_what_the_fused_kernel_receives(backbone, monkeypatch):
    pixels = torch.randn(2, 3, 3 * backbone.patch[0], 4 * backbone.patch[1])
    kinds = ("query", "key", "value", "attention", "prefix_attention")
    tokens = backbone.tokens(pixels, layers=[0, 2], capture=kinds)
    seen = seen_by_the_kernel(backbone, pixels, monkeypatch)
    prefix = len(backbone.prefix_names)
    for block in (0, 2):
        query, key, value = seen[block]
        assert torch.allclose(tokens.query[block], query, atol=1e-6)
        assert torch.allclose(tokens.key[block], key, atol=1e-6)
        assert torch.allclose(tokens.value[block], value, atol=1e-6)
        scores = (query.double() @ key.double().transpose(-2, -1)) / query.shape[-1] ** 0.5
        expected = scores.softmax(-1)
        assert (tokens.attention[block] - expected).abs().max() < 1e-6
        assert torch.allclose(
            tokens.prefix_attention[block].double(), expected[:, :, :prefix], atol=1e-6
        )
        assert torch.allclose(tokens.attention[block].sum(-1), torch.ones(()), atol=1e-5)


def test_shared_keys_and_values_are_given_to_every_head(monkeypatch):
    options = {"depth": 1, "num_kv_heads": 2, "qkv_fused": False, "attn_type": "rope"}
    try:
        network = randomised(
            timm.create_model("vit_small_patch16_dinov3", dynamic_img_size=True, **options)
        )
    except TypeError:
        pytest.skip("this timm has no grouped-query attention")
    backbone = load(network)
    pixels = torch.randn(1, 3, 32, 48)
    tokens = backbone.tokens(pixels, capture=("query", "key", "value"))
    for ours, theirs in zip(
        (tokens.query[0], tokens.key[0], tokens.value[0]),
        seen_by_the_kernel(backbone, pixels, monkeypatch)[0],
        strict=True,
    ):
        assert ours.shape == theirs.shape == (1, 6, 11, 64)
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_output_is_bit_identical_with_and_after_capture(backbone):
    pixels = torch.randn(1, 3, 4 * backbone.patch[0], 4 * backbone.patch[1])
    before = backbone.tokens(pixels).patches
    during = backbone.tokens(pixels, capture=("attention", "key")).patches
    assert torch.equal(before, during)
    assert torch.equal(before, backbone.tokens(pixels).patches)


def test_only_what_was_asked_is_there(tiny):
    tokens = tiny.tokens(torch.randn(1, 3, 32, 32), capture="key")
    assert list(tokens.key) == [2]  # without layers: the last block
    assert not tokens.attention and not tokens.value and not tokens.layers


def test_threads_that_share_a_network_get_their_own_captures(tiny):
    wrong, done, counts = [], [], (1, 3)

    def run(count):
        for _ in range(40):
            tokens = tiny.tokens(torch.randn(count, 3, 32, 32), capture=("attention", "key"))
            if len(tokens.key[-1]) != count or len(tokens.attention[-1]) != count:
                wrong.append(count)
        done.append(count)

    threads = [threading.Thread(target=run, args=(count,)) for count in counts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and sorted(done) == [1, 3]


def test_a_thousand_captures_leave_no_hook(tiny):
    pixels = torch.randn(1, 3, 8, 8)
    for _ in range(1000):
        tiny.tokens(pixels, layers=[0, 1, 2], capture=("query", "attention"))
    assert hooks(tiny.network) == 0


def test_a_forward_that_raises_leaves_no_hook():
    net = tiny_network()
    backbone = load(net)

    def fail(*_):
        raise RuntimeError("out of memory")

    net.blocks[1].forward = fail
    with pytest.raises(RuntimeError, match="out of memory"):
        backbone.tokens(torch.randn(1, 3, 32, 32), layers=[0, 2], capture=("key",))
    assert hooks(net) == 0


def test_a_block_without_plain_attention_says_so_and_leaves_no_hook():
    net = timm.create_model("vit_small_patch16_18x2_224", depth=1).eval()
    backbone = load(net)
    with pytest.raises(ModelError, match="ParallelThingsBlock without plain attention"):
        backbone.tokens(torch.randn(1, 3, 32, 32), capture=("key",))
    assert hooks(net) == 0
    assert backbone.tokens(torch.randn(1, 3, 32, 32)).grid == (2, 2)


def test_unknown_kind_names_the_kinds(tiny):
    with pytest.raises(ModelError, match=r"query, key, value.*Closest: attention"):
        tiny.tokens(torch.randn(1, 3, 32, 32), capture=("atention",))


def test_unfused_attention_gives_the_same():
    fused, plain = tiny_network(), tiny_network()
    for module in plain.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    pixels = torch.randn(1, 3, 32, 32)
    first = load(fused).tokens(pixels, capture=("attention",)).attention[-1]
    second = load(plain).tokens(pixels, capture=("attention",)).attention[-1]
    assert torch.allclose(first, second, atol=1e-6)
