"""Backbones with a grid of features but without plain attention: Swin, ConvNeXt, ResNet, CvT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.preprocessing import Preprocessing
from clearvit.backbones.sources.staged_attention import Reader, swin_reader
from clearvit.backbones.tokens import Tokens
from clearvit.errors import ModelError

Features = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Pixels (B, 3, height, width) -> map (B, C, H, W) and prefix tokens (B, P, C)."""


class GridBackbone(Backbone):
    """A network that offers `tokens` for retrieval and probes, without layers.

    Attributes:
        reader: Collects the attention of its blocks, on their own grids, for patch weights; None
            for networks without attention.
    """

    def __init__(
        self,
        network: nn.Module,
        preprocessing: Preprocessing,
        *,
        name: str,
        features: Features,
        stride: int,
        width: int,
        reader: Reader | None = None,
    ) -> None:
        super().__init__(network, preprocessing, name=name)
        self.patch = (stride, stride)
        self.width = width
        self._features, self.reader = features, reader

    def forward(
        self,
        pixels: Tensor,
        *,
        layers: Sequence[int] | None = None,
        norm: bool = True,
        capture: Sequence[str] | str = (),
    ) -> Tokens:
        """Run the network on normalized pixels (B, 3, height, width), with gradients."""
        kind = type(self.network).__name__
        why = f"is a grid-only backbone ({kind}) without plain attention. Use a ViT for those."
        self._refuse_blocks(layers, norm, capture, why)
        grid, prefix = self._features(pixels)
        return Tokens(
            patches=grid.flatten(2).transpose(1, 2),
            prefix=prefix,
            grid=(grid.shape[2], grid.shape[3]),
            prefix_names=("class",) * prefix.shape[1],
        )


def timm_grid(network: Any, preprocessing: Preprocessing, *, name: str) -> GridBackbone:
    """Wrap a timm network whose `forward_features` gives a map, channels first or last."""
    last = (getattr(network, "feature_info", None) or [None])[-1]
    if last is None:
        raise ModelError(
            f"'{name}' is a {type(network).__name__}: neither a VisionTransformer or Eva of timm"
            " nor a network with a feature map. Pass a timm model."
        )
    channels_last = str(getattr(network, "output_fmt", "NCHW")).endswith("NHWC")

    def features(pixels: Tensor) -> tuple[Tensor, Tensor]:
        try:
            grid = network.forward_features(pixels)
        except AssertionError as error:  # timm's check of the input size
            raise ModelError(
                f"'{name}' ({type(network).__name__}) was built for one image size: {error} Use"
                " that size, or create the network with strict_img_size=False."
            ) from error
        if grid.ndim != 4:
            raise ModelError(
                f"'{name}' ({type(network).__name__}) returns {tuple(grid.shape)} instead of a"
                " feature map; only ViTs and networks with a map can be loaded."
            )
        grid = grid.permute(0, 3, 1, 2) if channels_last else grid
        return grid, torch.empty(len(grid), 0, grid.shape[1], dtype=grid.dtype, device=grid.device)

    return GridBackbone(
        network,
        preprocessing,
        name=name,
        features=features,
        stride=int(last["reduction"]),
        width=int(network.num_features),
        reader=swin_reader(network),
    )
