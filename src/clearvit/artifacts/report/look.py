"""Draw the tokens of images: one figure per image with PCA, norms and attention."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from clearvit.artifacts.config import LookConfig
from clearvit.backbones.backbone import Backbone
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ImageError, ModelError
from clearvit.images import ImageSource, batches, find_images
from clearvit.images.find import ImageInput
from clearvit.options import Size, with_options
from clearvit.report.elements import Element, ImageElement, Paragraph, Section
from clearvit.report.figure import (
    ATTENTION_CMAP,
    NORM_LIMITS,
    Panel,
    draw_panels,
    save_figure,
    shared_limits,
)
from clearvit.report.page import write_page
from clearvit.report.pca import PCA
from clearvit.views.denoised import with_views

DEPTHS = (0.27, 0.55, 0.73, 0.91, 1.0)  # of the blocks shown by default: artifacts come late
BATCH = 4  # images per forward pass
COMMON = 32  # images on which the colors of the PCA are fitted, spread over all of them
TOKENS = 50_000  # tokens on which they are fitted
LARGEST_PHOTO = 1000  # pixels of the longer side; the figure shows no more
PER_ROW = 5
ON_PAGE = 24  # figures
TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class Seen:
    """What is drawn of one image.

    Attributes:
        name: Name of the image.
        photo: The part of it that the backbone sees, (height, width, 3) uint8.
        aspect: Height / width of that part, undistorted.
        map: Patch tokens after the final norm, (C, H, W).
        fine: The same from several views, on a grid that may be finer, (C, s H, s W); or None.
        norms: Norms of the patch tokens before the final norm, (H, W), by block from 0.
        attention: Attention of each prefix token in the last block, mean over heads, (P, P + N).
        kinds: Kinds of the prefix tokens, P of them; () if the backbone has no attention to show.
    """

    name: str
    photo: NDArray[np.uint8]
    aspect: float
    map: Tensor
    fine: Tensor | None
    norms: dict[int, NDArray[Any]]
    attention: Tensor
    kinds: tuple[str, ...]


@with_options(LookConfig)
def look(
    backbone: Backbone,
    images: ImageInput,
    *,
    out: str | Path = "look",
    config: LookConfig,
) -> list[Path]:
    """Draw one figure per image: photo, PCA of the tokens, token norms per block, attention.

    The PCA is joint: equal colors mean equal features across all images. With views or a scale it
    is that of each image's tokens from views, fitted on its foreground. Images that cannot be read
    are skipped with a warning.

    Args:
        backbone: Any backbone; of one that is not a ViT only the PCA can be shown.
        images: A folder, a file, a pattern, a PIL image, or a list of files and PIL images.
        out: Directory for the figures, `<name of the image>.png`.
        config: All options at once, instead of keywords.

    Returns:
        The files written, in the order of the images.

    Raises:
        ImageError: None of the images can be read.
    """
    sources = find_images(images)
    targets = _targets(sources, Path(out))
    several = with_views(backbone, config.views, config.scale, refine=config.refine)
    stream = observe(
        backbone,
        _spread(sources),
        size=config.size,
        layers=config.layers or None,
        fine=None if several is backbone else several,
    )
    first = list(islice(stream, COMMON))
    if not first:
        raise ImageError("none of the images can be read; the warnings above say why.")
    pca = _common_basis([seen.map for seen in first])
    written = {}
    for seen in chain(first, stream):
        basis = pca if seen.fine is None else PCA.fit_foreground(seen.fine)
        rows, title = panels(seen, basis, backbone.depth), PurePosixPath(seen.name).name
        figure = draw_panels(rows, title, _caption(backbone, seen))
        written[seen.name] = save_figure(figure, targets[seen.name])
    return [written[source.name] for source in sources if source.name in written]


def write_look_page(path: Path, figures: Sequence[Path], model: str) -> Path:
    """Write one page of finished figures, the first 24."""
    first = figures[:ON_PAGE]
    elements: list[Element] = [
        ImageElement(file.read_bytes(), alt=f"Tokens of {file.stem} as figures") for file in first
    ]
    if len(figures) > len(first):
        note = f"The first {len(first)} of {len(figures)} images; the others lie beside this page."
        elements.append(Paragraph(note, faint=True))
    subtitle = "colors: the first three principal components"
    return write_page(path, f"Tokens of {model}", [Section("", tuple(elements))], subtitle=subtitle)


def observe(
    backbone: Backbone,
    sources: Sequence[ImageSource],
    *,
    size: int | Size | None = None,
    layers: Sequence[int] | None = None,
    fine: Backbone | None = None,
) -> Iterator[Seen]:
    """Run the backbone over images and keep what is drawn; bad ones only raise a warning.

    `fine` is the same backbone with views, if its tokens are drawn too.
    """
    height_width = backbone.fitting_size(size)

    def prepare(image: Image.Image) -> _Prepared:
        pixels = backbone.preprocessing(image, height_width)
        return _Prepared(pixels, *_photo(backbone, image, pixels))

    for batch in batches(sources, prepare, size=BATCH):
        for bad in batch.skipped:
            warnings.warn(f"skipped {bad.name}: {bad.reason}", stacklevel=3)
        if not batch.items:
            continue
        pixels = torch.stack([item.pixels for item in batch.items])
        run = _run(backbone, pixels, layers)
        maps = None if fine is None else fine.tokens(pixels, batch=BATCH).to("cpu").map.float()
        for i, (name, item) in enumerate(zip(batch.names, batch.items, strict=True)):
            yield Seen(
                name=name,
                photo=item.photo,
                aspect=item.aspect,
                map=run.maps[i],
                fine=None if maps is None else maps[i],
                norms={block: values[i].numpy() for block, values in run.norms.items()},
                attention=run.attention[i],
                kinds=backbone.prefix_names if run.attention.numel() else (),
            )


def default_blocks(depth: int) -> list[int]:
    """Choose about five blocks, from 0: the last, and more late ones than early ones."""
    return sorted({round(fraction * (depth - 1)) for fraction in DEPTHS})


def panels(seen: Seen, pca: PCA, depth: int) -> list[list[Panel]]:
    """Arrange what was seen: photo, tokens, finer tokens and class attention; norms; registers.

    Args:
        seen: One image.
        pca: The colors of the tokens.
        depth: Number of blocks of the backbone, for the titles.
    """
    grid = f"{seen.map.shape[1]} {TIMES} {seen.map.shape[2]} patches"
    colors = pca.apply(seen.map.permute(1, 2, 0)).numpy()
    views = [
        Panel("photo", seen.photo, note=grid, aspect=seen.aspect),
        Panel("patch tokens", colors, note="three main components as colors", aspect=seen.aspect),
    ]
    if seen.fine is not None:
        cells = f"{seen.fine.shape[1]} {TIMES} {seen.fine.shape[2]} cells, the same colors"
        fine = pca.apply(seen.fine.permute(1, 2, 0)).numpy()
        views.append(Panel("gathered from views", fine, note=cells, aspect=seen.aspect))
    attention = [_attention_panel(seen, i) for i in range(len(seen.kinds))]
    classes = [p for p, kind in zip(attention, seen.kinds, strict=True) if kind != "register"]
    registers = [p for p, kind in zip(attention, seen.kinds, strict=True) if kind == "register"]
    norms = [_norm_panel(seen, block, depth) for block in seen.norms]
    return [views + classes, *_chunks(norms), *_chunks(registers)]


def _norm_panel(seen: Seen, block: int, depth: int) -> Panel:
    norms = seen.norms[block]
    values = norms / max(float(np.median(norms)), 1e-12)
    return Panel(
        f"norms, block {block} of 0..{depth - 1}",
        values=values,
        note=f"largest {values.max():.1f} {TIMES} median",
        limits=NORM_LIMITS,
        label=f"{TIMES} median",
        aspect=seen.aspect,
    )


def _attention_panel(seen: Seen, index: int) -> Panel:
    """Draw where a prefix token looks, as multiples of an even share over all tokens."""
    row = seen.attention[index]
    prefix = len(seen.kinds)
    scale = math.isqrt(seen.map[0].numel() // len(row[prefix:]))  # of the map, not of attention
    grid = (seen.map.shape[1] // scale, seen.map.shape[2] // scale)
    values = (row[prefix:] * len(row)).view(grid).numpy()
    kind, (low, high) = seen.kinds[index], shared_limits([values], low=0.0, top=0.995)
    number = f" {index - seen.kinds.index(kind) + 1}" if seen.kinds.count(kind) > 1 else ""
    return Panel(
        f"attention of {kind}{number}" if number else f"attention of the {kind} token",
        seen.photo,
        values,
        note=f"last block, {float(row[:prefix].sum()):.0%} on prefix tokens",
        limits=(low, max(high, 2.0)),  # attention that is nearly even should look so
        cmap=ATTENTION_CMAP,
        label=f"{TIMES} an even share",
        aspect=seen.aspect,
    )


def _chunks(row: list[Panel]) -> list[list[Panel]]:
    """Break a long row into rows of nearly equal length."""
    rows = -(-len(row) // PER_ROW)
    length = -(-len(row) // rows) if rows else 1
    return [row[start : start + length] for start in range(0, len(row), length)]


def _caption(backbone: Backbone, seen: Seen) -> str:
    cells = zip(seen.map.shape[1:], backbone.patch, strict=True)
    height, width = (n // backbone.scale * p for n, p in cells)
    colors = "Token colors are shared by all images"
    if seen.fine is not None:
        colors = (
            "Token colors are the components of the foreground's tokens from views, the same in"
            " both panels"
        )
    text = f"{backbone.name} at {height} {TIMES} {width} px. {colors}"
    return text + ("; norms are taken before the final norm." if seen.norms else ".")


class _Prepared(NamedTuple):
    pixels: Tensor  # (3, height, width), normalized
    photo: NDArray[np.uint8]
    aspect: float


class _Run(NamedTuple):
    maps: Tensor  # (B, C, H, W), after the final norm
    norms: dict[int, Tensor]  # (B, H, W) by block
    attention: Tensor  # (B, P, P + N); empty if there is none


def _run(backbone: Backbone, pixels: Tensor, blocks: Sequence[int] | None) -> _Run:
    if not isinstance(backbone, VitBackbone):
        tokens = backbone.tokens(pixels, batch=BATCH).to("cpu")
        return _Run(tokens.map.float(), {}, torch.empty(len(pixels), 0, 0))
    shown = backbone.block_indices(default_blocks(backbone.depth) if blocks is None else blocks)
    layers = [*shown, backbone.depth - 1]  # attention is captured at the blocks named here
    try:
        kinds = ("prefix_attention",) if backbone.prefix_names else ()
        tokens = backbone.tokens(pixels, layers=layers, norm=False, capture=kinds, batch=BATCH)
    except ModelError:  # blocks without plain attention: their tokens can still be shown
        tokens = backbone.tokens(pixels, layers=layers, norm=False, batch=BATCH)
    with torch.no_grad():  # the norm works token by token, so it may come afterwards
        normed = replace(tokens, patches=backbone.network.norm(tokens.patches), normed=True)
        final = backbone.finish(normed)
    maps = final.map.float().cpu()
    norms = {
        block: tokens.layers[block].patches.float().norm(dim=-1).unflatten(1, tokens.grid).cpu()
        for block in shown
    }
    if not tokens.prefix_attention:
        return _Run(maps, norms, torch.empty(len(pixels), 0, 0))
    return _Run(maps, norms, tokens.prefix_attention[-1].float().mean(dim=1).cpu())


def _photo(
    backbone: Backbone, image: Image.Image, pixels: Tensor
) -> tuple[NDArray[np.uint8], float]:
    """Give the part of the image that the backbone sees, and its height / width."""
    preprocessing = backbone.preprocessing
    if preprocessing.fit == "squash":  # all of it: drawn undistorted, the maps stretched with it
        small = image.copy()
        small.thumbnail((LARGEST_PHOTO, LARGEST_PHOTO))
        return np.asarray(small), min(max(image.height / image.width, 1 / 3), 3.0)
    mean, std = (torch.tensor(v)[:, None, None] for v in (preprocessing.mean, preprocessing.std))
    shown = (pixels * std + mean).clamp(0, 1).mul(255).round().byte().permute(1, 2, 0)
    return shown.numpy(), pixels.shape[1] / pixels.shape[2]


def _common_basis(maps: Sequence[Tensor]) -> PCA:
    pooled = torch.cat([m.flatten(1).T for m in maps])
    if len(pooled) > TOKENS:
        rng = torch.Generator().manual_seed(0)
        pooled = pooled[torch.randperm(len(pooled), generator=rng)[:TOKENS]]
    return PCA.fit(pooled)


def _spread(sources: Sequence[ImageSource]) -> list[ImageSource]:
    """Put images spread evenly over the whole list first: the colors are fitted on those."""
    step = -(-len(sources) // COMMON)
    return [source for start in range(step) for source in sources[start::step]]


def _targets(sources: Sequence[ImageSource], out: Path) -> dict[str, Path]:
    """Name one file per image; names never meet, not even those of the images themselves."""
    files = [s.source for s in sources if not isinstance(s.source, Image.Image)]
    taken = {os.path.realpath(file).casefold() for file in files}  # which links to itself pass
    targets = {}
    for source in sources:
        stem = PurePosixPath(source.name).stem.encode()[:200].decode(errors="ignore") or "image"
        number, target = 1, out / f"{stem}.png"
        while os.path.realpath(target).casefold() in taken:
            number += 1
            target = out / f"{stem}-{number}.png"
        taken.add(os.path.realpath(target).casefold())
        targets[source.name] = target
    return targets
