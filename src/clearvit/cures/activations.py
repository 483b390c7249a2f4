"""Norms of patches and activations of hidden units over many images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from clearvit.backbones.neurons import second_layer
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ImageError
from clearvit.images import ImageSource, Skipped, batches
from clearvit.options import Size
from clearvit.progress import Meter


@dataclass(frozen=True)
class Norms:
    """Norms of the patch tokens of I sources in L blocks, before the final norm."""

    values: Tensor  # (I, L, N)
    read: tuple[ImageSource, ...]  # the I sources
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True)
class Activity:
    """Mean |activation| of every hidden unit, for each block from 0: (F,) each."""

    outliers: tuple[Tensor, ...]  # at the outlier patches
    others: tuple[Tensor, ...]  # at the other patches


@dataclass(frozen=True)
class ActivationReader:
    """How images pass through a network."""

    size: Size  # (height, width) in pixels
    batch: int  # images per forward pass
    meter: Meter

    def norms(
        self, backbone: VitBackbone, sources: Sequence[ImageSource], blocks: Sequence[int]
    ) -> Norms:
        """Keep the patch norms of some blocks, in ascending order; skip unreadable sources."""
        kept: list[Tensor] = []
        read: list[ImageSource] = []
        skipped: list[Skipped] = []
        by_name = {source.name: source for source in sources}
        with torch.no_grad():
            for names, bad, pixels in self._pixels(backbone, sources):
                read += [by_name[name] for name in names]
                skipped += bad
                if pixels is not None:
                    tokens = backbone.forward(pixels, layers=blocks, norm=False)
                    kept.append(torch.stack([b.norms.cpu() for b in tokens.layers.values()], 1))
        if not kept:
            raise ImageError(f"none of {len(sources)} images could be read: {skipped[0].reason}.")
        return Norms(torch.cat(kept), tuple(read), tuple(skipped))

    def activity(
        self, backbone: VitBackbone, sources: Sequence[ImageSource], outliers: Tensor, last: int
    ) -> Activity:
        """Average activations at outlier patches and elsewhere, in blocks 0 to `last`.

        Args:
            backbone: The network; it runs no further than the last of these blocks.
            sources: I sources, all of them readable.
            outliers: Which of their patches are outliers, (I, N) bool.
            last: The last block.
        """
        sums = [_Sums(backbone, block) for block in range(last + 1)]
        rows = dict(zip((source.name for source in sources), outliers, strict=True))
        with torch.no_grad():
            for names, bad, pixels in self._pixels(backbone, sources):
                if bad or pixels is None:
                    raise ImageError(f"'{bad[0].name}' was readable a moment ago: {bad[0].reason}.")
                flags = torch.stack([rows[name] for name in names]).to(pixels)
                with ExitStack() as stack:
                    for one in sums:
                        stack.enter_context(one.summing(flags))
                    x, grid, rope = backbone.embed_pixels(pixels)
                    for block in range(last + 1):
                        x = backbone.after_block(block, backbone.run_block(block, x, rope), grid)
        return Activity(
            tuple(one.at / max(1, int(outliers.sum())) for one in sums),
            tuple((one.all - one.at) / max(1, int((~outliers).sum())) for one in sums),
        )

    def _pixels(
        self, backbone: VitBackbone, sources: Sequence[ImageSource]
    ) -> Iterator[tuple[list[str], list[Skipped], Tensor | None]]:
        """Give batches as names, bad files and pixels; pixels are None if all files are bad."""
        prepare = partial(backbone.preprocessing, size=self.size)
        with closing(batches(sources, prepare, size=self.batch)) as loaded:
            for group in loaded:
                pixels = None
                if group.items:
                    pixels = torch.stack(group.items).to(backbone.device, backbone.dtype)
                yield group.names, group.skipped, pixels
                self.meter.advance(len(group.names) + len(group.skipped))


class _Sums:
    """|activation| of the hidden units of one block, summed over patches."""

    def __init__(self, backbone: VitBackbone, block: int) -> None:
        self.layer = second_layer(backbone, block)
        self.at = torch.zeros(self.layer.in_features, dtype=torch.float64)
        self.all = torch.zeros_like(self.at)

    @contextmanager
    def summing(self, flags: Tensor) -> Iterator[None]:
        """Add what passes while the body runs; flags (B, N) are 1 at the outliers, else 0."""

        def add(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            magnitude = inputs[0][:, -flags.shape[1] :].abs()  # patches come last
            self.at += torch.einsum("bn,bnf->f", flags, magnitude).double().cpu()
            self.all += magnitude.sum((0, 1)).double().cpu()

        handle = self.layer.register_forward_pre_hook(add)
        try:
            yield
        finally:
            handle.remove()
