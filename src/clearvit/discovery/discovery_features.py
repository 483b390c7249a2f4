"""Which features a method reads, and the forward pass that gives them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple, get_args

import torch
from PIL import Image
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.preprocessing import as_size
from clearvit.backbones.vit import VitBackbone
from clearvit.discovery.boxes import Grid
from clearvit.discovery.config import DiscoverConfig, Feature, Method
from clearvit.errors import OptionError
from clearvit.images import Skipped, batches, find_images
from clearvit.images.find import ImageInput
from clearvit.options import Size
from clearvit.progress import Progress

FEATURES: tuple[Feature, ...] = get_args(Feature)


class Plan(NamedTuple):
    """What to read from the network, and what to do with it."""

    method: Method
    features: tuple[str, ...]
    blocks: tuple[int, ...]  # from 0, ascending; () for a backbone without blocks
    objects: int


class ImageBatch(NamedTuple):
    """Preprocessed images."""

    names: list[str]
    pixels: Tensor  # (B, 3, height, width)
    sizes: list[Size]  # (height, width) of the original images


def make_plan(backbone: Backbone, config: DiscoverConfig) -> Plan:
    """Check the options against the backbone and fill in the defaults."""
    method = config.method
    names, blocks = config.features, config.layers
    if not isinstance(backbone, VitBackbone):
        if blocks is not None or (names is not None and names != ("token",)):
            raise OptionError(
                f"'{backbone.name}' is a grid-only backbone: only its final tokens can be used."
                " Leave out layers, and features or set them to 'token'."
            )
        return Plan(method, ("token",), (), config.objects)
    if names is None:
        names = _default_features(backbone, method)
    if blocks is None:
        half = range(backbone.depth // 2, backbone.depth)
        blocks = tuple(half) if method == "consensus" else (-1,)
    chosen = tuple(backbone.block_indices(blocks))
    if not names or not chosen or (method != "consensus" and len(names) * len(chosen) != 1):
        raise OptionError(
            f"'{method}' was given {len(names)} features of {len(chosen)} blocks. It needs"
            f" {'at least' if method == 'consensus' else 'exactly'} one feature and one block.",
            "features",
        )
    return Plan(method, tuple(dict.fromkeys(names)), chosen, config.objects)


def _default_features(backbone: VitBackbone, method: Method) -> tuple[Feature, ...]:
    if not all(hasattr(block, "attn") for block in backbone.network.blocks):
        return ("token",)
    return ("token", "value") if method == "consensus" else ("key",)


def read_batches(
    backbone: Backbone,
    images: Tensor | ImageInput,
    config: DiscoverConfig,
    skipped: list[Skipped],
    progress: Progress | None = None,
) -> Iterator[ImageBatch]:
    """Read images batch by batch; bad ones are added to `skipped`."""
    if isinstance(images, Tensor):
        yield from _split_tensor(backbone, images, config)
        return
    height_width = backbone.fitting_size(None if config.size is None else as_size(config.size))

    def prepare(image: Image.Image) -> tuple[Tensor, Size]:
        return backbone.preprocessing(image, height_width), (image.height, image.width)

    sources = find_images(images)
    stream = batches(sources, prepare, size=config.batch)
    done = 0
    with closing(stream):
        for part in stream:
            skipped += part.skipped
            if part.items:
                pixels = torch.stack([item[0] for item in part.items])
                pixels = pixels.to(backbone.device, backbone.dtype)
                yield ImageBatch(part.names, pixels, [item[1] for item in part.items])
            done += len(part.names) + len(part.skipped)
            if progress:
                progress("images", done, len(sources))


def _split_tensor(
    backbone: Backbone, images: Tensor, config: DiscoverConfig
) -> Iterator[ImageBatch]:
    done = 0
    own = images.shape[-2:]
    for pixels in backbone.pixels(images, size=config.size, batch=config.batch):
        names = [f"image-{done + i:06d}" for i in range(len(pixels))]
        done += len(pixels)
        yield ImageBatch(names, pixels, [(own[0], own[1])] * len(pixels))


def read_features(
    backbone: Backbone, plan: Plan, pixels: Tensor
) -> tuple[list[Tensor], Tensor | None, Grid]:
    """Run the network: features (B, N, C) by block, then kind; norms (B, L, N); the grid."""
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
