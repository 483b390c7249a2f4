"""Whether a hit stands out from random images of its collection.

Every patch has a nearest neighbor in any image, so a few strong matches prove little. What random
images of the collection reach is the null distribution: a hit that is no more similar to the query
than they are, by descriptor and by patches, needs many strong matches to count as a match.
"""

from __future__ import annotations

from torch import Tensor

from clearvit.retrieval.config import Matching
from clearvit.retrieval.image_features import FeatureSpec, ImageFeatures
from clearvit.retrieval.matching.parts import FEWEST
from clearvit.retrieval.matching.patch_matching import match

NULL = 100  # random images of the collection
SMALLEST = 20  # images that give a distribution; with fewer there is none
NOTABLE = 2.0  # robust deviations above random images
SCALE = 1.4826  # of a median absolute deviation, to a standard deviation
NEEDED, NEEDED_ELSE = 0.005, 0.04  # fraction of the patches with a strong match, if notable or not
CHAMFER = Matching("chamfer")


def needed_matches(
    query: ImageFeatures, hit: ImageFeatures, null: ImageFeatures, spec: FeatureSpec
) -> float:
    """Give the fraction of the patches that need a strong match, so that a pair is explained.

    Args:
        query: One image.
        hit: One image.
        null: Random images of the collection.
        spec: Of all of them.
    """
    if len(null.descriptors) < SMALLEST:
        return FEWEST
    by_descriptor = _deviations(
        hit.descriptors @ query.descriptors[0], null.descriptors @ query.descriptors[0]
    )
    asked = query.local_features(spec)
    by_patches = _deviations(
        *(match(asked, one.local_features(spec), CHAMFER).score for one in (hit, null))
    )
    return NEEDED if (by_descriptor + by_patches) / 2 >= NOTABLE else NEEDED_ELSE


def notable_from(null: Tensor) -> float:
    """Give the similarity from which an image stands out from random ones.

    Args:
        null: Similarities of random images of the collection, (N,).

    Returns:
        The least similarity; -inf where the images are too few to say.
    """
    if len(null) < SMALLEST:
        return float("-inf")
    middle, spread = _center(null)
    return float(middle + NOTABLE * spread)


def _deviations(value: Tensor, null: Tensor) -> float:
    """How many robust deviations a value (1,) lies above others, (N,)."""
    middle, spread = _center(null)
    return float((value[0] - middle) / spread)


def _center(null: Tensor) -> tuple[Tensor, Tensor]:
    """Median and robust deviation of (N,).

    A few of them are matches, and one may be the query itself; a median does not mind.
    """
    middle = null.median()
    return middle, SCALE * (null - middle).abs().median().clamp(min=1e-6)
