"""LV-ViT (Jiang et al., NeurIPS 2021), which timm does not have, as a VisionTransformer of timm.

Three differences from DeiT: a stem of four convolutions, residual branches divided by 2, and a
second classifier that reads every patch (token labeling). Blocks, norm, prefix and positions are
timm's, so capture, cures and pruning work as on every ViT. Names are those of the checkpoints.
"""

from __future__ import annotations

import functools
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from clearvit.backbones.guarded_timm import PatchEmbed, VisionTransformer

ARCHITECTURES: dict[str, dict[str, int]] = {
    "lvvit_s": {"embed_dim": 384, "depth": 16, "num_heads": 6},
    "lvvit_m": {"embed_dim": 512, "depth": 20, "num_heads": 8},
}
PATCH, STEM = 16, 64  # pixels of a patch, channels of the stem
MLP_RATIO, SKIP, EPSILON = 3.0, 2.0, 1e-5
PATCH_WEIGHT = 0.5  # of the best patch in the logits of an image


class ConvStem(PatchEmbed):  # type: ignore[misc]
    """Three convolutions at half the size of the image, then one that makes patches."""

    def __init__(self, *, embed_dim: int, device: Any = None, dtype: Any = None, **options: Any):
        super().__init__(embed_dim=embed_dim, device=device, dtype=dtype, **options)
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.conv1 = nn.Conv2d(3, STEM, 7, stride=2, padding=3, bias=False, **made)
        self.conv2 = nn.Conv2d(STEM, STEM, 3, padding=1, bias=False, **made)
        self.conv3 = nn.Conv2d(STEM, STEM, 3, padding=1, bias=False, **made)
        self.bn1, self.bn2, self.bn3 = (nn.BatchNorm2d(STEM, **made) for _ in range(3))
        self.proj = nn.Conv2d(STEM, embed_dim, PATCH // 2, stride=PATCH // 2, **made)

    def backbone(self, pixels: Tensor) -> Tensor:
        """Compute what `proj` cuts into patches, (B, 3, h, w) -> (B, 64, h / 2, w / 2)."""
        x = F.relu(self.bn1(self.conv1(pixels)))
        x = F.relu(self.bn2(self.conv2(x)))
        return F.relu(self.bn3(self.conv3(x)))

    def forward(self, pixels: Tensor) -> Tensor:
        """Embed pixels, (B, 3, h, w) -> (B, h / 16, w / 16, C), or (B, N, C) at a fixed size."""
        x: Tensor = self.proj(self.backbone(pixels))
        return x.flatten(2).transpose(1, 2) if self.flatten else x.permute(0, 2, 3, 1)


class DivideBranch(nn.Module):
    """Divide a residual branch; it stands where other networks of timm have their LayerScale."""

    def __init__(self, divisor: float) -> None:
        super().__init__()
        self.divisor = divisor

    def forward(self, branch: Tensor) -> Tensor:
        """Divide (B, T, C)."""
        return branch / self.divisor


class LvVit(VisionTransformer):  # type: ignore[misc]
    """LV-ViT; arguments are those of timm's VisionTransformer.

    Attributes:
        aux_head: Classifier of patches; no module without classes.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(
            patch_size=PATCH,
            mlp_ratio=MLP_RATIO,
            qkv_bias=False,
            embed_layer=ConvStem,
            norm_layer=functools.partial(nn.LayerNorm, eps=EPSILON),
            **arguments,
        )
        for block in self.blocks:
            block.ls1, block.ls2 = DivideBranch(SKIP), DivideBranch(SKIP)
        classes = self.num_classes
        self.aux_head = nn.Linear(self.embed_dim, classes) if classes else nn.Identity()

    def class_logits(self, sequence: Tensor) -> Tensor:
        """Logits of the class token alone, as the training reads them, (B, P + N, C) -> (B, K)."""
        found: Tensor = self.head(sequence[:, 0])
        return found

    def patch_logits(self, patches: Tensor) -> Tensor:
        """Logits of every patch, (B, N, C) -> (B, N, K)."""
        found: Tensor = self.aux_head(patches)
        return found

    def forward_head(self, sequence: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits of images, (B, P + N, C) after the final norm -> (B, K).

        Those of the class token and half of the largest over the patches, class by class. Patches
        that a pruned model dropped show those that represent them, which changes no maximum.
        """
        if pre_logits or not self.num_classes:
            return sequence[:, 0]
        best = self.patch_logits(sequence[:, self.num_prefix_tokens :]).amax(1)
        return self.class_logits(sequence) + PATCH_WEIGHT * best


def create_lvvit(architecture: str, arguments: dict[str, Any]) -> LvVit:
    """Create `lvvit_s` or `lvvit_m` with random weights; arguments replace those of the size."""
    return LvVit(**{**ARCHITECTURES[architecture], **arguments})
