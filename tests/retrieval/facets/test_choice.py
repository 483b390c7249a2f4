"""The choice prefers what crops do not change, and keeps plain descriptors without evidence."""

import pytest
import torch
import torch.nn.functional as F

from clearvit.retrieval.facets.choice import _patch_similarities, choose, judge
from clearvit.retrieval.facets.crops import CroppedSample
from clearvit.retrieval.facets.facet import Facet
from clearvit.retrieval.image_features import RawFeatures

FACETS = {Facet("value", 2): 8, Facet("value", 1): 8}


def made_sample(noise, patch_noise, nuisance=0.0, images=120, seed=0):
    """Images whose descriptors and patches a crop changes more or less.

    `nuisance` is the strength of a direction that varies at random in every view.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator)

    truth, patches = random(images, 80), random(images, 9, 16)
    direction = F.normalize(random(80), dim=0)

    def view():
        strength = nuisance * random(images, 1)
        descriptors = truth + noise * random(images, 80) + strength * direction
        seen = {f: patches + patch_noise * random(images, 9, 16) for f in FACETS}
        return RawFeatures(F.normalize(descriptors, dim=-1), seen, torch.full((images, 9), 1 / 9))

    return CroppedSample(view(), (view(), view()))


def test_stability_is_the_overlap_of_the_five_nearest_by_the_plain_formula():
    generator = torch.Generator().manual_seed(3)
    whole, first, second = (torch.randn(12, 20, generator=generator) for _ in range(3))
    found = judge("", (whole, first, second))
    for i in range(12):
        near = []
        for one in (whole, first, second):
            order = [j for j in one[i].argsort(descending=True).tolist() if j != i]
            near.append(set(order[:5]))
        pairs = [near[0] & near[1], near[0] & near[2], near[1] & near[2]]
        assert found.stable[i] == pytest.approx(sum(len(p) / 5 for p in pairs) / 3)
        assert (
            found.found[i] == ((first[i].argmax() == i).int() + (second[i].argmax() == i).int()) / 2
        )


def test_a_direction_that_every_crop_changes_is_whitened_away():
    made = made_sample(noise=0.6, patch_noise=5.0, nuisance=15.0)
    chosen = choose(made, whiten="auto", facets=FACETS, weigh=True)
    assert chosen.descriptor is not None and chosen.weight == 0
    assert "descriptor is whitened" in chosen.note


def test_patches_that_crops_keep_help_descriptors_that_they_change():
    made = made_sample(noise=6.0, patch_noise=0.1)
    chosen = choose(made, whiten="auto", facets=FACETS, weigh=True)
    assert chosen.weight > 0 and chosen.patches is not None
    assert "re-ranked" in chosen.note
    assert choose(made, whiten="auto", facets=FACETS, weigh=False).weight == 0


def test_without_evidence_the_descriptor_stays_as_it_is():
    made = made_sample(noise=0.0, patch_noise=5.0)
    chosen = choose(made, whiten="auto", facets=FACETS, weigh=True)
    assert chosen.descriptor is None and chosen.weight == 0
    assert choose(made, whiten="yes", facets=FACETS, weigh=True).descriptor is not None
    assert (
        choose(made_sample(0.6, 5.0, 15.0), whiten="no", facets=FACETS, weigh=False).descriptor
        is None
    )


def test_of_two_equal_facets_the_later_one_is_taken():
    made = made_sample(noise=6.0, patch_noise=0.1)
    assert choose(made, whiten="no", facets=FACETS, weigh=True).facet == Facet("value", 2)


def test_where_the_weights_sit_on_noise_patches_count_alike():
    made = made_sample(noise=6.0, patch_noise=0.1)

    def spoiled(raw, seed):
        """Give nearly all weight to one patch, which every view changes."""
        generator = torch.Generator().manual_seed(seed)
        patches = {f: p.clone() for f, p in raw.patches.items()}
        for one in patches.values():
            one[:, 0] = torch.randn(len(one), 16, generator=generator)
        weights = torch.full_like(raw.weights, 0.01)
        weights[:, 0] = 0.92
        return RawFeatures(raw.descriptors, patches, weights)

    views = [spoiled(one, i) for i, one in enumerate((made.images, *made.crops))]
    sample = CroppedSample(views[0], tuple(views[1:]))
    chosen = choose(sample, whiten="no", facets=FACETS, weigh=True, uniform=True)
    assert chosen.uniform and chosen.weight > 0 and "all patches alike" in chosen.note
    assert not choose(sample, whiten="no", facets=FACETS, weigh=True).uniform


def test_patches_alike_are_compared_by_the_plain_formula():
    made = made_sample(noise=1.0, patch_noise=1.0, images=100)
    weights = torch.rand(100, 9, generator=torch.Generator().manual_seed(1)) + 0.1
    weights /= weights.sum(1, keepdim=True)
    images = RawFeatures(made.images.descriptors, made.images.patches, weights)
    facet = Facet("value", 2)
    weighted, alike = _patch_similarities(
        CroppedSample(images, made.crops), facet, None, uniform=True
    )
    units = F.normalize(images.patches[facet], dim=-1)
    cosines = units[3] @ units[7].T
    best, back = cosines.amax(1), cosines.amax(0)
    assert alike[0][3, 7] == pytest.approx(float((best.mean() + back.mean()) / 2), abs=1e-6)
    mean = float((best @ weights[3] + back @ weights[7]) / 2)
    assert weighted[0][3, 7] == pytest.approx(mean, abs=1e-6)
