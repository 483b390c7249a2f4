"""The noun that flows: the tokens of one batch of images."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class PerBlock(Mapping[int, T], Generic[T]):
    """Values of some blocks; negative numbers count from the last block, as in `layers=[-1]`."""

    def __init__(self, values: Mapping[int, T] | None = None, depth: int = 0) -> None:
        self._values = dict(sorted((values or {}).items()))
        self._depth = depth

    def __getitem__(self, block: int) -> T:
        index = block + self._depth if block < 0 else block
        if index not in self._values:
            have = ", ".join(map(str, self._values)) or "none"
            raise KeyError(f"block {block} was not asked for (have: {have}); pass layers=[{block}]")
        return self._values[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"PerBlock({list(self._values)} of {self._depth})"

    def _combine(self, others: list[PerBlock[T]], combine: Any) -> PerBlock[T]:
        joined = {i: combine([p._values[i] for p in [self, *others]]) for i in self._values}
        return PerBlock(joined, self._depth)


@dataclass(frozen=True)
class Tokens:
    """Tokens of B images on a grid of H x W patches, with C channels.

    `layers` and the captured tensors are filled only for what was asked. Captured tensors run
    over all tokens, prefix first: query, key and value (B, heads, P + N, C / heads) as they enter
    the attention product (after q/k norm and rotary positions), attention (B, heads, P + N, P + N)
    and prefix_attention (B, heads, P, P + N), rows summing to 1.
    """

    patches: Tensor  # (B, H*W, C), row by row
    prefix: Tensor  # (B, P, C): class token first, then distillation token or registers
    grid: tuple[int, int]  # (H, W) in patches
    normed: bool = True  # after the final norm, as the source library returns them
    prefix_names: tuple[
        str, ...
    ] = ()  # "class", "distillation" or "register", one per prefix token
    layers: PerBlock[Tokens] = field(default_factory=PerBlock)
    query: PerBlock[Tensor] = field(default_factory=PerBlock)
    key: PerBlock[Tensor] = field(default_factory=PerBlock)
    value: PerBlock[Tensor] = field(default_factory=PerBlock)
    attention: PerBlock[Tensor] = field(default_factory=PerBlock)
    prefix_attention: PerBlock[Tensor] = field(default_factory=PerBlock)
    scale: int = 1  # how many times finer than the model's own grid this one is
    counts: Tensor | None = None  # of an average over views: how many show each patch, (H, W)
    variance: Tensor | None = None  # of each patch over these views, mean over channels, (B, N)
    kept: Tensor | None = None  # of a pruned model: patches still there at the end, (B, N) bool
    kept_stages: PerBlock[Tensor] = field(default_factory=PerBlock)  # and when each block began

    @property
    def map(self) -> Tensor:
        """Patches as an image, (B, C, H, W)."""
        image: Tensor = self.patches.transpose(1, 2).unflatten(2, self.grid)
        return image

    @property
    def norms(self) -> Tensor:
        """Norms of the patch tokens, (B, N); read them before the final norm."""
        if self.normed:
            warnings.warn(
                "these tokens passed the final norm, which makes their norms almost equal;"
                " artifacts do not show. Ask for tokens(..., norm=False).",
                stacklevel=2,
            )
        norms: Tensor = self.patches.float().norm(dim=-1)
        return norms

    @property
    def cls(self) -> Tensor | None:
        """The class token, (B, C); None for a model without one."""
        found = self._named("class")
        return found[:, 0] if found.shape[1] else None

    @property
    def registers(self) -> Tensor:
        """The register tokens, (B, R, C); R is 0 for a model without registers."""
        return self._named("register")

    @property
    def distillation(self) -> Tensor | None:
        """The distillation token of DeiT, (B, C); None for every other model."""
        found = self._named("distillation")
        return found[:, 0] if found.shape[1] else None

    def _named(self, name: str) -> Tensor:
        # Not by a list of indices, which would wait for a GPU.
        found = [self.prefix[:, i] for i, kind in enumerate(self.prefix_names) if kind == name]
        return torch.stack(found, dim=1) if found else self.prefix[:, :0]

    def __len__(self) -> int:
        """How many images."""
        return len(self.patches)

    def __repr__(self) -> str:
        batch, count, channels = self.patches.shape
        text = f"Tokens(patches ({batch}, {count}, {channels}), grid {self.grid[0]}x{self.grid[1]}"
        for kind in dict.fromkeys(self.prefix_names):
            text += f", {self.prefix_names.count(kind)} {kind}"
        text += f", {'after' if self.normed else 'before'} the final norm"
        extra = [
            f"{field.name} {list(value)}"
            for field in dataclasses.fields(self)
            if isinstance(value := getattr(self, field.name), PerBlock) and value
        ]
        return text + (f",\n       blocks of {', '.join(extra)})" if extra else ")")

    def _repr_html_(self) -> str:
        """Show the patches of the first images in a notebook, colored by a PCA of all of them."""
        from clearvit.report.notebook import MOST_IMAGES, card, png_of
        from clearvit.report.pca import PCA

        maps = self.map[:MOST_IMAGES].detach().float().permute(0, 2, 3, 1)
        if not maps.numel() or not bool(maps.isfinite().all()):
            return card("Tokens", text=repr(self))
        colors = PCA.fit(maps.flatten(0, 2)).apply(maps)
        images = [(png_of(one.numpy()), f"image {i}") for i, one in enumerate(colors)]
        return card("Tokens", text=repr(self), images=images)

    def to(self, device: str | torch.device) -> Tokens:
        """Move every tensor to a device."""
        return _combine_all([self], lambda tensors: tensors[0].to(device))

    @staticmethod
    def concatenate(parts: list[Tokens]) -> Tokens:
        """Join batches of the same grid along the image axis."""
        return parts[0] if len(parts) == 1 else _combine_all(parts, torch.cat)


def split_prefix(
    sequence: Tensor, names: tuple[str, ...], grid: tuple[int, int], *, normed: bool
) -> Tokens:
    """Cut a sequence (B, P + N, C) into prefix and patches."""
    count = len(names)
    return Tokens(
        patches=sequence[:, count:],
        prefix=sequence[:, :count],
        grid=grid,
        normed=normed,
        prefix_names=names,
    )


def _combine_all(parts: list[Tokens], combine: Any) -> Tokens:
    """Combine the same tensor of several Tokens, everywhere inside them."""

    def join(values: list[Any]) -> Any:
        if isinstance(values[0], Tensor):
            return combine(values)
        if isinstance(values[0], Tokens):
            return _combine_all(values, combine)
        if isinstance(values[0], PerBlock):
            return values[0]._combine(values[1:], join)
        return values[0]

    names = [f.name for f in dataclasses.fields(Tokens)]
    joined = {name: join([getattr(part, name) for part in parts]) for name in names}
    if joined["counts"] is not None:  # all images share them
        joined["counts"] = combine([parts[0].counts])
    return Tokens(**joined)
