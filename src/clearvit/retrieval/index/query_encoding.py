"""From what a user asks with to the features of a query."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from PIL import Image

from clearvit.backbones.backbone import Backbone
from clearvit.errors import ImageError
from clearvit.images import ImageSource, read_image
from clearvit.retrieval.config import Region
from clearvit.retrieval.image_features import FeatureSpec, extract_features
from clearvit.retrieval.index.hits import Query
from clearvit.retrieval.index.region_search import cut_region

OneImage = str | Path | Image.Image | ImageSource


def encode_query(
    query: OneImage,
    number: int,
    backbone: Backbone,
    spec: FeatureSpec,
    *,
    note: str,
    region: Region | None,
) -> Query:
    """Read one image and extract its features, or those of a region of it.

    Args:
        query: A path, an image, or either with a name.
        number: Position in the list of queries, which names an image in memory.
        backbone: Makes the tokens.
        spec: How features are made.
        note: What to know about the model.
        region: x0, y0, x1, y1 in pixels of the image; it is stretched to the size of the model.
    """
    source = query.source if isinstance(query, ImageSource) else query
    is_path = isinstance(source, (str, Path))
    name = os.fspath(source) if is_path else f"query {number + 1}"  # type: ignore[arg-type]
    if isinstance(query, ImageSource):
        name = query.name
    if is_path and os.path.isdir(name):
        raise ImageError(f"'{name}' is a folder; give one image, or a list of images.")
    try:
        image = read_image(source)
    except ImageError as error:
        raise ImageError(f"the query '{name}' cannot be used: {error}") from error
    preprocessing = backbone.preprocessing
    height, width = spec.size
    aspect = height / width if preprocessing.fit == "crop" else None
    whole = None
    if region is not None:
        whole, source = image, cut_region(image, region, name)
        image, preprocessing = source, replace(preprocessing, fit="squash")
        name = f"{name} [{','.join(map(str, region))}]"
    pixels = preprocessing(image, spec.size)[None]
    features = extract_features(backbone, pixels.to(backbone.device, backbone.dtype), spec)
    box = None if region is None else (region[0], region[1], region[2], region[3])
    return Query(name, features, source, aspect, note, box, whole)
