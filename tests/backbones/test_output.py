import copy

import numpy as np
import pytest
import torch

import clearvit as cv
from clearvit.backbones.load import load
from clearvit.backbones.output import (
    OutputSteps,
    positional_basis,
    remove_directions,
    smooth_grid,
)
from clearvit.backbones.saved import save
from clearvit.errors import ModelError


def with_steps(backbone, **options):
    other = copy.copy(backbone)
    other.output = OutputSteps(**options)
    return other


def test_the_basis_is_that_of_the_formula(tiny):
    basis = positional_basis(tiny, 5, seed=3)
    generator = torch.Generator().manual_seed(3)
    noise = torch.cat([torch.randn(4, 3, 32, 32, generator=generator) for _ in range(4)])
    mean = tiny.tokens(noise).patches.mean(0).double().numpy()
    rows = np.linalg.svd(mean - mean.mean(0), full_matrices=False)[2][:5]
    assert np.allclose(np.abs(rows @ basis.double().numpy().T), np.eye(5), atol=1e-3)


def test_removed_directions_are_gone_and_nothing_else(tiny):
    basis = positional_basis(tiny, 4)
    tokens = torch.randn(2, 7, 24)
    once = remove_directions(tokens, basis)
    assert (once @ basis.T).abs().max() < 1e-5
    assert torch.allclose(remove_directions(once, basis), once, atol=1e-5)
    across = torch.randn(24)
    across -= basis.T @ (basis @ across)
    assert torch.allclose(remove_directions(across, basis), across, atol=1e-5)


def test_smoothing_is_a_small_blur_that_keeps_constants_and_shifts_along():
    grid = (5, 6)
    constant = torch.ones(1, 30, 3)
    assert torch.allclose(smooth_grid(constant, grid), constant, atol=1e-6)
    spike = torch.zeros(1, 5, 6, 1)
    spike[0, 2, 3] = 16
    found = smooth_grid(spike.flatten(1, 2), grid).reshape(5, 6)
    assert found[1:4, 2:5].tolist() == [[1, 2, 1], [2, 4, 2], [1, 2, 1]]


def test_steps_change_the_final_patches_only(tiny):
    pixels = torch.randn(2, 3, 32, 48)
    plain, edited = tiny.tokens(pixels), with_steps(tiny, directions=3, smooth=True).tokens(pixels)
    basis = positional_basis(tiny, 3, (32, 48))
    expected = smooth_grid(remove_directions(plain.patches, basis), plain.grid)
    assert torch.allclose(edited.patches, expected, atol=1e-5)
    assert torch.equal(edited.prefix, plain.prefix)
    raw = with_steps(tiny, directions=3).tokens(pixels, norm=False, layers=[1])
    assert torch.equal(raw.patches, tiny.tokens(pixels, norm=False).patches)


def test_steps_are_saved_and_part_of_the_fingerprint(tiny, tmp_path):
    edited = with_steps(tiny, directions=3)
    assert edited.fingerprint() != tiny.fingerprint()
    again = load(f"dir:{save(edited, tmp_path / 'edited')}")
    pixels = torch.randn(1, 3, 32, 32)
    assert torch.allclose(again.tokens(pixels).patches, edited.tokens(pixels).patches, atol=1e-6)
    assert not (tmp_path / "edited" / "config.json").exists()  # plain timm would skip the step


def test_too_many_directions_are_named(tiny):
    with pytest.raises(ModelError, match="1 to 15"):
        positional_basis(tiny, 16)


def test_a_pruned_model_takes_the_same_steps(tiny):
    pruned = cv.prune(with_steps(tiny, directions=3), keep=0.5)
    tokens = pruned.tokens(torch.randn(2, 3, 32, 32))
    basis = pruned.output.basis(pruned, (4, 4))
    assert (tokens.patches @ basis.T).abs().max() < 1e-4
