"""The images of a diagnosis that show its finding best, kept small enough to put on a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from clearvit.backbones.vit import VitBackbone
from clearvit.diagnose.look import observe
from clearvit.images import Picture
from clearvit.report.pca import PCA

if TYPE_CHECKING:
    from clearvit.diagnose.diagnosis import Diagnosis

COUNT = 4
SIDE = 480  # pixels of the longer side of a photo as it is kept


@dataclass(frozen=True)
class Exhibit:
    """One image to show.

    Attributes:
        name: Its name, as in `Observations.names`.
        photo: The part of it that the backbone sees, (height, width, 3) uint8.
        aspect: Height / width of that part, undistorted.
        colours: Final tokens as colours, (H, W, 3) in 0..1; one colour space for all exhibits.
    """

    name: str
    photo: NDArray[np.uint8]
    aspect: float
    colours: NDArray[np.float64]


@dataclass(frozen=True)
class Gallery:
    """The exhibits, those with most artifact tokens first."""

    exhibits: tuple[Exhibit, ...]


def gallery(
    backbone: VitBackbone,
    pictures: Sequence[Picture],
    diagnosis: Diagnosis,
    *,
    count: int = COUNT,
) -> Gallery:
    """Read again the images with most artifact tokens; one forward pass for each.

    Args:
        backbone: The network that was diagnosed.
        pictures: The pictures that were looked at, in any order.
        diagnosis: What was found in them.
        count: Images to keep.
    """
    by_name = {picture.name: picture for picture in pictures}
    names = [diagnosis.observations.names[i] for i in most_telling(diagnosis, count)]
    chosen = [by_name[name] for name in names if name in by_name]
    seen = list(observe(backbone, chosen, size=diagnosis.size, layers=[diagnosis.peak]))
    if not seen:
        return Gallery(())
    pca = PCA.fit(torch.cat([one.map.flatten(1).T for one in seen]))
    return Gallery(
        tuple(
            Exhibit(
                name=one.name,
                photo=_small(one.photo),
                aspect=one.aspect,
                colours=pca.apply(one.map.permute(1, 2, 0)).numpy(),
            )
            for one in seen
        )
    )


def most_telling(diagnosis: Diagnosis, count: int) -> list[int]:
    """Number the images with most flagged tokens, of equals those whose norms spread most."""
    flags = diagnosis.flags().sum(dim=1).tolist()
    norms = diagnosis.observations.norms[:, diagnosis.peak]
    logs = (norms / norms.median(dim=1, keepdim=True).values.clamp(min=1e-12)).clamp(min=1e-12)
    spread = logs.log().abs().amax(dim=1).tolist()
    order = sorted(range(len(flags)), key=lambda i: (-flags[i], -spread[i]))
    return order[:count]


def _small(photo: NDArray[Any]) -> NDArray[np.uint8]:
    image = Image.fromarray(photo)
    image.thumbnail((SIDE, SIDE))
    return np.asarray(image)
