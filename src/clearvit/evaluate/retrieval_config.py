"""What can be chosen about the tasks "retrieval" and "explanation"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

from clearvit.errors import ModelError, closest
from clearvit.retrieval.describe import DESCRIPTORS, MARGINALS, Descriptor, Marginal
from clearvit.retrieval.matching import METHODS, Matching, Method

Weighing = Marginal | Literal["cross"]
WEIGHINGS = (*MARGINALS, "cross")
Mass = float | Literal["auto"]
Weight = float | Literal["guard"]


@dataclass(frozen=True)
class RetrievalConfig:
    """Every method with every marginal, mass and weight is one row of the table."""

    rerank: int = 100  # of the nearest, compared patch by patch; 0: descriptors only
    methods: tuple[Method, ...] = ("transport",)
    marginals: tuple[Weighing, ...] = ("auto",)  # as in IndexConfig, or DIML's "cross"
    masses: tuple[Mass, ...] = (1.0,)  # of transport; "auto" is chosen per pair
    weights: tuple[Weight, ...] = (1.0, "guard")  # of structure; the guard decides without labels
    grid: int = 7  # patches per side
    descriptor: Descriptor = "auto"
    recall: tuple[int, ...] = (1, 5, 10)  # the k of Recall@k
    masked: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5)  # shares of the patches, by deletion tests

    def __post_init__(self) -> None:
        known = {"methods": METHODS, "marginals": WEIGHINGS, "descriptor": DESCRIPTORS}
        for name, words in known.items():
            given = getattr(self, name)
            for word in (given,) if isinstance(given, str) else given:
                if word not in words:
                    raise ModelError(
                        f"{name} is '{word}'; use {', '.join(words)}.{closest(str(word), words)}"
                    )
        if self.rerank < 0 or self.grid < 1 or not self.recall or min(self.recall) < 1:
            raise ModelError("rerank must be at least 0, grid and every k of recall at least 1.")
        for mass in self.masses:
            if mass != "auto" and not (isinstance(mass, (int, float)) and 0 < mass <= 1):
                raise ModelError(f"mass is {mass}; use a share above 0 and up to 1, or auto.")
        for weight in self.weights:
            if weight != "guard" and not (isinstance(weight, (int, float)) and weight > 0):
                raise ModelError(f"weight is {weight}; use a number above 0, or guard.")
        if not self.masked or not all(0 < share < 1 for share in self.masked):
            raise ModelError("masked holds shares of the patches between 0 and 1.")

    def comparisons(self) -> Iterator[tuple[Matching, Weighing]]:
        """List the ways to compare two images; only transport knows masses."""
        for method, marginal in product(self.methods, self.marginals):
            for mass in self.masses if method == "transport" else (1.0,):
                yield Matching(method, mass=mass, cross=marginal == "cross"), marginal


def comparison_name(matching: Matching, marginal: str) -> str:
    """Name a way to compare, as the table shows it."""
    mass = "" if matching.mass == 1 else f", mass {matching.mass}"
    return f"{matching.method}, {marginal}{mass}"
