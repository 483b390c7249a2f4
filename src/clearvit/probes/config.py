"""Words that options of probes may have; light, so that the command line can import them."""

from __future__ import annotations

from typing import Literal

Pooling = Literal["class", "mean", "both"]
ClassificationMethod = Literal["knn", "linear", "prototypes"]
