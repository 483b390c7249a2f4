"""Visual place recognition: two traverses with known pairs, or cities with positions."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clearvit.datasets.retrieval_dataset import RetrievalDataset
from clearvit.errors import ImageError
from clearvit.images import find_images

NEAR = 25.0  # meters between a query and a positive, at most
BLOCK = 1024  # queries whose distances are computed at once
VALIDATION = ("cph", "sf")  # cities of MSLS whose positions are public and not for training
TABLE = "postprocessed.csv"


def read_vpr(root: Path) -> RetrievalDataset:
    """Read query/, ref/ and ground_truth.json: {query index: [indices of its positives]}."""
    queries, gallery = (_find_images(root / part) for part in ("query", "ref"))
    truth = _read_truth(root / "ground_truth.json")
    positives = []
    for number in range(len(queries)):
        found = truth.get(str(number), [])
        if not all(isinstance(i, int) and 0 <= i < len(gallery) for i in found):
            raise ImageError(
                f"'{root / 'ground_truth.json'}' names positives of query {number} that are none of"
                f" the {len(gallery)} images in ref/."
            )
        positives.append(tuple(found))
    return _with_positives("vpr", root, gallery, queries, positives)


def _find_images(folder: Path) -> tuple[Path, ...]:
    if not folder.is_dir():
        raise ImageError(f"'{folder}' is no folder; place recognition needs query/ and ref/.")
    return tuple(Path(str(image.source)) for image in find_images(folder))


def _read_truth(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ImageError(f"'{file}' cannot be read: {error}") from error
    if not isinstance(content, dict) or not all(isinstance(v, list) for v in content.values()):
        raise ImageError(f"'{file}' must hold {{query index: [indices of its positives]}}.")
    return content


def is_msls(root: Path) -> bool:
    """Tell whether a folder is Mapillary Street-level Sequences, its train_val/ or one city."""
    return bool(_find_cities(root))


def _find_cities(root: Path, training: bool = False) -> list[Path]:
    for base in (root, root / "train_val"):
        if (base / "query" / TABLE).is_file():
            return [base]
        present = sorted(path.parents[1] for path in base.glob(f"*/query/{TABLE}"))
        judging = [city for city in present if city.name in VALIDATION]
        others = [city for city in present if city.name not in VALIDATION]
        if present:
            return others if training else judging or others
    return []


def read_msls(root: Path, training: bool = False) -> RetrievalDataset:
    """Read MSLS: CITY/{query,database}/{postprocessed.csv,images}; positives lie within 25 m.

    Where the validation cities are present, only these are read, or with `training` all others.
    Panoramas and queries without a
    positive are left out, as in the published protocol.
    """
    gallery: list[Path] = []
    queries: list[Path] = []
    positives: list[tuple[int, ...]] = []
    cities = _find_cities(root, training)
    if not cities:
        kind = "training city" if training else "city"
        raise ImageError(
            f"'{root}' has no {kind} with query/{TABLE}"
            + (f" ({' and '.join(VALIDATION)} judge)." if training else ".")
        )
    for city in cities:
        query_paths, query_positions = _read_positions(city / "query")
        database_paths, database_positions = _read_positions(city / "database")
        near = _find_near(query_positions, database_positions)
        positives += [tuple(len(gallery) + i for i in row) for row in near]
        gallery += database_paths
        queries += query_paths
    return _with_positives("msls", root, gallery, queries, positives)


def _read_positions(folder: Path) -> tuple[list[Path], NDArray[np.float64]]:
    """Read the images of one side of a city and their positions, (N, 2) in meters."""
    panoramas = {
        row["key"]
        for row in _read_rows(folder / "raw.csv", required=False)
        if row.get("pano", "").strip().lower() == "true"
    }
    paths, positions = [], []
    for row in _read_rows(folder / TABLE, required=True):
        try:
            key, position = row["key"], (float(row["easting"]), float(row["northing"]))
        except (KeyError, ValueError) as error:
            raise ImageError(
                f"'{folder / TABLE}' needs the columns key, easting and northing ({error})."
            ) from error
        if key not in panoramas:
            paths.append(folder / "images" / f"{Path(key).name}.jpg")
            positions.append(position)
    return paths, np.array(positions, dtype=np.float64).reshape(-1, 2)


def _read_rows(file: Path, *, required: bool) -> list[dict[str, str]]:
    if not required and not file.is_file():
        return []
    try:
        with open(file, newline="", encoding="utf-8") as stream:
            return list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ImageError(f"'{file}' cannot be read: {error}") from error


def _find_near(queries: NDArray[np.float64], gallery: NDArray[np.float64]) -> list[list[int]]:
    """Indices of the gallery images within NEAR of each query."""
    found: list[list[int]] = []
    for start in range(0, len(queries), BLOCK):
        between = queries[start : start + BLOCK, None] - gallery[None]
        close = (between**2).sum(-1) <= NEAR**2
        found += [np.flatnonzero(row).tolist() for row in close]
    return found


def _with_positives(
    layout: str,
    root: Path,
    gallery: Sequence[Path],
    queries: Sequence[Path],
    positives: Sequence[tuple[int, ...]],
) -> RetrievalDataset:
    """Leave out queries without positives."""
    kept = [i for i, found in enumerate(positives) if found]
    if not kept:
        raise ImageError(f"'{root}': no query has a positive in the gallery.")
    return RetrievalDataset(
        layout,
        root,
        tuple(gallery),
        queries=tuple(queries[i] for i in kept),
        positives=tuple(positives[i] for i in kept),
    )
