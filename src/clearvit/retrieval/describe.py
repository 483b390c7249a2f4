"""What an index keeps of an image: one descriptor, a small grid of patches and their weights."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.tokens import Tokens
from clearvit.errors import ImageError, ModelError, StoreError, closest
from clearvit.retrieval.marginals import (
    class_attention,
    flag_artifacts,
    official_rollout,
    rollout,
    uniform,
    without_artifacts,
)
from clearvit.retrieval.matching import Locals
from clearvit.retrieval.pooling import Grid, pool, pool_marginal

Descriptor = Literal["auto", "class", "mean", "joint"]
Settled = Literal["attention", "rollout", "rollout_min", "uniform", "without_artifacts"]
Marginal = Literal["auto"] | Settled
DESCRIPTORS = ("auto", "class", "mean", "joint")
SETTLED: tuple[Settled, ...] = get_args(Settled)
MARGINALS = ("auto", *SETTLED)
FORMAT = 1


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the numbers of an index; JSON can hold it."""

    model: str
    fingerprint: str  # of the model at this size
    size: tuple[int, int]  # (height, width) in pixels
    patches: Grid  # that the model makes
    grid: Grid  # that is kept
    descriptor: Literal["class", "mean", "joint"]
    marginal: Settled
    channels: int  # of a descriptor
    width: int  # channels of a patch
    format: int = FORMAT

    @property
    def cells(self) -> int:
        """How many patches are kept."""
        return self.grid[0] * self.grid[1]

    def to_json(self) -> str:
        """Write the recipe as one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Recipe:
        """Read what `to_json` wrote."""
        try:
            content: dict[str, Any] = json.loads(text)
            made_by = content.get("format")
            if made_by == FORMAT:
                pairs = {key: tuple(content[key]) for key in ("size", "patches", "grid")}
                return Recipe(**{**content, **pairs})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(f"the index does not say how it was made ({error}).") from error
        raise StoreError(
            f"the index has format {made_by} and this clearvit reads format {FORMAT}; build it"
            " again, or use the version of clearvit that made it."
        )


@dataclass(frozen=True)
class Described:
    """Images as an index keeps them."""

    descriptors: Tensor  # (B, D), unit length, float32
    patches: Tensor  # (B, R, C), unit length, float32
    weights: Tensor  # (B, R), sum 1, float32

    def locals(self, recipe: Recipe) -> Locals:
        """Give the patches as re-ranking takes them."""
        same_space = recipe.descriptor != "joint"
        return Locals(self.patches, self.weights, self.descriptors if same_space else None)


def make_recipe(
    backbone: Backbone,
    *,
    size: int | tuple[int, int] | None = None,
    grid: int | Grid = 7,
    descriptor: Descriptor = "auto",
    marginal: Marginal = "auto",
) -> Recipe:
    """Settle what "auto" means for a backbone, by one pass over a blank picture.

    Args:
        backbone: Makes the tokens.
        size: Pixels; the backbone's own size if None.
        grid: Patches to keep, at most as many as the backbone makes.
        descriptor: "class" token, "mean" of the patches, or "joint" space of images and texts;
            "auto" is joint for CLIP-like models, else class, else mean.
        marginal: Weights of the patches: class "attention", "rollout" (Eq. 7 of the paper),
            "rollout_min" (its code), "uniform", or "without_artifacts", which is "auto" with the
            tokens that are far too long kept out; "auto" is attention where there is a class token
            to look, else uniform.
    """
    check_choice("descriptor", descriptor, DESCRIPTORS)
    check_choice("marginal", marginal, MARGINALS)
    pixels = backbone.fitting_size(size)
    settled = settle_marginal(backbone, marginal)
    blank = torch.zeros(1, 3, *pixels, device=backbone.device, dtype=backbone.dtype)
    tokens = backbone.tokens(blank)
    if descriptor == "auto":
        plain: Literal["class", "mean"] = "mean" if tokens.cls is None else "class"
        descriptor = plain if backbone.text is None else "joint"
    across = (grid, grid) if isinstance(grid, int) else grid
    if min(across) < 1:
        raise ModelError(f"a grid of {across[0]} x {across[1]} holds no patches; use 7.")
    return Recipe(
        model=backbone.name,
        fingerprint=fingerprint_at(backbone, pixels),
        size=pixels,
        patches=tokens.grid,
        grid=(min(across[0], tokens.grid[0]), min(across[1], tokens.grid[1])),
        descriptor=descriptor,
        marginal=settled,
        channels=_descriptors(backbone, blank, tokens, descriptor).shape[1],
        width=backbone.width,
    )


def settle_marginal(backbone: Backbone, marginal: Marginal) -> Settled:
    """Say what "auto" means for a backbone, and refuse weights that it cannot give."""
    if marginal == "auto":
        return "attention" if _attends(backbone) else "uniform"
    if marginal == "without_artifacts" and not backbone.depth:
        raise ModelError(
            f"'{backbone.name}' has no tokens before a final norm, where artifacts show; use"
            " uniform weights."
        )
    if marginal in ("attention", "rollout", "rollout_min") and not _attends(backbone):
        raise ModelError(f"'{backbone.name}' has no class token that attends; use uniform weights.")
    return marginal


def _attends(backbone: Backbone) -> bool:
    return backbone.depth > 0 and "class" in backbone.prefix_names


def fingerprint_at(backbone: Backbone, size: tuple[int, int]) -> str:
    """Hash a model whatever its default size is, which an index does not use."""
    return backbone.resized(size).fingerprint()


def describe(backbone: Backbone, pixels: Tensor, recipe: Recipe) -> Described:
    """Describe normalised pixels (B, 3, height, width), without gradients."""
    return describe_each(backbone, pixels, recipe, [recipe.marginal])[0]


@torch.no_grad()
def describe_each(
    backbone: Backbone, pixels: Tensor, recipe: Recipe, marginals: Sequence[Settled]
) -> list[Described]:
    """Describe the same pixels under several marginals, in one pass."""
    tokens, flags = _tokens(backbone, pixels, marginals)
    descriptors = _descriptors(backbone, pixels, tokens, recipe.descriptor).cpu()
    found = []
    for marginal in marginals:
        weights = _weights(backbone, tokens, marginal)
        keep = None
        if marginal == "without_artifacts" and flags is not None:
            weights, keep = without_artifacts(weights, flags), ~flags
        patches = pool(tokens.patches.float(), tokens.grid, recipe.grid, keep=keep)
        found.append(
            Described(
                descriptors=descriptors,
                patches=F.normalize(patches, dim=-1).cpu(),
                weights=pool_marginal(weights, tokens.grid, recipe.grid).cpu(),
            )
        )
    return found


def check_finite(described: Described, names: Sequence[str]) -> None:
    """Refuse NaN, which would rank anywhere."""
    for tensor in (described.descriptors, described.patches, described.weights):
        good = tensor.flatten(1).isfinite().all(1)
        if not bool(good.all()):
            bad = names[int(good.int().argmin())]
            raise ImageError(f"'{bad}' gives tokens that are not finite; the weights are damaged.")


def check_choice(option: str, value: str, known: Sequence[str]) -> None:
    """Refuse a word that is none of those known."""
    if value not in known:
        raise ModelError(f"{option} is '{value}'; use {', '.join(known)}.{closest(value, known)}")


def _tokens(
    backbone: Backbone, pixels: Tensor, marginals: Sequence[Settled]
) -> tuple[Tokens, Tensor | None]:
    """Final tokens with the attention that the marginals need, and flags of artifacts (B, N)."""
    asked: dict[str, Any] = {}
    if "rollout" in marginals or "rollout_min" in marginals:
        asked = {"layers": range(backbone.depth), "capture": ("attention", "prefix_attention")}
    elif "attention" in marginals or ("without_artifacts" in marginals and _attends(backbone)):
        asked = {"capture": "prefix_attention"}
    if "without_artifacts" not in marginals:
        return backbone.forward(pixels, **asked), None
    raw = backbone.forward(pixels, norm=False, **asked)  # lengths show before the final norm only
    network: Any = backbone.network
    normed = network.norm(torch.cat([raw.prefix, raw.patches], 1))
    prefix = raw.prefix.shape[1]
    parts = {"prefix": normed[:, :prefix], "patches": normed[:, prefix:], "normed": True}
    return dataclasses.replace(raw, **parts), flag_artifacts(raw.norms)


def _weights(backbone: Backbone, tokens: Tokens, marginal: Settled) -> Tensor:
    """Weights of all patches, (B, N)."""
    prefix = tokens.prefix.shape[1]
    if marginal == "attention" or (marginal == "without_artifacts" and _attends(backbone)):
        return class_attention(tokens.prefix_attention[-1], prefix).float()
    if marginal in ("rollout", "rollout_min"):
        blocks = torch.stack([tokens.attention[block] for block in tokens.attention], dim=1)
        if marginal == "rollout":
            return rollout(blocks, prefix=prefix).float()
        return official_rollout(blocks, prefix=prefix).float()
    return uniform(tokens.patches).float()


def _descriptors(backbone: Backbone, pixels: Tensor, tokens: Tokens, kind: str) -> Tensor:
    if kind == "joint":
        return backbone.embed(pixels).float()
    one = tokens.cls if kind == "class" else tokens.patches.float().mean(1)
    if one is None:
        raise ModelError(f"'{backbone.name}' has no class token; use descriptor='mean'.")
    return F.normalize(one.float(), dim=-1)
