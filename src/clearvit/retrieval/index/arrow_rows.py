"""Rows of an index as Arrow holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearvit.retrieval.facets.patch_codes import dequantize, quantize
from clearvit.retrieval.image_features import OLDER, FeatureSpec, ImageFeatures

KEY = b"clearvit"
FILTERS = ("name", "path", "folder", "label", "bytes", "mtime", "width", "height")

NUMPY = {"int8": np.int8, "halffloat": np.float16, "float": np.float32}  # of names of Arrow


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
    kind = pa.float32() if spec.format == OLDER else pa.float16()
    code = pa.int8() if spec.patch_format == "int8" else pa.float16()
    fields += [
        pa.field("vector", pa.list_(kind, spec.channels)),
        pa.field("patches", pa.list_(code, spec.cells * spec.width)),
        pa.field("weights", pa.list_(kind, spec.cells)),
    ]
    return pa.schema(fields, metadata={KEY: spec.to_json().encode()})


def whitening_schema() -> Any:
    """Give the columns of the whitenings of an index: their bytes under their hash."""
    import pyarrow as pa

    return pa.schema([("key", pa.string()), ("value", pa.binary())])


def decision_schema() -> Any:
    """Give the columns of what was decided about an index: a text under a key."""
    import pyarrow as pa

    return pa.schema([("key", pa.string()), ("value", pa.string())])


def to_arrow(entries: Sequence[Entry], features: ImageFeatures, spec: FeatureSpec) -> Any:
    """Give images and their features as a table."""
    import pyarrow as pa

    schema = table_schema(spec)

    def lists(name: str, tensor: Tensor) -> Any:
        kind = NUMPY[str(schema.field(name).type.value_type)]
        values: NDArray[Any] = tensor.flatten(1).numpy().astype(kind)
        return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])

    patches = features.patches
    columns: dict[str, Any] = {f: [getattr(entry, f) for entry in entries] for f in FILTERS}
    columns["vector"] = lists("vector", features.descriptors)
    columns["patches"] = lists(
        "patches", quantize(patches) if spec.patch_format == "int8" else patches
    )
    columns["weights"] = lists("weights", features.weights)
    return pa.table(columns, schema=schema)


def to_features(found: Any, spec: FeatureSpec) -> ImageFeatures:
    """Give the features of rows; patches of one byte become unit vectors again."""
    patches = to_codes(found, spec)
    weights = _matrix(found["weights"]).float().reshape(-1, spec.cells)
    return ImageFeatures(
        descriptors=to_descriptors(found, spec),
        patches=dequantize(patches) if patches.dtype is torch.int8 else patches.float(),
        weights=weights / weights.sum(1, keepdim=True),  # rounded to half precision
    )


def to_descriptors(found: Any, spec: FeatureSpec) -> Tensor:
    """Give the descriptors of rows, (rows, D) float32."""
    return _matrix(found["vector"]).float().reshape(-1, spec.channels)


def to_codes(found: Any, spec: FeatureSpec) -> Tensor:
    """Give the patches of rows as they are kept, (rows, R, C) int8 or float16."""
    return _matrix(found["patches"]).reshape(-1, spec.cells, spec.width)


def _matrix(column: Any) -> Tensor:
    """Give the values of a column of lists in their own format."""
    chunks = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    values = chunks.flatten().to_numpy(zero_copy_only=False)
    # A copy, since arrow's memory is read-only; torch widens halves far faster than numpy.
    return torch.from_numpy(np.array(values))
