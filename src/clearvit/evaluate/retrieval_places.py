"""Place recognition: two traverses with a list of true pairs, or cities with positions."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clearvit.errors import ImageError
from clearvit.evaluate.retrieval_collection import Collection
from clearvit.images import find_images

NEAR = 25.0  # metres between a query and a right answer
BLOCK = 1024  # queries whose distances are computed at once
VALIDATION = ("cph", "sf")  # cities of MSLS whose positions are public and not for training
TABLE = "postprocessed.csv"


def read_vpr(root: Path) -> Collection:
    """Read query/, ref/ and ground_truth.json: {query number: [numbers of right answers]}."""
    asking, gallery = (_photos(root / part) for part in ("query", "ref"))
    truth = _truth(root / "ground_truth.json")
    positives = []
    for number in range(len(asking)):
        right = truth.get(str(number), [])
        if not all(isinstance(i, int) and 0 <= i < len(gallery) for i in right):
            raise ImageError(
                f"'{root / 'ground_truth.json'}' names answers of query {number} that are none of"
                f" the {len(gallery)} images in ref/."
            )
        positives.append(tuple(right))
    return _answerable("vpr", root, gallery, asking, positives)


def _photos(folder: Path) -> tuple[Path, ...]:
    if not folder.is_dir():
        raise ImageError(f"'{folder}' is no folder; place recognition needs query/ and ref/.")
    return tuple(Path(str(picture.source)) for picture in find_images(folder))


def _truth(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ImageError(f"'{file}' cannot be read: {error}") from error
    if not isinstance(content, dict) or not all(isinstance(v, list) for v in content.values()):
        raise ImageError(f"'{file}' must hold {{query number: [numbers of right answers]}}.")
    return content


def is_msls(root: Path) -> bool:
    """Tell whether a folder is Mapillary Street-level Sequences, its train_val/ or one city."""
    return bool(_cities(root))


def _cities(root: Path) -> list[Path]:
    for place in (root, root / "train_val"):
        if (place / "query" / TABLE).is_file():
            return [place]
        found = [c for c in VALIDATION if (place / c / "query" / TABLE).is_file()]
        if found:
            return [place / c for c in found]
        others = sorted(place.glob(f"*/query/{TABLE}"))
        if others:
            return [path.parents[1] for path in others]
    return []


def read_msls(root: Path) -> Collection:
    """Read MSLS: CITY/{query,database}/{postprocessed.csv,images}, answers within 25 m.

    Where they are present, the validation cities only. Panoramas, and queries without an answer,
    are left out, as in the published protocol.
    """
    gallery: list[Path] = []
    asking: list[Path] = []
    positives: list[tuple[int, ...]] = []
    cities = _cities(root)
    if not cities:
        raise ImageError(f"'{root}' has no city with query/{TABLE}.")
    for city in cities:
        ours, from_there = _positions(city / "query")
        theirs, there = _positions(city / "database")
        start = len(gallery)
        gallery += theirs
        asking += ours
        near = _near(from_there, there)
        positives += [tuple(start + i for i in row) for row in near]
    return _answerable("msls", root, gallery, asking, positives)


def _positions(folder: Path) -> tuple[list[Path], NDArray[np.float64]]:
    """Photos of one side of a city, and where they were taken, (N, 2) in metres."""
    panoramas = {
        row["key"]
        for row in _rows(folder / "raw.csv", required=False)
        if row.get("pano", "").strip().lower() == "true"
    }
    paths, places = [], []
    for row in _rows(folder / TABLE, required=True):
        try:
            key, place = row["key"], (float(row["easting"]), float(row["northing"]))
        except (KeyError, ValueError) as error:
            raise ImageError(
                f"'{folder / TABLE}' needs the columns key, easting and northing ({error})."
            ) from error
        if key not in panoramas:
            paths.append(folder / "images" / f"{Path(key).name}.jpg")
            places.append(place)
    return paths, np.array(places, dtype=np.float64).reshape(-1, 2)


def _rows(file: Path, *, required: bool) -> list[dict[str, str]]:
    if not required and not file.is_file():
        return []
    try:
        with open(file, newline="", encoding="utf-8") as stream:
            return list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ImageError(f"'{file}' cannot be read: {error}") from error


def _near(queries: NDArray[np.float64], gallery: NDArray[np.float64]) -> list[list[int]]:
    """Places of the gallery within reach of each query."""
    found: list[list[int]] = []
    for start in range(0, len(queries), BLOCK):
        between = queries[start : start + BLOCK, None] - gallery[None]
        close = (between**2).sum(-1) <= NEAR**2
        found += [np.flatnonzero(row).tolist() for row in close]
    return found


def _answerable(
    layout: str,
    root: Path,
    gallery: Sequence[Path],
    asking: Sequence[Path],
    positives: Sequence[tuple[int, ...]],
) -> Collection:
    """Leave out queries that nothing can answer."""
    kept = [i for i, right in enumerate(positives) if right]
    if not kept:
        raise ImageError(f"'{root}': no query has a right answer.")
    return Collection(
        layout,
        root,
        tuple(gallery),
        asking=tuple(asking[i] for i in kept),
        positives=tuple(positives[i] for i in kept),
    )
