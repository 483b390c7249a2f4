"""What an index keeps of an image: one descriptor, a small grid of patches and their weights."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from clearvit.artifacts.outliers import outlier_mask
from clearvit.backbones.backbone import Backbone
from clearvit.backbones.grid import GridBackbone
from clearvit.backbones.tokens import PerBlock, Tokens
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ImageError, ModelError, StoreError
from clearvit.retrieval.config import (
    IndexConfig,
    PatchFormat,
    PatchWeights,
    ResolvedDescriptor,
    ResolvedWeights,
)
from clearvit.retrieval.facets.facet import (
    FINAL,
    KINDS,
    PROJECTED,
    PROJECTION,
    Facet,
    capture_options,
    facet_vectors,
)
from clearvit.retrieval.matching.patch_matching import LocalFeatures
from clearvit.retrieval.matching.pooling import Grid, pool_patches, pool_weights
from clearvit.retrieval.patch_weights import (
    class_attention,
    official_rollout,
    remove_artifacts,
    rollout,
    uniform_weights,
)
from clearvit.retrieval.staged_rollout import staged_weights
from clearvit.retrieval.whitening import Whitening, whitenings_to_bytes
from clearvit.schema import Rule, check_content, list_of, number, one_of, text, whole

FORMAT = 3
BY_ATTENTION = frozenset({"attention", "rollout", "rollout-min"})  # patch weights
OLDER = 2  # still read: final tokens in half precision, without whitening

_PAIR = list_of(whole(1, 65536), 2, 2)
SPEC_RULES: dict[str, Rule] = {  # of what an index says about itself
    **dict.fromkeys(("model", "fingerprint", "descriptor", "patch_weights"), text),
    **dict.fromkeys(("size", "patches", "grid"), _PAIR),
    **dict.fromkeys(("channels", "width"), whole(1, 1 << 20)),
    **dict.fromkeys(("token_width", "fitted"), whole(0, 1 << 40)),
    **dict.fromkeys(("facet", "whitening", "asked", "note"), text),
    "patch_format": one_of("int8", "float16"),
    "weight": number(0, 1e6),
    "format": whole(0, 1 << 20),
}
ADDED = ("token_width", "fitted", "facet", "whitening", "asked", "note", "patch_format", "weight")


@dataclass(frozen=True)
class FeatureSpec:
    """Everything that decides the features of an index; JSON can hold it."""

    model: str
    fingerprint: str  # of the model at this size
    size: tuple[int, int]  # (height, width) in pixels
    patches: Grid  # that the model makes
    grid: Grid  # that is kept
    descriptor: ResolvedDescriptor
    patch_weights: ResolvedWeights
    channels: int  # of a descriptor
    width: int  # channels of a patch
    token_width: int = 0  # channels of the model's tokens; 0: the same as `width`
    facet: str = "token"  # which vector stands for a patch, such as "value:7"
    patch_format: PatchFormat = "float16"
    weight: float = 0.0  # of the patch similarity, by Chamfer, where a search does not name one
    whitening: str = ""  # hash of `whitenings`; empty: none
    fitted: int = 0  # images in the collection when whitening and weight were chosen; 0: never
    asked: str = ""  # the options that led to this
    note: str = ""  # what was chosen and why, as a sentence
    format: int = FORMAT
    whitenings: Mapping[str, Whitening] = field(default_factory=dict, compare=False, repr=False)

    @property
    def cells(self) -> int:
        """How many patches are kept."""
        return self.grid[0] * self.grid[1]

    @property
    def same_space(self) -> bool:
        """Whether descriptors and patches can be compared with each other."""
        together = (self.descriptor == "embedding") == (self.facet == PROJECTED)
        final = self.facet in (str(FINAL), PROJECTED)
        return self.descriptor != "joint" and final and together and not self.whitening

    def with_whitenings(self, whitenings: Mapping[str, Whitening]) -> FeatureSpec:
        """Give the spec whitenings, under the names "descriptor" and "patches", and their hash."""
        content = whitenings_to_bytes(dict(whitenings)) if whitenings else b""
        name = hashlib.sha256(content).hexdigest() if content else ""
        return dataclasses.replace(self, whitening=name, whitenings=dict(whitenings))

    def to_json(self) -> str:
        """Write the spec as one line of JSON, without the numbers of the whitening."""
        names = [f.name for f in dataclasses.fields(self) if f.name != "whitenings"]
        return json.dumps({name: getattr(self, name) for name in names})

    @staticmethod
    def from_json(line: str) -> FeatureSpec:
        """Read what `to_json` wrote."""
        try:
            content: dict[str, Any] = json.loads(line)
            written = content.get("format")
            if written in (OLDER, FORMAT):
                missing = ADDED if written == OLDER else ()
                check_content(content, SPEC_RULES, where="spec", error=StoreError, optional=missing)
                pairs = {key: tuple(content[key]) for key in ("size", "patches", "grid")}
                return FeatureSpec(**{**content, **pairs})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(f"the index does not say how it was made ({error}).") from error
        raise StoreError(
            f"the index has format {written} and this clearvit reads format {FORMAT}; build it"
            " again, or use the version of clearvit that made it."
        )


@dataclass(frozen=True)
class ImageFeatures:
    """Features of B images as an index keeps them."""

    descriptors: Tensor  # (B, D), unit norm, float32
    patches: Tensor  # (B, R, C), unit norm, float32
    weights: Tensor  # (B, R), sum 1, float32

    def local_features(self, spec: FeatureSpec) -> LocalFeatures:
        """Give the patches as re-ranking takes them."""
        return LocalFeatures(
            self.patches, self.weights, self.descriptors if spec.same_space else None
        )


@dataclass(frozen=True)
class RawFeatures:
    """Features of B images before they are whitened and normalized."""

    descriptors: Tensor  # (B, D), unit norm, float32
    patches: Mapping[Facet, Tensor]  # (B, R, C) each, pooled, float32
    weights: Tensor  # (B, R), sum 1, float32


def make_spec(backbone: Backbone, config: IndexConfig) -> FeatureSpec:
    """Resolve what "auto" means for a backbone, by one pass over a blank image."""
    pixels = backbone.fitting_size(config.size)
    patch_weights = resolve_weights(backbone, config.patch_weights)
    blank = torch.zeros(1, 3, *pixels, device=backbone.device, dtype=backbone.dtype)
    tokens = backbone.tokens(blank)
    descriptor = config.descriptor
    if descriptor == "auto":
        plain: ResolvedDescriptor = "mean" if tokens.cls is None else "class"
        descriptor = plain if backbone.text is None else "joint"
        descriptor = "embedding" if backbone.embedding else descriptor
    rows, columns = (config.grid,) * 2 if isinstance(config.grid, int) else config.grid
    return FeatureSpec(
        model=backbone.name,
        fingerprint=fingerprint_at(backbone, pixels),
        size=pixels,
        patches=tokens.grid,
        grid=(min(rows, tokens.grid[0]), min(columns, tokens.grid[1])),
        descriptor=descriptor,
        patch_weights=patch_weights,
        channels=_descriptors(backbone, blank, tokens, descriptor).shape[1],
        width=backbone.width,
        token_width=backbone.width,
    )


def resolve_weights(backbone: Backbone, patch_weights: PatchWeights) -> ResolvedWeights:
    """Resolve what "auto" means for a backbone, and refuse weights that it cannot give."""
    if patch_weights == "auto":
        return "attention" if _attends(backbone) else "uniform"
    if patch_weights == "without-artifacts" and not backbone.depth:
        raise ModelError(
            f"'{backbone.name}' has no tokens before a final norm, where artifacts show; use"
            " uniform weights."
        )
    if patch_weights in BY_ATTENTION and not (_attends(backbone) or _in_stages(backbone)):
        raise ModelError(
            f"'{backbone.name}' has no attention of a class token, nor in stages as CvT and Swin;"
            " use uniform weights."
        )
    return patch_weights


def _in_stages(backbone: Backbone) -> bool:
    return isinstance(backbone, GridBackbone) and backbone.reader is not None


def _attends(backbone: Backbone) -> bool:
    return backbone.depth > 0 and "class" in backbone.prefix_names


def fingerprint_at(backbone: Backbone, size: tuple[int, int]) -> str:
    """Hash a model whatever its default size is, which an index does not use."""
    return backbone.resized(size).fingerprint()


def extract_features(backbone: Backbone, pixels: Tensor, spec: FeatureSpec) -> ImageFeatures:
    """Extract features of normalized pixels (B, 3, height, width), without gradients."""
    return extract_each(backbone, pixels, spec, [spec.patch_weights])[0]


def extract_each(
    backbone: Backbone, pixels: Tensor, spec: FeatureSpec, patch_weights: Sequence[ResolvedWeights]
) -> list[ImageFeatures]:
    """Extract features of the same pixels under several patch weights, in one forward pass."""
    facet = facet_of(spec)
    raw = extract_raw(backbone, pixels, spec, [facet], patch_weights)
    return [finish_features(one, spec, facet) for one in raw]


@torch.no_grad()
def extract_raw(
    backbone: Backbone,
    pixels: Tensor,
    spec: FeatureSpec,
    facets: Sequence[Facet],
    patch_weights: Sequence[ResolvedWeights],
) -> list[RawFeatures]:
    """Extract several facets of the same pixels, once per kind of patch weights."""
    staged = _in_stages(backbone) and not BY_ATTENTION.isdisjoint(patch_weights)
    with backbone.reader() if staged else nullcontext([]) as blocks:  # type: ignore[attr-defined]
        tokens, flags = _tokens(backbone, pixels, patch_weights, facets)
    descriptors = _descriptors(backbone, pixels, tokens, spec.descriptor).cpu()
    found = []
    for kind in patch_weights:
        if blocks and kind in BY_ATTENTION:
            weights = staged_weights(blocks, kind, tokens.grid)
        else:
            weights = _on_grid(_weights(backbone, tokens, kind), tokens)
        keep = None
        if kind == "without-artifacts" and flags is not None:
            weights, keep = remove_artifacts(weights, flags), ~flags
        patches = {}
        for facet in facets:
            vectors, grid = facet_vectors(tokens, facet, backbone)
            kept = keep if grid == tokens.grid else None
            patches[facet] = pool_patches(vectors, grid, spec.grid, keep=kept).cpu()
        pooled = pool_weights(weights, tokens.grid, spec.grid).cpu()
        found.append(RawFeatures(descriptors, patches, pooled))
    return found


def finish_features(raw: RawFeatures, spec: FeatureSpec, facet: Facet) -> ImageFeatures:
    """Whiten and normalize what was extracted."""
    descriptors, patches = raw.descriptors, raw.patches[facet]
    if "descriptor" in spec.whitenings:
        descriptors = F.normalize(spec.whitenings["descriptor"](descriptors), dim=-1)
    if "patches" in spec.whitenings:
        patches = spec.whitenings["patches"](patches)
    return ImageFeatures(descriptors, F.normalize(patches, dim=-1), raw.weights)


def facet_of(spec: FeatureSpec) -> Facet:
    """Read the facet that an index names, which may be a stranger's."""
    kind, _, block = spec.facet.partition(":")
    if spec.facet == PROJECTED:
        return PROJECTION
    if kind not in KINDS or not (block.isdigit() if block else spec.facet == "token"):
        raise StoreError(f"the index names a facet that does not exist: '{spec.facet[:40]}'.")
    return Facet(kind, int(block)) if block else FINAL


def check_finite(features: ImageFeatures, names: Sequence[str]) -> None:
    """Refuse NaN, which would rank anywhere."""
    for tensor in (features.descriptors, features.patches, features.weights):
        good = tensor.flatten(1).isfinite().all(1)
        if not bool(good.all()):
            bad = names[int(good.int().argmin())]
            raise ImageError(f"'{bad}' gives tokens that are not finite; the weights are damaged.")
    empty = features.descriptors.abs().amax(1) == 0
    if bool(empty.any()):
        bad = names[int(empty.int().argmax())]
        raise ImageError(
            f"'{bad}' gives a descriptor of zeros, which is similar to nothing; the weights are"
            " damaged."
        )


def _tokens(
    backbone: Backbone,
    pixels: Tensor,
    patch_weights: Sequence[ResolvedWeights],
    facets: Sequence[Facet],
) -> tuple[Tokens, Tensor | None]:
    """Tokens with all that weights and facets need, and flags of artifacts (B, N)."""
    capture = _merge_captures(backbone, patch_weights, facets)
    if "without-artifacts" not in patch_weights:
        return backbone.forward(pixels, **capture), None
    raw = backbone.forward(pixels, norm=False, **capture)  # norms show before the final norm only
    finished = _normed(backbone, raw)
    finished = dataclasses.replace(
        finished,
        layers=PerBlock({b: _normed(backbone, t) for b, t in raw.layers.items()}, backbone.depth),
    )
    if isinstance(backbone, VitBackbone):
        finished = backbone.finish(finished)
    return finished, _on_grid(outlier_mask(raw.norms), finished)


def _normed(backbone: Backbone, raw: Tokens) -> Tokens:
    network: Any = backbone.network
    normed = network.norm(torch.cat([raw.prefix, raw.patches], 1))
    prefix = raw.prefix.shape[1]
    return dataclasses.replace(
        raw, prefix=normed[:, :prefix], patches=normed[:, prefix:], normed=True
    )


def _merge_captures(
    backbone: Backbone, patch_weights: Sequence[ResolvedWeights], facets: Sequence[Facet]
) -> dict[str, Any]:
    """Options of one forward pass that gives the facets and what the weights are made of."""
    wanted = capture_options(facets)
    if not backbone.depth:  # attention in stages is read beside the forward pass
        return wanted
    blocks, kinds = set(wanted.get("layers", ())), set(wanted.get("capture", ()))
    if "rollout" in patch_weights or "rollout-min" in patch_weights:
        blocks |= set(range(backbone.depth))
        kinds |= {"attention", "prefix_attention"}
    elif "attention" in patch_weights or (
        "without-artifacts" in patch_weights and _attends(backbone)
    ):
        if blocks:
            blocks.add(backbone.depth - 1)
        kinds.add("prefix_attention")
    return {"layers": sorted(blocks) or None, "capture": tuple(sorted(kinds))}


def _on_grid(values: Tensor, tokens: Tokens) -> Tensor:
    """Repeat values of whole patches (B, N) for the cells of a finer grid; sums stay."""
    scale, (height, width) = tokens.scale, tokens.grid
    if values.shape[1] == height * width:
        return values
    maps = values.unflatten(1, (height // scale, width // scale))
    cells: Tensor = maps.repeat_interleave(scale, 1).repeat_interleave(scale, 2).flatten(1)
    return cells if cells.dtype is torch.bool else cells / scale**2


def _weights(backbone: Backbone, tokens: Tokens, kind: ResolvedWeights) -> Tensor:
    """Weights of all patches, (B, N)."""
    prefix = tokens.prefix.shape[1]
    if kind == "attention" or (kind == "without-artifacts" and _attends(backbone)):
        return class_attention(tokens.prefix_attention[-1], prefix).float()
    if kind in ("rollout", "rollout-min"):
        blocks = torch.stack([tokens.attention[block] for block in tokens.attention], dim=1)
        if kind == "rollout":
            return rollout(blocks, prefix=prefix).float()
        return official_rollout(blocks, prefix=prefix).float()
    return uniform_weights(tokens.patches).float()


def _descriptors(backbone: Backbone, pixels: Tensor, tokens: Tokens, kind: str) -> Tensor:
    if kind == "joint" or (kind == "embedding" and backbone.embedding):
        return backbone.embed(pixels).float()
    if kind == "embedding":
        raise ModelError(f"'{backbone.name}' has no projection; train one with clearvit finetune.")
    one = tokens.cls if kind == "class" else tokens.patches.float().mean(1)
    if one is None:
        raise ModelError(f"'{backbone.name}' has no class token; use descriptor='mean'.")
    return F.normalize(one.float(), dim=-1)
