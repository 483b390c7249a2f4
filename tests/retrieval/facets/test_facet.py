"""A facet is what the network computed, on the grid of its patches."""

import pytest
import torch

from clearvit.errors import ModelError
from clearvit.retrieval.facets.facet import (
    FINAL,
    Facet,
    capture_options,
    facet_vectors,
    parse_facet,
    short_list,
)


def test_a_value_is_the_projection_of_the_normed_input_of_its_block(tiny):
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    facet = Facet("value", 1)
    with torch.no_grad():
        tokens = tiny.forward(pixels, **capture_options([facet]))
        vectors, grid = facet_vectors(tokens, facet)
        before = tiny.forward(pixels, layers=[0], norm=False).layers[0]
        block = tiny.network.blocks[1]
        entered = block.norm1(torch.cat([before.prefix, before.patches], 1))
        expected = block.attn.qkv(entered)[..., 2 * tiny.width :][:, before.prefix.shape[1] :]
    assert grid == tokens.grid
    torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=1e-5)


def test_facets_are_read_as_they_are_written(tiny):
    for text in ("token", "token:0", "value:1", "key:2", "query:0"):
        assert str(parse_facet(text, tiny)) == text
    assert parse_facet("value:-1", tiny) == Facet("value", tiny.depth - 1)


@pytest.mark.parametrize("text", ["valeu:1", "value", "value:x", "value:3", "key:-4", "", "auto:1"])
def test_facets_that_do_not_exist_are_refused(tiny, text):
    with pytest.raises(ModelError, match="facet"):
        parse_facet(text, tiny)


def test_the_short_list_has_values_of_the_last_and_of_an_inner_block(tiny):
    assert short_list(tiny) == [Facet("value", 2), Facet("value", 1)]
    tiny_without = type("GridOnly", (), {"depth": 0})()
    assert short_list(tiny_without) == [FINAL]
