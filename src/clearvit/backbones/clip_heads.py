"""Dense heads of CLIP-like models: every patch in the text space.

CLIP trains its class token only; its last block mixes the patches until they no longer say where
things are. Each head replaces what that block does, without training, and then applies the final
norm and the projection to every token.

MaskCLIP: Zhou et al., "Extract Free Dense Labels from CLIP", ECCV 2022. SCLIP: Wang et al., ECCV
2024. ClearCLIP: Lan et al., ECCV 2024. NACLIP: Hajimiri et al., "Pay Attention to Your Neighbours",
WACV 2025.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Self

from clearvit.backbones.blueprint import Blueprint
from clearvit.backbones.capture import capturing, check_kinds, per_block, project
from clearvit.backbones.guarded_timm import Attention, AttentionRope, Block, EvaAttention, EvaBlock
from clearvit.backbones.tokens import PerBlock, Tokens, split_prefix
from clearvit.backbones.vit import Embedded, VitBackbone
from clearvit.errors import ModelError, closest
from clearvit.options import ClipHead, Size

HEADS: tuple[ClipHead, ...] = get_args(ClipHead)
STD = 5.0  # standard deviation of NACLIP's window, in patches


@dataclass(frozen=True)
class HeadRecipe:
    """What replaces the last block.

    The values are averaged once for each projection in `similarity`, weighted by the similarity of
    that projection with itself, and the results are added; without any, each token keeps its value.
    """

    similarity: tuple[str, ...] = ()  # "query", "key"
    window: bool = False  # attend nearby only, by a Gaussian
    residual: bool = False  # keep the residual connections and the MLP


RECIPES: dict[str, HeadRecipe] = {
    "maskclip": HeadRecipe(),
    "naclip": HeadRecipe(("key",), window=True),
    "sclip": HeadRecipe(("query", "key"), residual=True),  # its paper changes the attention only
    "clearclip": HeadRecipe(("query",)),
}


def dense_clip(
    backbone: VitBackbone, head: ClipHead = "maskclip", *, std: float = STD
) -> DenseClip:
    """Return a CLIP-like model with its patches in the joint space of images and texts.

    Args:
        backbone: A ViT with a projection; it is shared, not copied, and stays as it was. Of a
            `DenseClip` only the head is replaced.
        head: What replaces the last block. "clip" leaves it as it is and projects every
            token; "maskclip" passes values on without attention; "naclip" attends to similar keys
            nearby; "sclip" to similar queries and similar keys; "clearclip" to similar queries.
        std: Width of NACLIP's window, in patches; the other heads have none.
    """
    plain = backbone.plain if isinstance(backbone, DenseClip) else backbone
    if head not in HEADS:
        raise ModelError(f"head is '{head}'; use {', '.join(HEADS)}.{closest(head, HEADS)}")
    if not (math.isfinite(std) and std > 0):
        raise ModelError(f"std is {std}; give a positive number of patches.")
    _check_projection(plain)
    if head != "clip":
        _check_last_block(plain.network, plain.name)
    return DenseClip(plain, head, std)


class DenseClip(VitBackbone):
    """A CLIP-like model whose tokens lie in the text space; made by `dense_clip`.

    `tokens(images).patches` and `.prefix` have D channels, those of `text.encode`. With norm=False
    only the final norm is left out; the projection is linear and stays. `layers` and `capture`
    still give the blocks of the network itself, with C channels.

    The class token among the tokens passed the head too. `embed` gives that of the network.

    Attributes:
        plain: The same network without the head.
        head: What replaces the last block.
        std: Width of NACLIP's window, in patches.
    """

    def __init__(self, plain: VitBackbone, head: ClipHead, std: float) -> None:
        self.__dict__.update(plain.__dict__)
        self.plain = plain
        self.head = head
        self.std = float(std)
        self.width = plain.network.head.out_features

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
        last = self.depth - 1
        inner = wanted or ([last] if kinds else [])
        outputs: dict[int, Tokens] = {}
        x, grid, rope = self.embed_pixels(pixels)
        with capturing(self.network.blocks, inner, kinds, len(self.prefix_names)) as seen:
            for index in range(self.depth):
                entering = x
                if index < last or last in inner or self.head == "clip":
                    x = self.after_block(index, self.run_block(index, x, rope), grid)
                if index in wanted:
                    outputs[index] = self.plain._cut(x, grid, norm)
        if self.head != "clip":
            x = self.after_block(last, self._replace_last_block(entering, grid, rope), grid)
        tokens = split_prefix(self._to_text_space(x, norm), self.prefix_names, grid, normed=norm)
        extra: dict[str, Any] = {"layers": PerBlock(outputs, self.depth)}
        return replace(tokens, **extra, **per_block(seen, self.depth))

    def _replace_last_block(self, x: Tensor, grid: tuple[int, int], rope: Tensor | None) -> Tensor:
        """Apply the head to what enters the last block, (B, P + N, C)."""
        block, recipe = self.network.blocks[-1], RECIPES[self.head]
        if rope is not None and getattr(self.network, "rope_mixed", False):
            rope = rope[-1]
        entered = block.norm1(x)
        value = project(block.attn, entered, "value")
        bias = None
        if recipe.window:
            bias = _window_bias(
                grid, len(self.prefix_names), self.std, device=value.device, dtype=value.dtype
            )
        mixed = value
        if recipe.similarity:
            parts = [project(block.attn, entered, part, rope) for part in recipe.similarity]
            means = [average_values(part, value, block.attn.scale, bias) for part in parts]
            mixed = functools.reduce(torch.add, means)
        out = _scale_layer(block, 1, _join_heads(block.attn, mixed, entered))
        if not recipe.residual:
            return out
        x = x + out
        return x + _scale_layer(block, 2, block.mlp(block.norm2(x)))

    def _to_text_space(self, x: Tensor, norm: bool) -> Tensor:
        """Take (B, P + N, C) to the text space, (B, P + N, D)."""
        if norm:
            x = self.network.fc_norm(self.network.norm(x))  # one of the two does nothing
        return self.network.head(x)  # type: ignore[no-any-return]

    def unused_parameters(self) -> set[str]:
        """Name the parameters of the network that the tokens do not depend on.

        They get no gradient, which distributed training has to know. Queries and keys that share
        one matrix with the values are not among them: a part of that matrix is used.
        """
        recipe = RECIPES.get(self.head)
        if recipe is None:
            return set()
        unread = [f"attn.{p[0]}_" for p in ("query", "key") if p not in recipe.similarity]
        unread += [] if recipe.residual else ["norm2.", "mlp.", "ls2.", "gamma_2"]
        starts = tuple(f"blocks.{self.depth - 1}.{part}" for part in unread)
        return {name for name, _ in self.network.named_parameters() if name.startswith(starts)}

    def embed_pixels(self, pixels: Tensor) -> Embedded:
        """Turn pixels (B, 3, height, width) into the sequence that enters the first block."""
        return self.plain.embed_pixels(pixels)

    def run_block(
        self, index: int, x: Tensor, rope: Tensor | None, bias: Tensor | None = None
    ) -> Tensor:
        """Pass (B, T, C) through one block of the network itself."""
        return self.plain.run_block(index, x, rope, bias)

    def after_block(self, index: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Let the plain backbone change what leaves a block, (B, P + N, C)."""
        return self.plain.after_block(index, x, grid)

    def around(self, network: nn.Module, blueprint: Blueprint | None) -> DenseClip:
        """Return the same head on another network, which may have more prefix tokens."""
        return dense_clip(self.plain.around(network, blueprint), self.head, std=self.std)

    def resized(self, size: int | Size) -> Self:
        """Return the same network with another default size, in pixels."""
        other = super().resized(size)
        other.plain = self.plain.resized(size)
        return other

    def _project(self, pixels: Tensor) -> Tensor:
        return self.plain._project(pixels)

    def _settings(self) -> tuple[object, ...]:
        return (*self.plain._settings(), self.head, self.std)


def average_values(
    projection: Tensor, value: Tensor, scale: float, bias: Tensor | None = None
) -> Tensor:
    """Average values, weighted by the similarity of tokens: softmax(scale a a^T + bias) v.

    Args:
        projection: What is compared with itself, (B, heads, T, d).
        value: What is averaged, (B, heads, T, d).
        scale: Factor of the similarity.
        bias: What is added to it, (T, T).
    """
    return F.scaled_dot_product_attention(
        projection, projection, value, attn_mask=bias, scale=scale
    )


def gaussian_window(grid: tuple[int, int], prefix: int, std: float) -> Tensor:
    """NACLIP's window exp(-distance^2 / (2 std^2)) around each patch, (P + N, P + N).

    Args:
        grid: (H, W) in patches; N = H * W.
        prefix: Number of prefix tokens P; their rows and columns are 0.
        std: In patches.
    """
    positions = torch.cartesian_prod(*(torch.arange(side) for side in grid)).double()
    squared = (positions[:, None] - positions[None]).square().sum(-1)
    return F.pad(torch.exp(-squared / (2 * std**2)), (prefix, 0, prefix, 0)).float()


@functools.lru_cache(maxsize=4)  # a window of 64 x 64 patches takes 67 MB
def _window_bias(
    grid: tuple[int, int], prefix: int, std: float, *, device: torch.device, dtype: torch.dtype
) -> Tensor:
    with torch.inference_mode(False):  # or a later run with gradients could not use it
        return gaussian_window(grid, prefix, std).to(device, dtype)


def _join_heads(attention: Any, mixed: Tensor, entered: Tensor) -> Tensor:
    """Join the heads (B, heads, T, d) as the attention module itself does, (B, T, C)."""
    x = attention.norm(mixed.transpose(1, 2).flatten(2))
    gate = _gate(attention)
    if gate is not None:
        x = x * gate(entered).sigmoid()
    return attention.proj_drop(attention.proj(x))  # type: ignore[no-any-return]


def _gate(attention: Any) -> Any:
    return getattr(attention, "gate", None)  # only recent versions of timm have gates


def _scale_layer(block: Any, branch: int, x: Tensor) -> Tensor:
    """Scale branch 1 (attention) or 2 (MLP) as the block does, in the words of ViT and Eva."""
    if isinstance(block, EvaBlock):
        gamma = getattr(block, f"gamma_{branch}")
        return x if gamma is None else gamma * x
    return getattr(block, f"ls{branch}")(x)  # type: ignore[no-any-return]


def _check_projection(backbone: VitBackbone) -> None:
    if not isinstance(backbone, VitBackbone):
        raise ModelError(f"'{backbone.name}' is no ViT; dense heads replace the last block of one.")
    if type(backbone).forward is not VitBackbone.forward:
        raise ModelError(
            f"'{backbone.name}' is a {type(backbone).__name__}, which runs its blocks in its own"
            " way. Put the head on the model it was made of."
        )
    network = backbone.network
    if getattr(network, "attn_pool", None) is not None:
        raise ModelError(
            f"'{backbone.name}' pools its patches with attention (SigLIP), so no projection takes"
            " a patch to the text space. Use its final tokens: backbone.tokens(images)."
        )
    if not isinstance(network.head, nn.Linear):
        raise ModelError(
            f"'{backbone.name}' has no projection to a text space. Load a CLIP-like model with"
            " its projection, for example 'openclip:ViT-B-16/openai'."
        )


def _check_last_block(network: Any, name: str) -> None:
    block = network.blocks[-1]
    known = isinstance(block, (Block, EvaBlock))
    if not known or not isinstance(block.attn, (Attention, AttentionRope, EvaAttention)):
        raise ModelError(
            f"the last block of '{name}' is a {type(block).__name__}, whose values cannot"
            " be separated. Only head='clip' works for it."
        )
