"""Decide how the features of an index are made, before the first image is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from clearvit.backbones.backbone import Backbone
from clearvit.images import ImageSource
from clearvit.progress import Meter, Progress
from clearvit.retrieval.config import IndexConfig
from clearvit.retrieval.facets.choice import choose
from clearvit.retrieval.facets.crops import extract_sample
from clearvit.retrieval.facets.facet import Facet, facet_width, parse_facet, short_list
from clearvit.retrieval.image_features import FeatureSpec, facet_of, make_spec

# Options that a spec remembers; the last one was added later, so older specs end before it.
ASKED = ("facet", "channels", "patch_format", "whiten", "patch_weights")
FEWEST = 100  # images from which something is fitted
SAMPLE, QUERIES = 400, 200  # images that are looked at, and how many of them are cropped
GROWN = 2.0  # times as many images as before: fitted anew, as long as there were fewer than SAMPLE


def plan_spec(backbone: Backbone, config: IndexConfig) -> FeatureSpec:
    """Resolve all that does not depend on the images."""
    plain = make_spec(backbone, config)
    asked = ", ".join(f"{name}={getattr(config, name)}" for name in ASKED)
    if config.facet == "auto":
        return replace(plain, asked=asked)
    facet = parse_facet(config.facet, backbone)
    return replace(plain, facet=str(facet), width=facet_width(backbone, facet), asked=asked)


def asked_config(spec: FeatureSpec, config: IndexConfig) -> IndexConfig:
    """Give the options that an index was built with; those of writing come from a config."""
    kinds = {"channels": int}
    pairs = [part.split("=", 1) for part in spec.asked.split(", ")] if spec.asked else []
    asked = {name: kinds.get(name, str)(value) for name, value in pairs if name in ASKED}
    known = {"size": spec.size, "grid": spec.grid, "descriptor": spec.descriptor}
    return IndexConfig.build({**known, "patch_weights": spec.patch_weights, **asked}, config)


def fit_spec(
    backbone: Backbone,
    sources: Sequence[ImageSource],
    config: IndexConfig,
    progress: Progress | None,
) -> FeatureSpec:
    """Choose facet, whitening and weight on a sample of the images; few images stay plain."""
    plain = plan_spec(backbone, config)
    facets = _facets(backbone, config, plain)
    # A model without a choice has nothing to fit.
    if config.channels == 0 and config.whiten == "no" and len(facets) == 1:
        return plain
    if len(sources) < FEWEST:
        note = (
            f"Features are kept as the model makes them: {len(sources)} images are too few to fit"
            f" whitening and to choose between facets, which needs {FEWEST}. Refresh the index when"
            " it has grown."
        )
        return replace(plain, note=note, fitted=len(sources))
    order = torch.randperm(len(sources), generator=torch.Generator().manual_seed(0))[:SAMPLE]
    chosen = [sources[i] for i in order.tolist()]
    sample = extract_sample(
        backbone,
        chosen,
        plain,
        facets,
        queries=QUERIES,
        meter=Meter(progress, len(chosen), "sample"),
        batch=config.batch,
    )
    if sample is None or len(sample.images.descriptors) < FEWEST:
        return replace(plain, note="Too few images can be read to fit anything.")
    found = choose(
        sample,
        whiten="no" if plain.descriptor in ("joint", "embedding") else config.whiten,
        facets={one: min(config.channels, facet_width(backbone, one)) for one in facets},
        weigh=config.facet == "auto",
        uniform=config.patch_weights == "auto" and plain.patch_weights != "uniform",
    )
    named = {"descriptor": found.descriptor, "patches": found.patches}
    whitenings = {name: one for name, one in named.items() if one is not None}
    fitted = plain.with_whitenings(whitenings)
    return replace(
        fitted,
        facet=str(found.facet),
        patch_weights="uniform" if found.uniform else plain.patch_weights,
        channels=plain.channels if found.descriptor is None else found.descriptor.matrix.shape[1],
        width=plain.width if found.patches is None else found.patches.matrix.shape[1],
        patch_format=config.patch_format if found.patches is not None else "float16",
        weight=found.weight,
        fitted=len(sources),
        note=f"Chosen on {len(chosen)} of {len(sources)} images. {found.note}",
    )


def has_outgrown(spec: FeatureSpec, images: int) -> bool:
    """Tell whether a collection has grown so much that features should be fitted anew."""
    return 0 < spec.fitted < SAMPLE and images >= max(FEWEST, GROWN * spec.fitted)


def _facets(backbone: Backbone, config: IndexConfig, plain: FeatureSpec) -> list[Facet]:
    if config.facet != "auto":
        return [parse_facet(config.facet, backbone)]
    return short_list(backbone) if config.channels else [facet_of(plain)]
