"""Every ViT: timm's VisionTransformer, and Eva for rotary positions."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from typing_extensions import Self

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.blueprint import Blueprint
from clearvit.backbones.capture import capturing, check_kinds, per_block
from clearvit.backbones.guarded_timm import Eva, VisionTransformer
from clearvit.backbones.output import FineHead, OutputSteps
from clearvit.backbones.positions import resample_positions
from clearvit.backbones.preprocessing import Preprocessing
from clearvit.backbones.tokens import PerBlock, Tokens, split_prefix
from clearvit.errors import ModelError
from clearvit.options import PositionRule, Size


class Embedded(NamedTuple):
    """What enters the first block."""

    sequence: Tensor  # (B, P + N, C)
    grid: tuple[int, int]
    rope: Tensor | None  # rotary embedding of the patches; one per block if the network mixes them


class VitBackbone(Backbone):
    """A Vision Transformer with plain attention: every verb of clearvit works on it.

    Attributes:
        positions: How position embeddings are resized away from the native grid.
        blueprint: How to build the network again, for saving it.
        output: Linear steps after the final norm, such as a projection; None for none.
        fine: Head that gives the final patches on a finer grid, after those steps; None for none.
        grad_checkpointing: Recompute activations in the backward pass to save memory.
    """

    grad_checkpointing = False
    output: OutputSteps | None = None
    fine: FineHead | None = None
    network: Any  # timm's VisionTransformer or Eva; nn.Module does not know their attributes

    def __init__(
        self,
        network: nn.Module,
        preprocessing: Preprocessing,
        *,
        name: str,
        positions: PositionRule = "bicubic-antialias",
        blueprint: Blueprint | None = None,
    ) -> None:
        super().__init__(network, preprocessing, name=name)
        self.positions = positions
        self.blueprint = blueprint
        self.patch = _patch_size(self.network)
        self.width = self.network.embed_dim
        self.depth = len(self.network.blocks)
        self.prefix_names = _prefix_names(self.network)

    def forward(
        self,
        pixels: Tensor,
        *,
        layers: Sequence[int] | None = None,
        norm: bool = True,
        capture: Sequence[str] | str = (),
    ) -> Tokens:
        """Run the network on normalized pixels (B, 3, height, width), with gradients."""
        wanted = self.block_indices(layers or ())
        kinds = check_kinds(capture)
        captured_blocks = wanted or [self.depth - 1]
        outputs: dict[int, Tokens] = {}
        x, grid, rope = self.embed_pixels(pixels)
        with capturing(self.network.blocks, captured_blocks, kinds, len(self.prefix_names)) as seen:
            for index in range(self.depth):
                x = self.after_block(index, self.run_block(index, x, rope), grid)
                if index in wanted:
                    outputs[index] = self._cut(x, grid, norm)
        extra: dict[str, Any] = {"layers": PerBlock(outputs, self.depth)}
        final = self.finish(self._cut(x, grid, norm))
        return replace(final, **extra, **per_block(seen, self.depth))

    def finish(self, tokens: Tokens) -> Tokens:
        """Take the steps after the final norm, if there are any: `output`, then the head."""
        if not tokens.normed:
            return tokens
        if self.output is not None:
            patches = self.output.apply(tokens.patches, tokens.grid, self.without_steps())
            tokens = replace(tokens, patches=patches)
        return tokens if self.fine is None else self.fine.refine(tokens)

    def without_steps(self) -> Self:
        """Return the same backbone with nothing after the final norm."""
        other = copy.copy(self)
        other.output = other.fine = None
        return other

    @property
    def scale(self) -> int:
        """How many times finer than one cell per patch the final grid is."""
        return 1 if self.fine is None else self.fine.scale

    def to(self, device: str | torch.device) -> Self:
        """Move the weights to a device; returns the backbone itself."""
        if self.fine is not None:
            self.fine.to(device)
        return super().to(device)

    def run_block(
        self, index: int, x: Tensor, rope: Tensor | None, bias: Tensor | None = None
    ) -> Tensor:
        """Pass (B, T, C) through one block.

        Args:
            index: Which block, from 0.
            x: What enters it.
            rope: Rotary rows as `embed_pixels` gives them.
            bias: Added to the logits of its attention; broadcasts to (B, heads, T, T).
        """
        block = self.network.blocks[index]
        if self.grad_checkpointing and torch.is_grad_enabled():
            block = functools.partial(checkpoint, block, use_reentrant=False)
        extra: dict[str, Any] = {} if bias is None else {"attn_mask": bias.to(x.dtype)}
        if isinstance(self.network, Eva):
            mixed = rope is not None and getattr(self.network, "rope_mixed", False)
            extra["rope"] = rope[index] if mixed else rope  # type: ignore[index]
        return block(x, **extra)  # type: ignore[no-any-return]

    def after_block(self, index: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Let a subclass change what leaves a block, (B, P + N, C)."""
        return x

    def embed_pixels(self, pixels: Tensor) -> Embedded:
        """Turn pixels (B, 3, height, width) into the sequence that enters the first block."""
        network = self.network
        patches = self.embed_patches(pixels)
        grid = (patches.shape[1], patches.shape[2])
        patches = patches.flatten(1, 2)
        x = network.norm_pre(network.pos_drop(self.add_positions(patches, grid)))
        return Embedded(x, grid, _rotary(network, grid))

    def embed_patches(self, pixels: Tensor) -> Tensor:
        """Project pixels to patches (B, H, W, C), before positions, at any size."""
        return _embed_patches(self.network, pixels)

    def add_positions(self, patches: Tensor, grid: tuple[int, int]) -> Tensor:
        """Add positions to (B, N, C) and put the prefix tokens in front, (B, P + N, C)."""
        network = self.network
        names = ("cls_token", "dist_token", "reg_token")
        found = (getattr(network, name, None) for name in names)
        prefix = [t.expand(len(patches), -1, -1) for t in found if t is not None]
        if network.pos_embed is None:
            return torch.cat([*prefix, patches], dim=1)
        # A network either embeds the position of its prefix tokens too, or of its patches only.
        rows = 0 if network.no_embed_class else len(self.prefix_names)
        native = tuple(network.patch_embed.grid_size)
        table = resample_positions(network.pos_embed, native, grid, self.positions, prefix=rows)
        if network.no_embed_class:
            return torch.cat([*prefix, patches + table], dim=1)
        return torch.cat([*prefix, patches], dim=1) + table

    def _cut(self, x: Tensor, grid: tuple[int, int], norm: bool) -> Tokens:
        x = self.network.norm(x) if norm else x
        return split_prefix(x, self.prefix_names, grid, normed=norm)

    def _project(self, pixels: Tensor) -> Tensor:
        tokens = self.without_steps().forward(pixels)  # the network's own head takes its own tokens
        return self.network.forward_head(torch.cat([tokens.prefix, tokens.patches], 1))  # type: ignore[no-any-return]

    def project_patches(self, patches: Tensor) -> Tensor:
        """Pass final patch tokens (B, N, C) through the trained projection, (B, N, `embedding`)."""
        found: Tensor = self.network.head(self.network.fc_norm(patches))
        return found

    def around(self, network: nn.Module, blueprint: Blueprint | None) -> VitBackbone:
        """Return the same backbone around another network, which may have more prefix tokens."""
        other = copy.copy(self)
        other.network = network.eval()
        other.blueprint = blueprint
        other.prefix_names = _prefix_names(network)
        return other

    def block_indices(self, layers: Sequence[int]) -> list[int]:
        """Turn block numbers, negative ones from the end, into ascending numbers from 0."""
        for layer in layers:
            if not -self.depth <= layer < self.depth:
                raise ModelError(
                    f"'{self.name}' has blocks 0 to {self.depth - 1} (or -{self.depth} to -1),"
                    f" not {layer}."
                )
        return sorted({layer % self.depth for layer in layers})

    def _settings(self) -> tuple[object, ...]:
        steps = () if self.output is None else self.output.settings()
        head = () if self.fine is None else self.fine.settings()
        projection = ("embedding", self.embedding) if self.embedding else ()
        common = (self.positions, self.prefix_names, *steps, *head)
        return (*super()._settings(), *common, *projection)


def is_vit(network: nn.Module) -> bool:
    """Tell whether a network is one that `VitBackbone` can run."""
    return isinstance(network, (VisionTransformer, Eva))


def _embed_patches(network: Any, pixels: Tensor) -> Tensor:
    """Project patches to (B, H, W, C), whatever size the network was built for."""
    embed = network.patch_embed
    if hasattr(embed, "backbone"):  # hybrid: a small convolutional network before the projection
        features = embed.backbone(pixels)
        last = features[-1] if isinstance(features, (list, tuple)) else features
        return embed.proj(last).permute(0, 2, 3, 1)  # type: ignore[no-any-return]
    return embed.norm(embed.proj(pixels).permute(0, 2, 3, 1))  # type: ignore[no-any-return]


def _rotary(network: Any, grid: tuple[int, int]) -> Tensor | None:
    rope = getattr(network, "rope", None)
    if rope is None:
        return None
    embedding: Tensor = rope.get_embed(shape=grid)
    if embedding.shape[-2] != grid[0] * grid[1]:
        raise ModelError(
            "this network was built for one image size. Create it with dynamic_img_size=True,"
            " as clearvit.load('timm:...') does."
        )
    return embedding


def _prefix_names(network: Any) -> tuple[str, ...]:
    kinds = {"cls_token": "class", "dist_token": "distillation", "reg_token": "register"}
    names: list[str] = []
    for attribute, kind in kinds.items():
        token = getattr(network, attribute, None)
        names += [kind] * (0 if token is None else token.shape[1])
    return tuple(names)


def _patch_size(network: Any) -> Size:
    ratio = network.patch_embed.feat_ratio(as_scalar=False)
    return (int(ratio[0]), int(ratio[1]))
