"""Final tokens are plain timm's, bit for bit, at any size."""

import pytest
import timm
import torch

from clearvit.backbones.load import load
from clearvit.errors import ImageError, ModelError
from tests.conftest import randomised, tiny_network
from tests.helpers.architectures import ARCHITECTURES


@pytest.fixture(scope="module", params=ARCHITECTURES)
def network(request):
    torch.manual_seed(0)
    depth = {} if "18x2" in request.param else {"depth": 3}
    return request.param, randomised(
        timm.create_model(request.param, dynamic_img_size=True, **depth)
    )


def test_bit_equal_to_timm_at_native_and_other_sizes(network):
    _, net = network
    backbone = load(net)
    cell = backbone.patch[0]
    for size in (backbone.preprocessing.size, (5 * cell, 5 * cell), (4 * cell, 7 * cell)):
        pixels = torch.randn(2, 3, *size)
        with torch.no_grad():
            theirs = net.forward_features(pixels)
        tokens = backbone.tokens(pixels)
        assert tokens.grid == (size[0] // cell, size[1] // cell)
        assert torch.equal(torch.cat([tokens.prefix, tokens.patches], 1), theirs)


def test_prefix_tokens_are_never_confused(network):
    name, net = network
    backbone = load(net)
    tokens = backbone.tokens(torch.randn(1, 3, *backbone.preprocessing.size))
    classes, distillation, registers = ARCHITECTURES[name]
    assert (tokens.cls is not None) == bool(classes)
    assert (tokens.distillation is not None) == bool(distillation)
    assert tokens.registers.shape == (1, registers, backbone.width)
    assert tokens.patches.shape[1] == tokens.grid[0] * tokens.grid[1]
    if classes:
        assert torch.equal(tokens.cls, tokens.prefix[:, 0])


def test_layers_equal_timms_intermediates(network):
    _, net = network
    backbone = load(net)
    pixels = torch.randn(1, 3, 4 * backbone.patch[0], 6 * backbone.patch[1])
    for norm in (False, True):
        with torch.no_grad():
            theirs = net.forward_intermediates(
                pixels, indices=[0, 2], norm=norm, output_fmt="NCHW", intermediates_only=True
            )
        tokens = backbone.tokens(pixels, layers=[2, 0], norm=norm)
        assert list(tokens.layers) == [0, 2]
        for index, expected in zip([0, 2], theirs, strict=True):
            assert torch.equal(tokens.layers[index].map, expected)
            assert tokens.layers[index].normed == norm


def test_negative_layers_count_from_the_end(tiny):
    tokens = tiny.tokens(torch.randn(1, 3, 32, 32), layers=[-1, -3], norm=False)
    assert list(tokens.layers) == [0, 2]
    assert tokens.layers[-1] is tokens.layers[2]
    assert torch.equal(tokens.layers[-1].patches, tokens.patches)
    with pytest.raises(KeyError, match="block 1 was not asked for"):
        tokens.layers[1]


def test_layers_beyond_the_depth_are_refused(tiny):
    with pytest.raises(ModelError, match="blocks 0 to 2"):
        tiny.tokens(torch.randn(1, 3, 32, 32), layers=[3])


def test_sizes_the_patch_does_not_divide_are_rounded(tiny):
    assert tiny.tokens(torch.randn(1, 3, 35, 45)).grid == (4, 6)
    assert tiny.tokens(torch.randn(1, 3, 1, 3)).grid == (1, 1)
    assert tiny.tokens(torch.randn(3, 16, 16)).grid == (2, 2)
    assert tiny.fitting_size(61) == (64, 64)
    assert tiny.fitting_size((3, 61)) == (8, 64)


@pytest.mark.parametrize(
    "pixels", [torch.zeros(2, 32, 32), torch.zeros(1, 4, 32, 32), torch.zeros(1, 3, 8, 8).int()]
)
def test_tensors_that_are_no_normalised_images_are_refused(tiny, pixels):
    with pytest.raises(ImageError, match="normalized floats"):
        tiny.tokens(pixels)


def test_batching_inside_changes_nothing(tiny):
    pixels = torch.randn(5, 3, 32, 32)
    whole = tiny.tokens(pixels, layers=[0], capture=("key",), batch=5)
    parts = tiny.tokens(pixels, layers=[0], capture=("key",), batch=2)
    assert torch.allclose(whole.patches, parts.patches, atol=1e-6)
    assert torch.allclose(whole.layers[0].prefix, parts.layers[0].prefix, atol=1e-6)
    assert torch.allclose(whole.key[0], parts.key[0], atol=1e-6)


def test_the_module_of_a_user_is_left_as_it_was():
    net = tiny_network().train()
    before = {key: tensor.clone() for key, tensor in net.state_dict().items()}
    load(net).tokens(torch.randn(1, 3, 40, 24))
    assert all(torch.equal(before[key], tensor) for key, tensor in net.state_dict().items())


def test_a_rotary_network_built_for_one_size_says_so():
    net = timm.create_model("eva02_tiny_patch14_224", depth=1).eval()
    backbone = load(net)
    assert backbone.tokens(torch.randn(1, 3, 224, 224)).grid == (16, 16)
    with pytest.raises(ModelError, match="dynamic_img_size=True"):
        backbone.tokens(torch.randn(1, 3, 112, 112))


def test_forward_has_gradients_and_tokens_has_none(tiny):
    pixels = torch.randn(1, 3, 32, 32, requires_grad=True)
    tiny.forward(pixels).patches.sum().backward()
    assert pixels.grad is not None and pixels.grad.abs().sum() > 0
    assert not tiny.tokens(pixels).patches.requires_grad


def test_tokens_print_their_shapes_in_two_lines(tiny):
    tokens = tiny.tokens(torch.randn(2, 3, 32, 32), layers=[0, -1], norm=False)
    assert str(tokens) == (
        "Tokens(patches (2, 16, 24), grid 4x4, 1 class, before the final norm,\n"
        "       blocks of layers [0, 2])"
    )
