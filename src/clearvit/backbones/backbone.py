"""The actor: a Backbone turns images into Tokens."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from typing_extensions import Self

from clearvit.backbones.preprocessing import Preprocessing, as_size, round_to_patches
from clearvit.backbones.tokens import Tokens
from clearvit.errors import ImageError, ModelError
from clearvit.images import ImageSource, find_images, read_image
from clearvit.options import Precision, Size
from clearvit.precision import autocast, uses_bf16

Images = Tensor | Image.Image | str | Path | Iterable[Image.Image | str | Path]


class TextTower(Protocol):
    """The text tower of a CLIP-like model."""

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Embed texts in the joint space, (len(texts), D), unit norm."""

    def to(self, device: str | torch.device) -> Self:
        """Move the weights to a device."""


class Backbone(ABC):
    """A pretrained network with the preprocessing it was trained with.

    Attributes:
        name: What `clearvit.load` was given.
        network: The network itself, in evaluation mode.
        preprocessing: How an image becomes pixels; its size is the native one unless changed.
        patch: (height, width) of one cell of the token grid, in pixels.
        width: Channels C of a token.
        depth: Number of blocks that `layers` can name; 0 for grid-only backbones.
        prefix_names: Kinds of the prefix tokens, in order.
        text: The text tower of CLIP-like models, else None.
        embedding: Channels of the projection that `finetune` trained for `embed`; 0 without one.
        report: What the verb that made this backbone measured, if any.
        note: How a checkpoint file was read, in one sentence; empty for other sources.
        bf16: Whether tasks extract tokens in bfloat16; see `in_precision`.
    """

    network: nn.Module
    patch: Size
    width: int
    depth: int = 0
    prefix_names: tuple[str, ...] = ()
    text: TextTower | None = None
    embedding: int = 0
    note: str = ""
    report: Any = None
    bf16: bool = False

    def __init__(self, network: nn.Module, preprocessing: Preprocessing, *, name: str) -> None:
        self.name = name
        self.network = network.eval()
        self.preprocessing = preprocessing

    def tokens(
        self,
        images: Images,
        *,
        size: int | Size | None = None,
        layers: Sequence[int] | None = None,
        norm: bool = True,
        capture: Sequence[str] | str = (),
        batch: int = 16,
    ) -> Tokens:
        """Compute the tokens of some images, without gradients.

        Args:
            images: A PIL image, a path, a folder, a glob pattern, a list of these, or a tensor
                (B, 3, height, width) that is already normalized and is used as it is.
            size: Pixels to resize to, one number or (height, width). Images default to the
                size of the preprocessing, tensors to their own. A size that the patch does not
                divide is rounded to the nearest that it does.
            layers: Blocks whose output to return in `tokens.layers`, from 0 or from -1 backwards.
            norm: Apply the network's final norm, to `layers` too. Token norms are only
                meaningful with norm=False.
            capture: Any of "query", "key", "value", "attention", "prefix_attention", for the
                blocks in `layers`, or the last block if there are none.
            batch: Images per forward pass; only memory and speed depend on it.
        """
        with torch.no_grad():
            parts = [
                self.forward(pixels, layers=layers, norm=norm, capture=capture)
                for pixels in self.pixels(images, size=size, batch=batch)
            ]
        return Tokens.concatenate(parts)

    @abstractmethod
    def forward(
        self,
        pixels: Tensor,
        *,
        layers: Sequence[int] | None = None,
        norm: bool = True,
        capture: Sequence[str] | str = (),
    ) -> Tokens:
        """Run the network on normalized pixels (B, 3, height, width), with gradients."""

    def _refuse_blocks(
        self, layers: Sequence[int] | None, norm: bool, capture: Sequence[str] | str, why: str
    ) -> None:
        """Refuse what a backbone with nothing but final tokens cannot give; `why` is a verb on."""
        if layers or capture or not norm:
            raise ModelError(
                f"'{self.name}' has final tokens only, so layers, norm=False and capture do not"
                f" apply: it {why}"
            )

    def embed(self, images: Images, *, size: int | Size | None = None, batch: int = 16) -> Tensor:
        """Embed images in the joint space of a CLIP-like model, (B, D), unit norm.

        A model that `finetune` gave a projection embeds them by that.
        """
        if self.text is None and not self.embedding:
            raise ModelError(
                f"'{self.name}' has no text tower and no trained projection. Load a CLIP-like"
                " model, for example 'openclip:ViT-B-16/openai', or use tokens(images).cls."
            )
        with torch.no_grad(), autocast(self.device, self.bf16):
            parts = [
                self._project(pixels) for pixels in self.pixels(images, size=size, batch=batch)
            ]
        return F.normalize(torch.cat(parts).to(self.dtype), dim=-1)

    def _project(self, pixels: Tensor) -> Tensor:
        raise ModelError(f"'{self.name}' does not project to a text space.")

    def pixels(
        self, images: Images, *, size: int | Size | None = None, batch: int = 16
    ) -> Iterator[Tensor]:
        """Yield what enters the network, (B, 3, height, width) on its device, batch by batch."""
        wanted = None if size is None else as_size(size)
        if isinstance(images, Tensor):
            pixels = self._fit_pixels(images, wanted)
            for chunk in pixels.split(batch):
                yield chunk.to(self.device, self.dtype)
            return
        single = (images,) if isinstance(images, Image.Image) else images
        height_width = self.fitting_size(wanted)
        sources = find_images(single)
        for start in range(0, len(sources), batch):
            decoded = [_decode(source) for source in sources[start : start + batch]]
            stacked = torch.stack([self.preprocessing(i, height_width) for i in decoded])
            yield stacked.to(self.device, self.dtype)

    def fitting_size(self, size: int | Size | None = None) -> Size:
        """Return the (height, width) in pixels that is used when `size` is asked for."""
        return round_to_patches(
            self.preprocessing.size if size is None else as_size(size), self.patch
        )

    def grid_of(self, size: Size) -> Size:
        """Return the grid (H, W) of the final tokens of an image of (height, width) pixels."""
        return self.scale * (size[0] // self.patch[0]), self.scale * (size[1] // self.patch[1])

    @property
    def scale(self) -> int:
        """How many times finer than one cell per patch the final grid is."""
        return 1

    def _fit_pixels(self, pixels: Tensor, size: Size | None) -> Tensor:
        if pixels.ndim == 3:
            pixels = pixels[None]
        if pixels.ndim != 4 or pixels.shape[1] != 3 or not pixels.is_floating_point():
            raise ImageError(
                f"a tensor of images must be normalized floats (B, 3, height, width), not"
                f" {pixels.dtype} {tuple(pixels.shape)}."
            )
        wanted = round_to_patches(size or (pixels.shape[2], pixels.shape[3]), self.patch)
        if pixels.shape[2:] == wanted:
            return pixels
        return F.interpolate(pixels, wanted, mode="bicubic", antialias=True)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.network.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights."""
        return next(self.network.parameters()).dtype

    def to(self, device: str | torch.device) -> Self:
        """Move the weights to a device; returns the backbone itself."""
        self.network.to(device)
        if self.text is not None:
            self.text.to(device)
        return self

    def resized(self, size: int | Size) -> Self:
        """Return the same network with another default size, in pixels."""
        other = copy.copy(self)
        fitted = round_to_patches(as_size(size), self.patch)
        other.preprocessing = dataclasses.replace(self.preprocessing, size=fitted)
        return other

    def in_precision(self, precision: Precision) -> Self:
        """Return the same network for tasks that extract tokens in a number format.

        "auto" is bfloat16 (autocast) where the hardware computes in it. `tokens` and `forward`
        compute in the format of the weights, as ever.
        """
        other = copy.copy(self)
        other.bf16 = uses_bf16(self.device, precision)
        return other

    def fingerprint(self) -> str:
        """Hash the weights, the preprocessing and every other setting that changes the tokens."""
        settings = (*self._settings(), *(("bf16",) if self.bf16 else ()))
        digest = hashlib.sha256(repr(settings).encode())
        for key, tensor in sorted(self.network.state_dict().items()):
            digest.update(f"{key}{tuple(tensor.shape)}{tensor.dtype}".encode())
            digest.update(
                tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
            )
        return digest.hexdigest()

    def _settings(self) -> tuple[object, ...]:
        return (dataclasses.astuple(self.preprocessing),)

    def __repr__(self) -> str:
        height, width = self.preprocessing.size
        return (
            f"{type(self).__name__}('{self.name}', {height}x{width} px,"
            f" patch {self.patch[0]}x{self.patch[1]}, {self.width} channels, {self.depth} blocks,"
            f" {self.prefix_names.count('register')} registers, {self.device})"
        )


def _decode(source: ImageSource) -> Image.Image:
    try:
        return read_image(source.source)
    except ImageError as error:
        raise ImageError(f"{source.name}: {error}") from error
