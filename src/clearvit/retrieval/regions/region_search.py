"""Search for a part of an image: late interaction over the patches of all images.

Each patch of the part takes its best match in an image (MaxSim, after ColBERT, Khattab and Zaharia,
2020). LanceDB's multivector search reads floats only, which would double the size of an index, so
the bytes are scanned here; beyond some ten thousand images, only those of the nearest descriptors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from clearvit.errors import ImageError
from clearvit.retrieval.config import Matching, Region, SearchConfig
from clearvit.retrieval.explanations.null_similarity import NULL, notable_from
from clearvit.retrieval.index.arrow_rows import Entry, to_codes
from clearvit.retrieval.index.hits import Box, Hit, Hits, Query
from clearvit.retrieval.index.store import Store
from clearvit.retrieval.regions.location import locate

SCANNED = 20_000  # images up to which all are compared
SHORTLIST = 2_000  # nearest by descriptor that are compared in larger indexes
SMALLEST = 8  # pixels of a side of a region


def cut_region(image: Image.Image, region: Region, name: str) -> Image.Image:
    """Cut a region out of a query, (x0, y0, x1, y1) in its pixels."""
    left, upper, right, lower = region
    if not (0 <= left < right <= image.width and 0 <= upper < lower <= image.height):
        raise ImageError(
            f"the region {left},{upper},{right},{lower} does not lie in '{name}', which has"
            f" {image.width} x {image.height} pixels; x0 < x1 and y0 < y1 count from the top left."
        )
    if min(right - left, lower - upper) < SMALLEST:
        raise ImageError(
            f"the region {left},{upper},{right},{lower} of '{name}' is too small; its sides need at"
            f" least {SMALLEST} pixels."
        )
    return image.crop((left, upper, right, lower))


def search_region(store: Store, query: Query, config: SearchConfig) -> Hits:
    """Find the images in which a part of the query occurs; every hit has a box.

    A hit stands out if it is more similar to the part than random images of the index are.
    """
    assert query.features is not None
    patches = query.features.patches[0]
    names, scores, note = _score_all(store, query, config)
    order = sorted(range(len(names)), key=lambda i: (-scores[i], names[i]))[: config.k]
    found = store.fetch([names[i] for i in order])
    place = {entry.name: row for row, entry in enumerate(found.entries)}
    least = notable_from(maxsim(patches, store.sample(NULL).patches))
    hits = []
    for rank, i in enumerate((i for i in order if names[i] in place), 1):
        row = place[names[i]]
        entry, features = found.entries[row], found.features
        assert features is not None
        box = locate(patches @ features.patches[row].T, store.spec.grid, store.spec.grid)
        near = float(features.descriptors[row] @ query.features.descriptors[0])
        seen = _box_in_pixels(box, entry, query.aspect)
        hits.append(
            Hit(
                rank=rank,
                score=scores[i],
                global_similarity=near,
                patch_similarity=None,
                weight=0.0,
                entry=entry,
                query=query,
                matching=Matching("chamfer"),
                store=store,
                box=seen,
                stands_out=scores[i] >= least,
            )
        )
    note = " ".join(filter(None, (note, _count_clear(hits), query.note)))
    return Hits(hits, query=query, note=note)


def _count_clear(hits: Sequence[Hit]) -> str:
    """Say how many of the hits stand out; nothing if all do."""
    clear = sum(hit.stands_out for hit in hits)
    if clear == len(hits):
        return ""
    found = f"The first {clear} stand" if clear > 1 else "Only the first stands"
    return f"{found if clear else 'None stands'} out from random images of the index."


def maxsim(patches: Tensor, codes: Tensor) -> Tensor:
    """Average the best cosine of each patch of a part, over N images.

    Args:
        patches: Unit vectors of the part, (R, C).
        codes: Patches of the images, (N, P, C), of any norm above 0 and any format.
    """
    whole = codes.float()
    norms = whole.norm(dim=-1).clamp(min=torch.finfo(torch.float32).tiny)
    cosines = (whole @ patches.T) / norms[..., None]  # (N, P, R)
    best: Tensor = cosines.amax(1)
    return best.mean(1)


def _score_all(
    store: Store, query: Query, config: SearchConfig
) -> tuple[list[str], list[float], str]:
    """Names and scores of the images that are compared, and how that came about."""
    assert query.features is not None
    patches = query.features.patches[0]
    note = "Ranked by the best match of each patch of the region"
    if config.exact or len(store) <= SCANNED:
        names: list[str] = []
        scores: list[float] = []
        for batch in store.scan(["name", "patches"], where=config.where):
            names += batch["name"].to_pylist()
            scores += maxsim(patches, to_codes(batch, store.spec)).tolist()
        return names, scores, f"{note}, in all images."
    rows = store.nearest(
        query.features.descriptors[0],
        max(SHORTLIST, config.k),
        where=config.where,
        with_features=True,
        exact=False,
    )
    names = [entry.name for entry in rows.entries]
    if rows.features is None or not names:
        return [], [], note
    listed = maxsim(patches, rows.features.patches).tolist()
    return names, listed, f"{note}, in the {len(names)} images of the nearest descriptors."


def _box_in_pixels(box: Sequence[float], entry: Entry, aspect: float | None) -> Box:
    """Bring fractions of what the model sees of an image to its pixels."""
    left, upper, width, height = 0.0, 0.0, float(entry.width), float(entry.height)
    if aspect is not None and entry.width and entry.height:  # a centered crop
        width = min(entry.width, entry.height / aspect)
        height = width * aspect
        left, upper = (entry.width - width) / 2, (entry.height - height) / 2
    x0, y0, x1, y1 = box
    return (
        round(left + x0 * width),
        round(upper + y0 * height),
        round(left + x1 * width),
        round(upper + y1 * height),
    )
