"""A backbone whose every forward pass is the average over views."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence

from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.tokens import Tokens
from clearvit.errors import ModelError
from clearvit.options import Size
from clearvit.views.config import DenoiseConfig
from clearvit.views.denoise import denoise_pixels, views_for


class DenoisedBackbone(Backbone):
    """Any backbone, cleaned and made finer at the cost of a forward pass per view."""

    def __init__(self, backbone: Backbone, config: DenoiseConfig) -> None:
        self.__dict__.update(copy.copy(backbone).__dict__)
        fine = f", scale {config.scale}" if config.scale > 1 else ""
        self.inner, self.config = backbone, config
        self.name = f"{backbone.name} x {config.views} views{fine}"
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
        """Gather the final tokens of all views of each image."""
        if layers or capture or not norm:
            raise ModelError(
                f"'{self.name}' gives the final tokens only: blocks of different views are not"
                f" averaged. Ask the model itself, '{self.inner.name}'."
            )
        views = views_for(self.inner, pixels, self.config)
        per_pass = max(1, self.config.batch // len(views))
        parts = [
            denoise_pixels(self.inner, some, views, self.config) for some in pixels.split(per_pass)
        ]
        return Tokens.concatenate(parts)

    def grid_of(self, size: Size) -> Size:
        """The grid of an image of (height, width) pixels: finer than the model's own by `scale`."""
        height, width = self.inner.grid_of(size)
        return height * self.config.scale, width * self.config.scale

    def _project(self, pixels: Tensor) -> Tensor:
        return self.inner._project(pixels)

    def _settings(self) -> tuple[object, ...]:
        return (*self.inner._settings(), dataclasses.astuple(self.config))
