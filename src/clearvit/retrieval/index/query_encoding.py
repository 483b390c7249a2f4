"""From what a user asks with to the features of a query."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image

from clearvit.backbones.backbone import Backbone
from clearvit.errors import ImageError
from clearvit.images import ImageSource, read_image
from clearvit.retrieval.config import Region
from clearvit.retrieval.image_features import FeatureSpec, extract_features
from clearvit.retrieval.index.hits import Query
from clearvit.retrieval.regions.region_search import cut_region

OneImage = str | Path | Image.Image | ImageSource


@dataclass(frozen=True)
class OpenedQuery:
    """A query that could be read."""

    name: str
    source: str | Path | Image.Image
    image: Image.Image


def open_query(query: OneImage, number: int) -> OpenedQuery:
    """Read one image; its position in a list names an image in memory."""
    source = query.source if isinstance(query, ImageSource) else query
    is_path = isinstance(source, (str, Path))
    name = os.fspath(source) if is_path else f"query {number + 1}"  # type: ignore[arg-type]
    if isinstance(query, ImageSource):
        name = query.name
    if is_path and os.path.isdir(name):
        raise ImageError(f"'{name}' is a folder; give one image, or a list of images.")
    try:
        return OpenedQuery(name, source, read_image(source))
    except ImageError as error:
        raise ImageError(f"the query '{name}' cannot be used: {error}") from error


def encode_query(
    opened: OpenedQuery, backbone: Backbone, spec: FeatureSpec, *, note: str, region: Region | None
) -> Query:
    """Extract the features of a query, or of a region of it.

    Args:
        opened: The image.
        backbone: Makes the tokens.
        spec: How features are made.
        note: What to know about the model.
        region: x0, y0, x1, y1 in pixels of the image; it is stretched to the size of the model.
    """
    name, source, image = opened.name, opened.source, opened.image
    preprocessing = backbone.preprocessing
    height, width = spec.size
    aspect = height / width if preprocessing.fit == "crop" else None
    whole = box = None
    if region is not None:
        box = (region[0], region[1], region[2], region[3])
        whole, source = image, cut_region(image, region, name)
        image, preprocessing = source, replace(preprocessing, fit="squash")
        name = f"{name} [{','.join(map(str, region))}]"
    pixels = preprocessing(image, spec.size)[None]
    features = extract_features(backbone, pixels.to(backbone.device, backbone.dtype), spec)
    return Query(name, features, source, aspect, note, box, whole)
