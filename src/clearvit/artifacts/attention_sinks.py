"""Do artifact tokens draw attention, and how widely do they look themselves?

The analysis of attention in "Vision Transformers with Self-Distilled Registers" (Chen et al.,
NeurIPS 2025) and of attention sinks, in numbers per block and head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearvit.artifacts.observe import can_attend
from clearvit.backbones.capture import attention_weights
from clearvit.backbones.vit import VitBackbone
from clearvit.images import ImageSource, batches
from clearvit.options import Size

IMAGES = 8  # images whose attention is read; one forward pass each
SINK = 3.0  # times their fraction of the tokens: from here on, tokens are called attention sinks
ALIKE = 0.02  # difference of two entropies that is not worth a word
ROWS = ("class", "register", "patch")  # who looks; "patch" are patches that are not artifacts


@dataclass(frozen=True)
class AttentionStats:
    """Attention in L blocks of h heads, means over images; NaN where a kind does not occur.

    Attributes:
        images: Number of images that were read.
        fraction: Artifact tokens as a fraction of all tokens, 0..1.
        register_fraction: Registers as a fraction of all tokens, 0..1.
        entropy: Entropy of the rows of normal and of artifact patches, (2, L, h), relative to
            that of uniform attention, 0..1.
        concentration: Largest weight in these rows, (2, L, h), 0..1.
        to_artifacts: Attention that goes to artifact tokens, by who looks: class token,
            registers, normal patches, (3, L, h), 0..1.
        to_registers: Attention that goes to registers, likewise, (3, L, h), 0..1.
    """

    images: int
    fraction: float
    register_fraction: float
    entropy: Tensor
    concentration: Tensor
    to_artifacts: Tensor
    to_registers: Tensor

    @property
    def lift(self) -> Tensor:
        """Attention to artifact tokens, times their fraction of the tokens, (3, L), over heads."""
        return self.to_artifacts.mean(-1) / max(self.fraction, 1e-12)

    def __str__(self) -> str:
        """Say in one or two sentences what artifact tokens and registers do in attention."""
        said = [text for text in (self._about_artifacts(), self._about_registers()) if text]
        return " ".join(said) or "There are no artifact tokens and no registers to look at."

    def to_json(self) -> dict[str, Any]:
        """All numbers, as plain JSON; unknown ones are None."""
        tensors = ("entropy", "concentration", "to_artifacts", "to_registers")

        def plain(values: Any) -> Any:
            if isinstance(values, list):
                return [plain(value) for value in values]
            return None if math.isnan(values) else round(values, 5)

        return {
            "summary": str(self),
            "images": self.images,
            "fraction": self.fraction,
            "register_fraction": self.register_fraction,
            "rows": list(ROWS),
            **{name: plain(getattr(self, name).tolist()) for name in tensors},
        }

    def _about_artifacts(self) -> str:
        if not self.fraction:
            return ""
        lift = self.lift.nan_to_num(-1.0)
        row, block = divmod(int(lift.argmax()), lift.shape[1])
        times, mass = float(lift[row, block]), float(self.to_artifacts[row, block].mean())
        who = {"class": "the class token's", "register": "the registers'", "patch": "the patches'"}
        head, end = self.entropy[:, block].mean(-1).tolist()
        wide = "more widely than" if end > head else "less widely than"
        wide = "as widely as" if abs(end - head) < ALIKE else wide
        sinks = "are" if times >= SINK else "are not"
        return (
            f"Artifact tokens {sinks} attention sinks: at most, in block {block}, they draw"
            f" {100 * mass:.1f} % of {who[ROWS[row]]} attention, {times:.1f} times their"
            f" fraction of the tokens ({100 * self.fraction:.2f} %). There they look {wide}"
            f" other patches (entropy {end:.2f} against {head:.2f} of uniform attention)."
        )

    def _about_registers(self) -> str:
        if not self.register_fraction:
            return ""
        mass = self.to_registers[ROWS.index("patch")].mean(-1)
        block = int(mass.argmax())
        times = float(mass[block]) / self.register_fraction
        used = "are used" if times >= SINK else "are used no more than other tokens"
        return (
            f"The registers {used}: at most, in block {block}, they draw"
            f" {100 * float(mass[block]):.1f} % of the patches' attention, {times:.1f} times their"
            f" fraction of the tokens ({100 * self.register_fraction:.2f} %)."
        )


def measure_rows(
    attention: Tensor, artifact: Tensor, prefix_names: Sequence[str]
) -> dict[str, Tensor]:
    """Summarize the attention of one image in one block.

    Args:
        attention: Rows sum to 1, (h, T, T) with T = P + N, prefix tokens first.
        artifact: Which patches are artifacts, (N,) bool.
        prefix_names: Kinds of the P prefix tokens: "class", "distillation" or "register".

    Returns:
        "entropy" and "concentration" (2, h) of normal and artifact patches, "to_artifacts" and
        "to_registers" (3, h) by class token, registers and normal patches.
    """
    prefix = len(prefix_names)
    kinds = {kind: torch.zeros(prefix + len(artifact), dtype=torch.bool) for kind in ROWS}
    for kind in ("class", "register"):
        kinds[kind][:prefix] = torch.tensor([name == kind for name in prefix_names])
    kinds["patch"][prefix:] = ~artifact
    flagged = torch.zeros_like(kinds["patch"])
    flagged[prefix:] = artifact
    rows = attention.double().cpu()
    entropy = -torch.special.xlogy(rows, rows).sum(-1) / math.log(rows.shape[-1])
    largest = rows.amax(-1)

    def over(values: Tensor, mask: Tensor) -> Tensor:
        return values[:, mask].mean(-1)  # NaN where the mask is empty

    to = {"to_artifacts": rows[..., flagged].sum(-1)}
    to["to_registers"] = rows[..., kinds["register"]].sum(-1)
    found = {name: [over(mass, kinds[kind]) for kind in ROWS] for name, mass in to.items()}
    found["entropy"] = [over(entropy, kinds["patch"]), over(entropy, flagged)]
    found["concentration"] = [over(largest, kinds["patch"]), over(largest, flagged)]
    return {name: torch.stack(values) for name, values in found.items()}


def measure_attention(
    backbone: VitBackbone,
    sources: Sequence[ImageSource],
    artifacts: Tensor,
    *,
    size: Size,
    advance: Callable[[int], None] | None = None,
) -> AttentionStats | None:
    """Read the attention of every block on some images, one forward pass each.

    Args:
        backbone: The network.
        sources: Images that can be read.
        artifacts: Which of their patches are artifacts, (I, N) bool.
        size: (height, width) in pixels.
        advance: Told how many more images are done.

    Returns:
        What was seen, or None for networks without prefix tokens or plain attention.
    """
    if not can_attend(backbone) or not sources:
        return None
    seen = []
    read = batches(sources, lambda image: backbone.preprocessing(image, size), size=1)
    with closing(read):
        for batch, artifact in zip(read, artifacts, strict=True):
            seen += [_measure_image(backbone, item[None], artifact) for item in batch.items]
            if advance:
                advance(1)
    if not seen:
        return None
    tokens = artifacts.shape[1] + len(backbone.prefix_names)
    registers = sum(name == "register" for name in backbone.prefix_names)
    means = {name: torch.stack([one[name] for one in seen]).nanmean(0) for name in seen[0]}
    return AttentionStats(
        images=len(seen),
        fraction=float(artifacts.sum(1).double().mean()) / tokens,
        register_fraction=registers / tokens,
        **means,
    )


def _measure_image(backbone: VitBackbone, pixels: Tensor, artifact: Tensor) -> dict[str, Tensor]:
    """Give the statistics of `measure_rows` for all blocks of one image, (2 or 3, L, h)."""
    with torch.no_grad():
        tokens = backbone.forward(
            pixels.to(backbone.device, backbone.dtype),
            layers=range(backbone.depth),
            norm=False,
            capture=("query", "key"),
        )
        blocks = []
        for index, block in enumerate(backbone.network.blocks):
            query, key = tokens.query[index][0].float(), tokens.key[index][0].float()
            attention = attention_weights(query, key, block.attn.scale)
            blocks.append(measure_rows(attention, artifact, backbone.prefix_names))
    return {name: torch.stack([one[name] for one in blocks], dim=1) for name in blocks[0]}
