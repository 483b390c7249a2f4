"""The teacher, made of parts: a frozen model, averaged over views of each image, less position.

Views are shifted by whole patches (PH-Reg) or by fractions of a patch too, and mirrored; directions
in which tokens of noise images vary with their position may be removed from the average.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from clearvit.backbones.clip_heads import DenseClip, dense_clip
from clearvit.backbones.output import positional_basis, remove_directions
from clearvit.backbones.vit import VitBackbone
from clearvit.cures.config import CureConfig
from clearvit.cures.positional import FEWEST, IMAGES, choose_steps
from clearvit.cures.registers import with_position_grid
from clearvit.cures.targets import Target, TargetCache
from clearvit.errors import ModelError
from clearvit.images import ImageSource
from clearvit.options import Size
from clearvit.precision import autocast, uses_bf16
from clearvit.progress import Progress
from clearvit.training.held_out import filter_readable
from clearvit.views.denoise import denoise

VIEWS_PER_PASS = 5
GOLDEN = 0.6180339887498949  # multiples of it, less their whole part, are spread evenly over 0..1


def teacher_and_student(
    backbone: VitBackbone, config: CureConfig
) -> tuple[VitBackbone, VitBackbone]:
    """Give two readings of one model whose tokens lie in the same space; weights are shared.

    "tokens" are those after the final norm, for both. "text" is what PH-Reg does for CLIP: the
    teacher is NACLIP, the student MaskCLIP, both projected to the text space. A `layer` ends both
    with that block.
    """
    layer, text = config.layer, config.features == "text"
    if text or (config.features == "auto" and backbone.text is not None and layer is None):
        if layer is not None:
            raise ModelError("a layer can be chosen for features='tokens' only.")
        size = backbone.fitting_size(config.size)
        own = with_position_grid(backbone, size) if config.resize_positions else backbone
        return dense_clip(backbone, "naclip"), dense_clip(own, "maskclip")
    if layer is not None:
        depth = backbone.block_indices([layer])[0] + 1
        backbone = copy.copy(backbone)
        backbone.depth = depth
    return backbone, backbone


def directions_for(
    teacher: VitBackbone,
    sources: Sequence[ImageSource],
    config: CureConfig,
    progress: Progress | None = None,
) -> tuple[int, str]:
    """Decide how many directions of position the targets lose; returns that and why.

    "auto" asks some of the images: a patch of a crop must be found again in its image more often
    without these directions than with them, on images that had no part in the choice.
    """
    if config.directions != "auto":
        return config.directions, ""
    if isinstance(teacher, DenseClip):
        return 0, "positions stay in the targets: they lie in the space of texts."
    step = max(1, len(sources) // IMAGES)
    readable = filter_readable(list(sources)[::step][:IMAGES], teacher.patch)[0]
    if len(readable) < FEWEST:
        return 0, f"positions stay in the targets: {FEWEST} images are needed to choose."
    report = choose_steps(
        teacher,
        readable,
        teacher.fitting_size(config.size),
        seed=config.seed,
        progress=progress,
    )
    return report.directions, str(report)


def targets_folder(folder: Path, config: CureConfig) -> Path:
    """Where the targets of a run lie."""
    return folder / "targets" if config.targets_dir is None else Path(config.targets_dir)


class Teacher:
    """The frozen model, averaged over views; the sizes of `config` are decided."""

    def __init__(self, backbone: VitBackbone, config: CureConfig) -> None:
        self.backbone, self.config = backbone, config
        self.preprocessing = backbone.preprocessing
        wanted = config.sizes or (config.size,)
        self.sizes = tuple(backbone.fitting_size(size) for size in wanted)
        self._bases: dict[Size, Tensor] = {}

    def size_of(self, number: int) -> Size:
        """Give the (height, width) in pixels of an image by its number, the same in every epoch.

        Sizes are spread evenly over the images, and over those held out as well.
        """
        return self.sizes[int(number * GOLDEN % 1 * len(self.sizes))]

    def grid_of(self, size: Size) -> tuple[int, int]:
        """Give the grid (H, W) of an image of (height, width) pixels."""
        return size[0] // self.backbone.patch[0], size[1] // self.backbone.patch[1]

    def cache(self, sources: Sequence[ImageSource], folder: Path) -> TargetCache:
        """Keep targets on disk; fresh ones are never kept."""
        config, patch = self.config, self.backbone.patch
        pixels = math.ceil(sum(height * width for height, width in self.sizes) / len(self.sizes))
        values = pixels // (patch[0] * patch[1]) * self.backbone.width
        values += self.backbone.network.embed_dim
        return TargetCache(
            sources,
            targets_folder(folder, config),
            self.target,
            patch=patch,
            bytes_each=2 * values + 3 * pixels + 512,
            limit_gb=0.0 if config.fresh_targets else config.target_cache_gb,
        )

    def pixels(self, cache: TargetCache, number: int) -> Tensor:
        """Give an image as the network sees it, (3, height, width), decoded only if need be."""
        if number < cache.kept:
            return self.preprocessing.normalize(cache[number].image)
        return self.preprocessing(cache.read(number), self.size_of(number))

    def target(self, image: Image.Image, number: int) -> Target:
        """Give an image its clean tokens: other views for other images, so errors average out."""
        resized = self.preprocessing.resize(image, self.size_of(number))
        pixels = self.preprocessing.normalize(resized)
        patches, cls = self.clean_tokens(pixels, self.config.seed + number)
        target = Target(resized, patches.half(), cls.half())
        if not (target.patches.isfinite().all() and target.cls.isfinite().all()):
            raise ModelError(
                f"'{self.backbone.name}' gives tokens up to {float(patches.abs().max()):g}, and"
                " targets are kept in half precision, up to 65504. Give them a final norm, or clean"
                " an earlier block with --layer."
            )
        return target

    def fresh_target(
        self, image: Image.Image, size: Size, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Crop an image at random and take new views; returns pixels and clean patches (N, D)."""
        cropped = self.preprocessing.resize(random_crop(image, size, rng), size)
        pixels = self.preprocessing.normalize(cropped)
        return pixels, self.clean_tokens(pixels, int(torch.randint(2**31, (1,), generator=rng)))[0]

    def basis(self, size: Size) -> Tensor:
        """Directions of position that are removed, (k, D); the student learns to go without."""
        if size not in self._bases:
            count = self.config.directions
            assert isinstance(count, int)
            found = positional_basis(self.backbone, count, size, seed=self.config.seed)
            self._bases[size] = found
        return self._bases[size]

    @torch.no_grad()
    def clean_tokens(self, pixels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Average the patches over views, (N, D); the class token (C,) is of the image itself."""
        backbone, config = self.backbone, self.config
        batch = pixels[None].to(backbone.device, backbone.dtype)
        chosen = {"views": config.views, "sampler": config.sampler, "fraction": config.fraction}
        clean = denoise(
            backbone, batch, seed=seed, batch=VIEWS_PER_PASS, precision=config.precision, **chosen
        )
        cls = torch.zeros(1, 0)
        if "class" in backbone.prefix_names and not config.fresh_targets:
            with autocast(backbone.device, uses_bf16(backbone.device, config.precision)):
                cls = read_tokens(backbone, batch, with_class=True)[1]
        patches = clean.patches[0].float()
        if config.directions:
            size = (pixels.shape[1], pixels.shape[2])
            patches = remove_directions(patches, self.basis(size).to(patches))
        return patches, cls[0]


def random_crop(image: Image.Image, size: Size, rng: torch.Generator) -> Image.Image:
    """Resize an image until it just covers (height, width) pixels, and crop it there at random."""
    height, width = size
    scale = max(height / image.height, width / image.width)
    full = (max(width, int(image.width * scale)), max(height, int(image.height * scale)))
    image = image.resize(full, Image.Resampling.BICUBIC)
    extra = (full[0] - width, full[1] - height)
    left, top = (int(torch.randint(most + 1, (1,), generator=rng)) for most in extra)
    return image.crop((left, top, left + width, top + height))


def read_tokens(
    backbone: VitBackbone, pixels: Tensor, *, with_class: bool
) -> tuple[Tensor, Tensor]:
    """Run a model: patches (B, N, D) and the network's own class token (B, C), or (B, 0)."""
    none = pixels.new_zeros(len(pixels), 0)
    if not with_class or "class" not in backbone.prefix_names:
        return backbone.forward(pixels).patches, none
    if isinstance(backbone, DenseClip):  # its head changes the class token; the last block's stays
        tokens = backbone.forward(pixels, layers=[-1])
        cls = tokens.layers[-1].cls
    else:
        tokens = backbone.forward(pixels)
        cls = tokens.cls
    return tokens.patches, none if cls is None else cls
