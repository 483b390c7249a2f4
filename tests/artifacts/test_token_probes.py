import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from clearvit.artifacts import token_probes as probes
from clearvit.artifacts.token_probes import class_probe, pixel_probe, position_probe, split_images

GRID = (5, 6)
N = 30


def marked(images, fraction=4, *, seed=0):
    """Mark `share` tokens of every image, at random places."""
    order = torch.rand(images, N, generator=torch.Generator().manual_seed(seed)).argsort(dim=1)
    return order < fraction


def planted(images=32, channels=48):
    """Normal tokens encode their place and their pixels; outliers only what is common to both."""
    outlier = marked(images)
    pixels = torch.rand(images, N, 12) * 255
    position = torch.randn(N, channels).expand(images, N, channels)
    seen = (pixels / 255 - 0.5) @ torch.randn(12, channels)
    tokens = position + seen + 0.1 * torch.randn(images, N, channels)
    tokens[outlier] = 3 * torch.randn(int(outlier.sum()), channels)
    return tokens, pixels, outlier


def test_position_is_lost_in_outliers_as_in_the_paper():
    tokens, _, outlier = planted()
    probe = position_probe(tokens, outlier, GRID)
    normal, lost = probe.row("normal"), probe.row("outlier")
    assert probe.metrics == ("position top-1 %", "mean distance in patches")
    assert normal.means[0] > 90 and normal.means[1] < 0.3
    assert lost.means[0] < 20 and lost.means[1] > 1.5
    assert (normal.count, lost.count) == (8 * (N - 4), 8 * 4)
    assert probe.conclusive and probe.note == "32 outlier tokens tested."
    assert all(math.isfinite(sd) for row in probe.rows for sd in row.sds)
    assert "5 x 6 cells (chance 3.3 %)" in probe.protocol


def test_pixels_are_lost_in_outliers_as_in_the_paper():
    tokens, pixels, outlier = planted()
    probe = pixel_probe(tokens, pixels, outlier)
    normal, lost = probe.row("normal"), probe.row("outlier")
    assert normal.means[0] < 40  # the mean patch is 255 / sqrt(12) = 74 off
    assert lost.means[0] > 1.5 * normal.means[0]
    for row in probe.rows:
        assert row.means[1] == pytest.approx(255 / 12**0.5, rel=0.1)


def test_distance_is_measured_in_patches():
    """Tokens that say nothing get one answer everywhere, off by the distances to that cell."""
    probe = position_probe(torch.ones(8, N, 4), torch.zeros(8, N, dtype=torch.bool), GRID, seeds=1)
    rows, columns = np.mgrid[:5, :6]
    expected = [np.hypot(rows - y, columns - x).mean() for y in range(5) for x in range(6)]
    accuracy, distance = probe.row("normal").means
    assert accuracy == pytest.approx(100 / N)
    assert np.isclose(distance, expected, rtol=1e-5).any()


def test_no_image_is_on_both_sides():
    """Tokens that only tell their image apart help nobody who has not seen that image.

    Each image has one color and all its tokens say "image i". Were tokens of one image on both
    sides, the probe would read the color off; as it is, it cannot beat the mean patch.
    """
    images = 24
    tokens = torch.eye(images)[:, None].expand(images, N, images) + 0.01
    colors = torch.rand(images, 1, 12).expand(images, N, 12) * 255
    probe = pixel_probe(tokens, colors, marked(images))
    for row in probe.rows:
        assert row.means[0] > 0.95 * row.means[1]


def test_split_images_keeps_proportions_and_spreads_the_rare():
    outlier = torch.zeros(64, N, dtype=torch.bool)
    outlier[:16, 3] = True
    part = split_images(outlier, torch.Generator().manual_seed(0))
    assert [int((part == k).sum()) for k in (0, 1, 2)] == [40, 8, 16]
    assert [int((part[:16] == k).sum()) for k in (0, 1, 2)] == [10, 2, 4]
    other = split_images(outlier, torch.Generator().manual_seed(1))
    assert (part != other).any()


def classed(images=96, classes=4, channels=16):
    """Outliers and the class token carry the class of their image, normal tokens do not."""
    outlier, labels = marked(images), torch.arange(images) % classes
    centres = 3 * torch.randn(classes, channels)
    tokens = torch.randn(images, N, channels)
    tokens += outlier[..., None] * centres[labels][:, None]
    cls = torch.randn(images, channels) + centres[labels]
    return tokens, outlier, 10 * labels, cls


def test_class_is_held_by_outliers_as_in_the_paper():
    tokens, outlier, labels, cls = classed()
    probe = class_probe(tokens, outlier, labels, descriptors={"class": cls})
    assert [row.kind for row in probe.rows] == ["class", "normal", "outlier"]
    assert probe.row("class").means[0] > 95 and probe.row("outlier").means[0] > 95
    assert probe.row("normal").means[0] < 40  # chance is 25
    assert {row.count for row in probe.rows} == {96}
    assert probe.conclusive and "4 classes (chance 25 %)" in probe.protocol


def test_class_probe_compares_kinds_on_the_same_images():
    tokens, outlier, labels, cls = classed()
    outlier[:50] = False  # and class tokens of images without outliers are nonsense
    cls[:50] = torch.randn(50, 16) * 100
    probe = class_probe(tokens, outlier, labels, descriptors={"class": cls})
    assert {row.count for row in probe.rows} == {46}
    assert probe.row("class").means[0] > 90


def test_class_probe_without_outliers_still_scores_the_others():
    tokens, outlier, labels, cls = classed(images=16)
    probe = class_probe(tokens, torch.zeros_like(outlier), labels, descriptors={"class": cls})
    assert not probe.conclusive and "no outlier tokens" in probe.note
    assert probe.row("class").count == 16 and probe.row("class").means[0] > 60
    assert probe.row("outlier").count == 0 and math.isnan(probe.row("outlier").means[0])


@pytest.mark.parametrize("labels", [[0] * 6, [0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 0, 1]])
def test_class_probe_without_two_real_classes_gives_nan(labels):
    probe = class_probe(torch.randn(6, N, 4), marked(6), torch.tensor(labels))
    assert not probe.conclusive and all(math.isnan(row.means[0]) for row in probe.rows)


def same(first, second):
    return repr(first) == repr(second)  # NaN is not equal to itself


def test_runs_are_deterministic_and_leave_the_global_seed_alone():
    tokens, pixels, outlier = planted(images=12)
    labels = torch.arange(12) % 2
    state = torch.get_rng_state()
    runs = [
        (
            position_probe(tokens, outlier, GRID, seeds=2),
            pixel_probe(tokens, pixels, outlier, seeds=2),
            class_probe(tokens, outlier, labels, seeds=2),
        )
        for _ in range(2)
    ]
    assert same(*runs)
    assert torch.get_rng_state().equal(state)


def test_one_seed_has_no_deviation():
    tokens, pixels, outlier = planted(images=8)
    assert all(math.isnan(sd) for sd in pixel_probe(tokens, pixels, outlier, seeds=1).rows[0].sds)


@pytest.mark.parametrize("images", [1, 2, 3, 5, 9])
def test_too_few_images_or_outliers_never_crash(images):
    tokens, pixels, outlier = planted(images=images)
    for mask in (outlier, torch.zeros_like(outlier), torch.ones_like(outlier)):
        for probe in (
            position_probe(tokens, mask, GRID, seeds=1),
            pixel_probe(tokens, pixels, mask, seeds=1),
        ):
            assert not probe.conclusive and probe.note.endswith(".")
            assert [row.kind for row in probe.rows] == ["normal", "outlier"]
            assert all((row.count == 0) == math.isnan(row.means[0]) for row in probe.rows)


def test_few_outliers_are_named():
    tokens, pixels, outlier = planted()
    outlier[4:] = False
    probe = pixel_probe(tokens, pixels, outlier)
    assert probe.note == (
        "only 4 outlier tokens in 1 image; at least 30 in 5 images are needed to conclude."
    )
    assert math.isfinite(probe.row("outlier").means[0])
    assert position_probe(tokens[:1], outlier[:1], GRID).note == (
        "1 images are too few to train on some and test on others."
    )


def test_half_precision_without_gradients_gives_the_same(monkeypatch):
    monkeypatch.setattr(probes, "EPOCHS", 8)
    tokens, pixels, outlier = planted(images=16)
    levels = pixels.round().byte()
    with torch.no_grad():
        half = position_probe(tokens.half(), outlier, GRID, seeds=1)
        coded = pixel_probe(tokens.half(), levels, outlier, seeds=1)
    full = position_probe(tokens, outlier, GRID, seeds=1)
    assert half.row("normal").means == pytest.approx(full.row("normal").means, abs=1)
    exact = pixel_probe(tokens, pixels, outlier, seeds=1)
    assert coded.row("normal").means[0] == pytest.approx(exact.row("normal").means[0], rel=0.02)


def test_training_tokens_are_bounded(monkeypatch):
    """Few tokens to learn from make a worse probe; that many tokens hide no mistake."""
    tokens, pixels, outlier = planted(images=16)
    every = pixel_probe(tokens, pixels, outlier, seeds=2)
    monkeypatch.setattr(probes, "TOKENS", 5)
    few = pixel_probe(tokens, pixels, outlier, seeds=2)
    assert few.row("normal").means[0] > 1.1 * every.row("normal").means[0]
    assert replace(few, name="x").row("outlier") is few.row("outlier")
