"""A backbone whose every forward pass is the average over views."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from typing_extensions import Self

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.saved import load_saved, save
from clearvit.backbones.tokens import Tokens
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError
from clearvit.files import write_json
from clearvit.options import PositionRule, Size, choices_of
from clearvit.precision import uses_bf16
from clearvit.schema import (
    Rule,
    either,
    list_of,
    nothing,
    number,
    one_of,
    read_checked,
    table,
    whole,
)
from clearvit.views.config import DenoiseConfig, Kernel, Refine, Sampler
from clearvit.views.denoise import denoise_pixels, views_for

MARKER, FORMAT = "denoised.json", 1
_SIDE = whole(1, 1 << 16)
RULES: dict[str, Rule] = {
    "format": one_of(FORMAT),
    "views": table(
        {
            "views": whole(1, 1 << 16),
            "scale": whole(1, 16),
            "sampler": one_of(*choices_of(Sampler)),
            "fraction": number(0, 0.999),
            "kernel": one_of(*choices_of(Kernel)),
            "width": either(nothing, number(1e-3, 4)),
            "size": either(nothing, _SIDE, list_of(_SIDE, 2, 2)),
            "refine": one_of(*choices_of(Refine)),
            "seed": whole(-(1 << 63), (1 << 63) - 1),
            "batch": whole(1, 1 << 16),
        }
    ),
}


class DenoisedBackbone(Backbone):
    """Any backbone, cleaned and made finer at the cost of a forward pass per view."""

    def __init__(self, backbone: Backbone, config: DenoiseConfig) -> None:
        self.__dict__.update(copy.copy(backbone).__dict__)
        fine = f", scale {config.scale}" if config.scale > 1 else ""
        self.inner, self.config = backbone, config
        self.name = f"{backbone.name} x {config.views} views{fine}"
        self.patch, self.width = backbone.patch, backbone.width
        self.prefix_names, self.depth = backbone.prefix_names, 0
        self.embedding = backbone.embedding

    def forward(
        self,
        pixels: Tensor,
        *,
        layers: Sequence[int] | None = None,
        norm: bool = True,
        capture: Sequence[str] | str = (),
    ) -> Tokens:
        """Gather the final tokens of all views of each image."""
        why = f"averages views at the end. Ask the model itself, '{self.inner.name}'."
        self._refuse_blocks(layers, norm, capture, why)
        views = views_for(self.inner, pixels, self.config)
        per_pass = max(1, self.config.batch // len(views))
        parts = [
            denoise_pixels(self.inner, some, views, self.config) for some in pixels.split(per_pass)
        ]
        return Tokens.concatenate(parts)

    def check_views(self, size: int | Size | None = None) -> None:
        """Refuse, before any pass, views that do not suffice for images of a size in pixels."""
        views_for(self.inner, torch.empty(1, 3, *self.inner.fitting_size(size)), self.config)

    @property
    def scale(self) -> int:
        """How many times finer than the model's own the grid is."""
        return self.config.scale

    @property
    def device(self) -> torch.device:
        """Where the views are run."""
        return self.inner.device

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the pixels that the model takes."""
        return self.inner.dtype

    def to(self, device: str | torch.device) -> Self:
        """Move the model to a device; returns the backbone itself."""
        self.inner.to(device)
        return self

    def save(self, out: str | Path, *, kind: str = "model") -> Path:
        """Write the model and how its views are taken; `clearvit.load("dir:OUT")` restores both.

        Plain timm loads the network from the same directory, without the views.
        """
        if not isinstance(self.inner, VitBackbone) or hasattr(self.inner, "save"):
            raise ModelError(
                f"'{self.name}' cannot be saved: only a ViT that is not pruned can be written with"
                " its views. Save its tokens: clearvit tokens --views."
            )
        folder = save(self.inner, out, kind=kind)
        views = {k: v for k, v in dataclasses.asdict(self.config).items() if k != "precision"}
        write_json(folder / MARKER, {"format": FORMAT, "views": views})
        return folder

    def _project(self, pixels: Tensor) -> Tensor:
        return self.inner._project(pixels)

    def _settings(self) -> tuple[object, ...]:
        views = dataclasses.asdict(self.config)
        if views.pop("precision") != "no" and uses_bf16(self.device, self.config.precision):
            views["bf16"] = True  # what "auto" means here
        # An exported graph has no weights here: its files tell what it is.
        files = () if self.network.state_dict() else (self.inner.fingerprint(),)
        return (*self.inner._settings(), tuple(views.values()), *files)


def with_views(
    backbone: Backbone, views: int | None, scale: int, *, refine: Refine = "none", batch: int = 16
) -> Backbone:
    """Wrap a backbone so that it gathers views, as many as asked or as the scale needs.

    One view on the model's own grid is the backbone itself.
    """
    count = scale**2 if views is None else views
    if count == 1 and scale == 1 and refine == "none":
        return backbone
    config = DenoiseConfig(views=count, scale=scale, refine=refine, batch=batch)
    return DenoisedBackbone(backbone, config)


def load_denoised(path: str | Path, positions: PositionRule | None = None) -> DenoisedBackbone:
    """Load what `DenoisedBackbone.save` wrote."""
    folder = Path(path)
    content = read_checked(folder / MARKER, RULES, error=ModelError, version="format")
    config = DenoiseConfig(**content["views"])
    denoised = DenoisedBackbone(load_saved(folder, positions), config)
    denoised.name = f"dir:{folder}"
    return denoised
