"""The table of a small index in memory, for whoever asks more than once.

To find and read a hundred rows takes the database longer than to compare their patches. So from the
second search on, a small table on a local disk is kept in memory, until anything is written to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.retrieval.image_features import FeatureSpec
from clearvit.retrieval.index.arrow_rows import to_descriptors

LARGEST = 100_000_000  # bytes of features: 18,000 images of a ViT-S
State = tuple[int, ...]


@dataclass(frozen=True)
class HeldTable:
    """All rows of an index at one moment."""

    state: State  # of the files when they were read
    rows: Any  # Arrow table, one chunk
    descriptors: Tensor  # (N, D), unit norm, float32

    def nearest(self, query: Tensor, count: int) -> tuple[Any, Tensor]:
        """Give the rows nearest to a vector (D,), best first, and their cosines, (K,)."""
        cosines = self.descriptors @ F.normalize(query.float(), dim=0)
        best = cosines.topk(min(count, len(cosines)))
        return self.rows.take(best.indices.numpy()), best.values


class Holder:
    """Holds the table of one index, if it is small and searched more than once."""

    def __init__(self, folder: str, spec: FeatureSpec) -> None:
        self._versions = None if "://" in folder else os.path.join(folder, "_versions")
        self._spec = spec
        self._held: HeldTable | None = None
        self._asked: State | None = None  # the state at the last search

    def find(self, table: Any, read: Callable[[], Any]) -> HeldTable | None:
        """Give the table as it is now; None if it is large, remote, or asked for the first time.

        Args:
            table: Of LanceDB, for its version.
            read: Reads all rows.
        """
        if self._versions is None:
            return None
        state = self._state(table)
        if self._held is not None and self._held.state == state:
            return self._held
        self._held = None
        again, self._asked = self._asked == state, state
        if again and table.count_rows() * row_bytes(self._spec) <= LARGEST:
            rows = read().combine_chunks()
            vectors = F.normalize(to_descriptors(rows, self._spec), dim=1)
            self._held = HeldTable(state, rows, vectors)
        return self._held

    def _state(self, table: Any) -> State:
        """Tell apart what is on disk: by version, and by directory, which may be replaced."""
        assert self._versions is not None
        found = os.stat(self._versions)
        return int(table.version), found.st_ino, found.st_mtime_ns


def row_bytes(spec: FeatureSpec) -> int:
    """Estimate the bytes of an image in memory, names and paths left out."""
    kept = 1 if spec.patch_format == "int8" else 2
    single = torch.finfo(torch.float32).bits // 8
    return spec.cells * (spec.width * kept + 2) + spec.channels * (2 + single)
