"""One byte per channel keeps directions."""

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from clearvit.retrieval.facets.patch_codes import dequantize, quantize


@given(st.integers(0, 10_000), st.floats(1e-6, 1e6))
def test_directions_survive_whatever_the_scale(seed, scale):
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(20, 64, generator=generator)
    back = dequantize(quantize(scale * vectors))
    assert ((back * F.normalize(vectors, dim=-1)).sum(-1) > 0.9995).all()
    assert torch.equal(quantize(back), quantize(scale * vectors))


def test_zeros_stay_zeros():
    assert (dequantize(quantize(torch.zeros(2, 8))) == 0).all()
