"""A backbone whose every forward pass is the average over views."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.tokens import Tokens
from clearvit.cure.denoise import SAMPLERS, Sampler, average
from clearvit.cure.views import FRACTION, Views
from clearvit.errors import ModelError


class AveragedBackbone(Backbone):
    """Any backbone, cleaned at the cost of as many forward passes as there are views."""

    def __init__(
        self, backbone: Backbone, *, views: int, sampler: Sampler, fraction: float, batch: int = 8
    ) -> None:
        self.__dict__.update(copy.copy(backbone).__dict__)
        self.inner = backbone
        self.name = f"{backbone.name} x {views} views"
        self.views, self.sampler, self.fraction, self.batch = views, sampler, fraction, batch
        self.patch, self.width = backbone.patch, backbone.width
        self.prefix_names, self.depth = backbone.prefix_names, 0

    def forward(
        self,
        pixels: Tensor,
        *,
        layers: Sequence[int] | None = None,
        norm: bool = True,
        capture: Sequence[str] | str = (),
    ) -> Tokens:
        """Average the final tokens of all views of each picture."""
        if layers or capture or not norm:
            raise ModelError(
                f"'{self.name}' gives the final tokens only: blocks of different views are not"
                f" averaged. Ask the model itself, '{self.inner.name}'."
            )
        grid = (pixels.shape[2] // self.patch[0], pixels.shape[3] // self.patch[1])
        views = self.views_of(grid)
        parts = [average(self.inner, picture[None], views, grid, self.batch) for picture in pixels]
        return Tokens.concatenate(parts)

    def views_of(self, grid: tuple[int, int]) -> Views:
        """The views of a picture on this grid, the same for every picture."""
        return SAMPLERS[self.sampler](grid, self.views, fraction=self.fraction)

    def _project(self, pixels: Tensor) -> Tensor:
        return self.inner._project(pixels)

    def _settings(self) -> tuple[object, ...]:
        return (*self.inner._settings(), self.views, self.sampler, self.fraction)


def averaged(
    backbone: Backbone,
    *,
    views: int = 10,
    sampler: Sampler = "lattice",
    fraction: float = FRACTION,
) -> AveragedBackbone:
    """Wrap a backbone so that every forward pass is the average over views."""
    if views < 1:
        raise ModelError(f"{views} views make no average; give at least 1.")
    return AveragedBackbone(backbone, views=views, sampler=sampler, fraction=fraction)
