"""Rows of an index as Arrow holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearvit.retrieval.image_features import FeatureSpec, ImageFeatures

KEY = b"clearvit"
FILTERS = ("name", "path", "folder", "label", "bytes", "mtime", "width", "height")


@dataclass(frozen=True)
class Entry:
    """What an index knows of a file."""

    name: str  # unique in the index: the path relative to the folder, with "/"
    path: str  # absolute; empty for an image that was never a file
    folder: str  # of the name, with "/"; empty at the top
    label: str  # last part of the folder
    bytes: int
    mtime: int  # nanoseconds
    width: int  # pixels of the original
    height: int

    def same_file(self, other: Entry) -> bool:
        """Tell whether size and time of the file are those of another."""
        return (self.bytes, self.mtime) == (other.bytes, other.mtime)


def table_schema(spec: FeatureSpec) -> Any:
    """Give the columns of an index, with its spec as metadata."""
    import pyarrow as pa

    text, number = pa.string(), pa.int64()
    kinds = {"name": text, "path": text, "folder": text, "label": text}
    fields = [pa.field(name, kinds.get(name, number)) for name in FILTERS]
    fields += [
        pa.field("vector", pa.list_(pa.float32(), spec.channels)),
        pa.field("patches", pa.list_(pa.float16(), spec.cells * spec.width)),
        pa.field("weights", pa.list_(pa.float32(), spec.cells)),
    ]
    return pa.schema(fields, metadata={KEY: spec.to_json().encode()})


def decision_schema() -> Any:
    """Give the columns of what was decided about an index: a text under a key."""
    import pyarrow as pa

    return pa.schema([("key", pa.string()), ("value", pa.string())])


def to_arrow(entries: Sequence[Entry], features: ImageFeatures, spec: FeatureSpec) -> Any:
    """Give images and their features as a table."""
    import pyarrow as pa

    def lists(tensor: Tensor, kind: type[np.floating[Any]]) -> Any:
        values: NDArray[Any] = tensor.flatten(1).numpy().astype(kind)
        return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])

    columns: dict[str, Any] = {f: [getattr(entry, f) for entry in entries] for f in FILTERS}
    columns["vector"] = lists(features.descriptors, np.float32)
    columns["patches"] = lists(features.patches, np.float16)
    columns["weights"] = lists(features.weights, np.float32)
    return pa.table(columns, schema=table_schema(spec))


def to_matrix(column: Any, width: int) -> Tensor:
    """Give a column of lists as float32, (rows, width)."""
    values = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    # A copy, since arrow's memory is read-only; torch widens halves far faster than numpy.
    return torch.from_numpy(np.array(values)).float().reshape(-1, width)
