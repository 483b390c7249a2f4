"""Whitened patches vary alike in all directions that vary at all."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearvit.errors import ModelError, StoreError
from clearvit.retrieval.whitening import (
    RIDGE,
    Whitening,
    whitenings_from_bytes,
    whitenings_to_bytes,
)


@given(st.integers(0, 10_000), st.floats(0.01, 100))
def test_what_is_whitened_has_no_mean_and_no_correlation(seed, scale):
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(6, 6, generator=generator)
    patches = scale * (3 + torch.randn(10, 60, 6, generator=generator) @ mixing)
    whitened = Whitening.fit(patches)(patches)
    assert whitened.shape == patches.shape
    flat = whitened.flatten(0, 1)
    assert flat.mean(0).abs().max() < 1e-2
    covariance = flat.T @ flat / len(flat)
    own = torch.linalg.eigvalsh(torch.cov(patches.flatten(0, 1).T, correction=0))
    expected = (own / (own + RIDGE * own.mean())).sort().values
    found = torch.linalg.eigvalsh(covariance).sort().values
    assert torch.allclose(found, expected, atol=0.05)


def test_a_query_is_whitened_as_the_collection_was():
    patches = torch.randn(5, 9, 4)
    fitted = Whitening.fit(patches)
    assert torch.allclose(fitted(patches[2]), fitted(patches)[2], atol=1e-6)
    assert fitted(patches.half()).dtype == torch.float32


def test_directions_that_do_not_vary_stay_finite():
    patches = torch.ones(3, 5, 4)
    assert Whitening.fit(patches)(patches).isfinite().all()
    with pytest.raises(ModelError, match="at least 2"):
        Whitening.fit(torch.ones(1, 4))


def test_few_channels_are_the_strongest_principal_directions():
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(200, 10, generator=generator) * torch.arange(10, 0, -1)
    fitted = Whitening.fit(vectors, channels=3, power=0.0)
    centered = vectors - vectors.mean(0)
    _, _, directions = torch.linalg.svd(centered, full_matrices=False)
    ours, theirs = fitted(vectors), centered @ directions[:3].T
    torch.testing.assert_close(ours.abs(), theirs.abs(), atol=1e-3, rtol=1e-3)
    half = Whitening.fit(vectors, channels=3, power=0.5)(vectors).std(0)
    torch.testing.assert_close(half, theirs.std(0).sqrt(), atol=0.02, rtol=0.02)
    with pytest.raises(ModelError, match="power"):
        Whitening.fit(vectors, power=2.0)


def test_whitenings_are_read_as_they_were_written_and_nothing_else_is():
    fitted = Whitening.fit(torch.randn(20, 4))
    back = whitenings_from_bytes(whitenings_to_bytes({"patches": fitted}))
    assert torch.equal(back["patches"].matrix, fitted.matrix)
    wrong = Whitening(torch.zeros(3), torch.zeros(4, 2))
    for content in (b"", b"nonsense", whitenings_to_bytes({"x": wrong})):
        with pytest.raises(StoreError):
            whitenings_from_bytes(content)
