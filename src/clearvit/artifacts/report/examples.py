"""Example images of a diagnosis, small enough to put on a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from clearvit.artifacts.outliers import relative_norms
from clearvit.artifacts.report.look import observe
from clearvit.backbones.vit import VitBackbone
from clearvit.images import ImageSource
from clearvit.report.pca import PCA

if TYPE_CHECKING:
    from clearvit.artifacts.diagnosis import Diagnosis

COUNT = 4
SIDE = 480  # pixels of the longer side of a photo as it is kept


@dataclass(frozen=True)
class ExampleImage:
    """One image to show.

    Attributes:
        name: Its name, as in `Observations.names`.
        photo: The part of it that the backbone sees, (height, width, 3) uint8.
        aspect: Height / width of that part, undistorted.
        colors: Final tokens as colors, (H, W, 3) in 0..1; one basis for all examples.
        map: Final tokens, (C, H, W).
    """

    name: str
    photo: NDArray[np.uint8]
    aspect: float
    colors: NDArray[np.float64]
    map: Tensor


def pick_examples(
    backbone: VitBackbone,
    sources: Sequence[ImageSource],
    diagnosis: Diagnosis,
    *,
    count: int = COUNT,
) -> tuple[ExampleImage, ...]:
    """Read again the images with most artifact tokens; one forward pass for each.

    Args:
        backbone: The network that was diagnosed.
        sources: The images that were looked at, in any order.
        diagnosis: What was found in them.
        count: Images to keep.
    """
    by_name = {source.name: source for source in sources}
    names = [diagnosis.observations.names[i] for i in rank_images(diagnosis, count)]
    chosen = [by_name[name] for name in names if name in by_name]
    seen = list(observe(backbone, chosen, size=diagnosis.size, layers=[diagnosis.peak]))
    if not seen:
        return ()
    pca = PCA.fit(torch.cat([one.map.flatten(1).T for one in seen]))
    return tuple(
        ExampleImage(
            name=one.name,
            photo=_small(one.photo),
            aspect=one.aspect,
            colors=pca.apply(one.map.permute(1, 2, 0)).numpy(),
            map=one.map,
        )
        for one in seen
    )


def rank_images(diagnosis: Diagnosis, count: int) -> list[int]:
    """Number the images with most flagged tokens, of equals those whose norms spread most."""
    counts = diagnosis.outlier_mask().sum(dim=1).tolist()
    norms = diagnosis.observations.norms[:, diagnosis.peak]
    spread = relative_norms(norms).clamp(min=1e-12).log().abs().amax(dim=1).tolist()
    order = sorted(range(len(counts)), key=lambda i: (-counts[i], -spread[i]))
    return order[:count]


def _small(photo: NDArray[Any]) -> NDArray[np.uint8]:
    image = Image.fromarray(photo)
    image.thumbnail((SIDE, SIDE))
    return np.asarray(image)
