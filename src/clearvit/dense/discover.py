"""Boxes around the objects of images, without labels, in pixels of the images as they are."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from PIL import Image
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.preprocessing import Size, as_size
from clearvit.backbones.vit import VitBackbone
from clearvit.dense.consensus import consensus, unusual
from clearvit.dense.discovery import Box, Discovery, Grid, lost, to_pixels
from clearvit.dense.tokencut import tokencut
from clearvit.errors import ImageError, ModelError, closest
from clearvit.images import Skipped, batches, find_images
from clearvit.images.find import Source
from clearvit.progress import Progress

Method = Literal["ours", "lost", "tokencut"]
METHODS: tuple[Method, ...] = get_args(Method)
FEATURES = ("token", "query", "key", "value")


@dataclass(frozen=True)
class Found:
    """The K objects of one image, in the order they were found."""

    name: str
    boxes: tuple[Box, ...]  # (x0, y0, x1, y1) in pixels of the original image, ends exclusive
    scores: tuple[float, ...]  # comparable within one method only
    masks: Tensor  # (K, H, W) bool, on the grid
    size: Size  # (height, width) of the original image
    shown: Box  # the part of the image that the grid covers, in pixels
    degenerate: bool = False  # the features could not tell patches apart; the box means nothing


class Discovered(list[Found]):
    """What was found, one entry per good image, in order; `skipped` lists the bad ones."""

    def __init__(self, found: Sequence[Found], skipped: Sequence[Skipped] = ()) -> None:
        super().__init__(found)
        self.skipped = tuple(skipped)


def discover(
    backbone: Backbone,
    images: Tensor | Source,
    *,
    method: Method = "ours",
    features: str | Sequence[str] | None = None,
    layer: int | Sequence[int] | None = None,
    objects: int = 1,
    size: int | Size | None = None,
    batch: int = 8,
    progress: Progress | None = None,
) -> Discovered:
    """Find the objects of images without labels.

    Images that cannot be read are skipped with a warning and listed in `.skipped`.

    Args:
        backbone: Any backbone; of one that is not a ViT only the final tokens are used.
        images: A folder, a file, a pattern, a PIL image, a list of files and PIL images, or a
            normalised tensor (B, 3, height, width).
        method: "ours" (needs no bias and no tuning), "lost" or "tokencut" as published.
        features: Any of "token", "query", "key", "value". Default: tokens and values for "ours",
            keys for the others, which take one.
        layer: Blocks to read, from 0 or from -1 backwards. Default: the later half for "ours", the
            last one for the others.
        objects: Most objects per image; only "ours" finds more than one.
        size: Pixels to resize to, one number or (height, width); else the backbone's own.
        batch: Images per forward pass; results do not depend on it.
        progress: Called with the number of images that are done and of all images.
    """
    plan = planned(backbone, method, features, layer, objects)
    found: list[Found] = []
    skipped: list[Skipped] = []
    with warnings.catch_warnings(), torch.no_grad():
        warnings.filterwarnings("ignore", message=".*the box means nothing")  # told once, below
        for part in loaded(backbone, images, size, batch, skipped, progress):
            found += _found(backbone, plan, part)
    if not found:
        why = f": {skipped[0].name}: {skipped[0].reason}" if skipped else "; give at least one"
        raise ImageError(f"none of {len(skipped)} images can be read{why}.")
    _tell(found, skipped, plan)
    return Discovered(found, skipped)


class Plan(NamedTuple):
    """What to read from the network, and what to do with it."""

    method: Method
    features: tuple[str, ...]
    blocks: tuple[int, ...]  # from 0, ascending; () for a backbone without blocks
    objects: int


def _check_method(method: Method, objects: int) -> None:
    if method not in METHODS:
        near = closest(str(method), METHODS)
        raise ModelError(f"method is '{method}'; use {', '.join(METHODS)}.{near}")
    if objects < 1 or (objects > 1 and method != "ours"):
        raise ModelError(
            f"objects is {objects}; it must be at least 1, and '{method}' finds just one. Use"
            " method='ours' for several."
        )


class Loaded(NamedTuple):
    """Some images, prepared."""

    names: list[str]
    pixels: Tensor  # (B, 3, height, width)
    sizes: list[Size]


def planned(
    backbone: Backbone,
    method: Method,
    features: str | Sequence[str] | None,
    layer: int | Sequence[int] | None,
    objects: int,
) -> Plan:
    """Check the options against the backbone and fill in the defaults."""
    _check_method(method, objects)
    named = (features,) if isinstance(features, str) else features
    blocks = (layer,) if isinstance(layer, int) else layer
    if not isinstance(backbone, VitBackbone):
        if blocks is not None or (named is not None and tuple(named) != ("token",)):
            raise ModelError(
                f"'{backbone.name}' is a grid-only backbone: only its final tokens can be used."
                " Leave out layer, and features or set them to 'token'."
            )
        return Plan(method, ("token",), (), objects)
    plain = all(hasattr(block, "attn") for block in backbone.network.blocks)
    if named is None:
        ours, single = (("token", "value"), ("key",)) if plain else (("token",), ("token",))
        named = ours if method == "ours" else single
    if blocks is None:
        blocks = range(backbone.depth // 2, backbone.depth) if method == "ours" else (-1,)
    for name in named:
        if name not in FEATURES:
            near = closest(str(name), FEATURES)
            raise ModelError(f"'{name}' is no feature; use {', '.join(FEATURES)}.{near}")
    chosen = tuple(backbone.block_indices(blocks))
    if not named or not chosen or (method != "ours" and len(named) * len(chosen) != 1):
        raise ModelError(
            f"'{method}' was given {len(named)} features of {len(chosen)} blocks. It needs"
            f" {'at least' if method == 'ours' else 'exactly'} one feature and one block."
        )
    return Plan(method, tuple(dict.fromkeys(named)), chosen, objects)


def loaded(
    backbone: Backbone,
    images: Tensor | Source,
    size: int | Size | None,
    batch: int,
    skipped: list[Skipped],
    progress: Progress | None = None,
) -> Iterator[Loaded]:
    """Read images some at a time; bad ones are added to `skipped`."""
    if isinstance(images, Tensor):
        done = 0
        own = images.shape[-2:]
        for pixels in backbone.pixels(images, size=size, batch=batch):
            names = [f"image-{done + i:06d}" for i in range(len(pixels))]
            done += len(pixels)
            yield Loaded(names, pixels, [(own[0], own[1])] * len(pixels))
        return
    height_width = backbone.fitting_size(None if size is None else as_size(size))

    def prepare(image: Image.Image) -> tuple[Tensor, Size]:
        return backbone.preprocessing(image, height_width), (image.height, image.width)

    pictures = find_images(images)
    stream = batches(pictures, prepare, size=batch)
    done = 0
    with closing(stream):
        for part in stream:
            skipped += part.skipped
            if part.items:
                pixels = torch.stack([item[0] for item in part.items])
                pixels = pixels.to(backbone.device, backbone.dtype)
                yield Loaded(part.names, pixels, [item[1] for item in part.items])
            done += len(part.names) + len(part.skipped)
            if progress:
                progress(done, len(pictures))


def _found(backbone: Backbone, plan: Plan, part: Loaded) -> Iterator[Found]:
    """Search each image of a batch."""
    features, norms, grid = read_features(backbone, plan, part.pixels)
    for i, (name, size) in enumerate(zip(part.names, part.sizes, strict=True)):
        mine = [feature[i] for feature in features]
        objects = search(plan, mine, grid, None if norms is None else norms[i])
        shown = _shown(backbone, size, (part.pixels.shape[2], part.pixels.shape[3]))
        yield Found(
            name=name,
            boxes=tuple(_placed(one.box, grid, shown) for one in objects),
            scores=tuple(one.score for one in objects),
            masks=torch.stack([one.mask for one in objects]),
            size=size,
            shown=shown,
            degenerate=objects[0].degenerate,
        )


def read_features(
    backbone: Backbone, plan: Plan, pixels: Tensor
) -> tuple[list[Tensor], Tensor | None, Grid]:
    """Run the network: features (B, N, C) of each kind and block, norms (B, L, N), the grid."""
    if not isinstance(backbone, VitBackbone):
        tokens = backbone.forward(pixels)
        return [tokens.patches.float()], None, tokens.grid
    kinds = [name for name in plan.features if name != "token"]
    tokens = backbone.forward(pixels, layers=plan.blocks, norm=False, capture=kinds)
    features = []
    for block in plan.blocks:
        for name in plan.features:
            if name == "token":
                features.append(tokens.layers[block].patches.float())
            else:
                heads = getattr(tokens, name)[block][:, :, len(backbone.prefix_names) :]
                features.append(heads.transpose(1, 2).flatten(2).float())
    norms = torch.stack([tokens.layers[block].norms for block in plan.blocks], dim=1)
    return features, norms, tokens.grid


def search(
    plan: Plan, features: Sequence[Tensor], grid: Grid, norms: Tensor | None
) -> list[Discovery]:
    """Find the objects of one image; features (N, C) each, norms (L, N)."""
    if plan.method == "lost":
        return [lost(features[0].cpu(), grid)]
    if plan.method == "tokencut":
        return [tokencut(features[0], grid)]
    artifacts = None if norms is None else unusual(norms)
    return consensus(features, grid, objects=plan.objects, exclude=artifacts)


def _shown(backbone: Backbone, size: Size, seen: Size) -> Box:
    """Find the part of a picture of (height, width) that the network sees."""
    height, width = size
    if backbone.preprocessing.fit != "crop":
        return 0.0, 0.0, float(width), float(height)
    across = min(width, height * seen[1] / seen[0])
    down = across * seen[0] / seen[1]
    left, upper = (width - across) / 2, (height - down) / 2
    return left, upper, left + across, upper + down


def _placed(box: Sequence[float], grid: Grid, shown: Box) -> Box:
    left, upper, right, lower = shown
    x0, y0, x1, y1 = to_pixels(box, grid, (lower - upper, right - left))
    return left + x0, upper + y0, left + x1, upper + y1


def _tell(found: Sequence[Found], skipped: Sequence[Skipped], plan: Plan) -> None:
    """Warn about what a user should know, once."""
    void = sum(one.degenerate for one in found)
    if void:
        hint = "" if plan.method == "ours" else " Other features or method='ours' may work."
        warnings.warn(
            f"'{plan.method}' could not tell patches apart in {void} of {len(found)} images; their"
            f" boxes mean nothing.{hint}",
            stacklevel=3,
        )
    if skipped:
        bad = "; ".join(f"{one.name}: {one.reason}" for one in skipped[:5])
        more = f" and {len(skipped) - 5} more" if len(skipped) > 5 else ""
        warnings.warn(f"{len(skipped)} images were skipped: {bad}{more}", stacklevel=3)
