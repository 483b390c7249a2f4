import numpy as np
import torch

from clearvit.finetuning.learned_whitening import apply_projection, fit_to_teacher, fit_whitening


def two_factors(classes=12, each=10, channels=6):
    """Vectors whose class lies in weak directions, beside a strong one that means nothing."""
    rng = torch.Generator().manual_seed(0)
    means = torch.randn(classes, channels, generator=rng)
    means[:, 0] = 0
    vectors = means.repeat_interleave(each, 0)
    vectors = vectors + 0.3 * torch.randn(vectors.shape, generator=rng)
    vectors[:, 0] += 10 * torch.randn(len(vectors), generator=rng)
    return vectors, vectors - vectors.unflatten(0, (classes, each)).mean(1).repeat_interleave(
        each, 0
    )


def test_differences_of_matching_images_vary_alike_after_whitening():
    """The transcription: C^(-1/2) of the shrunken covariance C, then PCA of what it leaves."""
    vectors, apart = two_factors()
    projection = fit_whitening(vectors, apart, 4, 0.2)
    wide, differences = vectors.double().numpy(), apart.double().numpy()
    covariance = differences.T @ differences / len(differences)
    covariance = 0.8 * covariance + 0.2 * np.trace(covariance) / 6 * np.eye(6)
    values, basis = np.linalg.eigh(covariance)
    root = basis @ np.diag(values**-0.5) @ basis.T
    white = (wide - wide.mean(0)) @ root
    strongest = np.linalg.svd(white, full_matrices=False)[2][:4]
    expected = white @ strongest.T
    found = apply_projection(projection, vectors).double().numpy()
    scale = np.linalg.norm(found) / np.linalg.norm(expected)
    # Cosines do not mind a rotation or a scale.
    assert np.allclose(found @ found.T, scale**2 * expected @ expected.T, atol=1e-4)


def test_the_direction_that_means_nothing_counts_less():
    vectors, apart = two_factors()
    found = apply_projection(fit_whitening(vectors, apart, 6, 0.0), vectors)
    within = apply_projection(fit_whitening(vectors, apart, 6, 0.0), apart)
    before = float(apart[:, 0].var() / apart.var(0).sum())
    direction = within - within.mean(0)
    after = torch.linalg.eigvalsh(direction.T @ direction)[-1] / direction.square().sum()
    assert before > 0.9 and float(after) < 0.25 and len(found) == len(vectors)


def test_a_projection_follows_a_linear_teacher():
    rng = torch.Generator().manual_seed(1)
    vectors = torch.randn(400, 12, generator=rng)
    targets = vectors @ torch.randn(12, 5, generator=rng) + 3
    found = apply_projection(fit_to_teacher(vectors, targets), vectors)
    assert torch.nn.functional.cosine_similarity(found, targets).mean() > 0.99
