"""`cv.cure(..., scale=2)`: fit a head that gives fine tokens in one forward pass, without labels.

The network is frozen. Its tokens on a grid twice as fine are gathered from shifted and mirrored
views of each image (`clearvit.views`); ridge regression, in closed form, makes the head that comes
nearest to them from one view. Upsampling the tokens bilinearly is what it has to beat, on images
that took no part in the fit or in the choice of its penalty.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from clearvit.backbones.clip_heads import DenseClip
from clearvit.backbones.neurons import NeuronBackbone
from clearvit.backbones.output import (
    CELLS,
    FINE_HEAD,
    SCALE,
    FineHead,
    blur_twice,
    upsample,
)
from clearvit.backbones.saved import load_saved, save
from clearvit.backbones.vit import VitBackbone
from clearvit.cures.config import CureConfig
from clearvit.cures.distill import cosine
from clearvit.cures.results.card import add_head_to_card
from clearvit.cures.targets import FILES as TARGET_FILES
from clearvit.cures.targets import Target, TargetCache
from clearvit.cures.teacher import teacher_and_student
from clearvit.errors import ImageError, ModelError, OptionError
from clearvit.files import read_json, write_json
from clearvit.images import ImageSource, Skipped, find_images, listing_of
from clearvit.precision import autocast, uses_bf16
from clearvit.progress import Meter, Progress
from clearvit.runs import claim, claim_files
from clearvit.stats import Interval, bootstrap
from clearvit.training.held_out import split_held_out
from clearvit.training.loop import accelerator_for
from clearvit.views.denoise import denoise
from clearvit.views.gathering import check_scale

FOLDER = "fine"  # directory of the targets
RESULT = "fine.json"  # beside the saved model, written last
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # of the ridge; few images need the strong ones
FEWEST_HELD_OUT = 8  # half of them choose the penalty, half check the head
FEWEST = 12  # images
VIEWS_PER_PASS = 5

Source = str | Path | Iterable[object]


@dataclass(frozen=True)
class FineReport:
    """What a head brought: mean cosine distances of fine tokens to those of many views.

    `before` (upsampled bilinearly), `after` and `gain` are of held-out images that took no part in
    the choice of the penalty.
    """

    kept: bool  # False: the head was no better than upsampling, and there is none
    before: float
    after: float
    gain: Interval  # before - after, paired over images
    penalty: float
    distances: dict[str, float]  # by penalty, on the choosing images
    parameters: int  # of the head
    fraction: float  # of the network's parameters
    images: int  # used, held-out ones included
    skipped: tuple[Skipped, ...] = ()  # files that could not be used
    cure: Any = None  # report of the cure that came before, if any

    def __str__(self) -> str:
        change = 100 * self.gain.mean / self.before if self.before else 0.0
        size = f"{abs(change):.0f} % {'less' if change >= 0 else 'more'}"
        measured = (
            f"held-out distance to the fine tokens of many views: {self.before:.4f} upsampled,"
            f" {self.after:.4f} by the head ({size}, 95 % CI of the difference"
            f" {self.gain.low:+.4f} to {self.gain.high:+.4f})"
        )
        text = f"head of {self.parameters:,} parameters ({100 * self.fraction:.1f} %); {measured}"
        if not self.kept:
            text = f"no head was added, since it is no better than upsampling; {measured}"
        return text if self.cure is None else f"{self.cure}\n{text}"

    def to_json(self) -> dict[str, Any]:
        """Give all numbers as JSON can hold them."""
        plain = dataclasses.replace(self, cure=None)
        content: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(plain)))
        content["cure"] = None if self.cure is None else self.cure.to_json()
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any], cure: Any = None) -> FineReport:
        """Read what `to_json` gave; the cure's own report is that of this call."""
        skipped = tuple(Skipped(**bad) for bad in content["skipped"])
        read = {"gain": Interval(**content["gain"]), "skipped": skipped, "cure": cure}
        return cls(**{**content, **read})


def wants_fine_head(config: CureConfig) -> bool:
    """Tell whether these options ask for a head; refuse scales that it cannot give."""
    only = config.method == "fine"
    scale = config.scale or (SCALE if only else 1)
    if scale not in (1, SCALE) or (only and scale == 1):
        raise OptionError(
            f"scale is {scale}; a head gives tokens {SCALE} times as fine. Finer ones come from"
            " views: cv.denoise(backbone, images, scale=4, views=16).",
            "scale",
        )
    return scale == SCALE


def check_curable(backbone: VitBackbone, images: Source, config: CureConfig, *, fine: bool) -> None:
    """Refuse, before any work, a model whose head would no longer fit, or that can have none."""
    if backbone.fine is not None:
        raise ModelError(
            f"'{backbone.name}' has a head for fine tokens, fitted to the tokens it has now. Cure"
            " the model it was made of, and fit a head after that."
        )
    if not fine:
        return
    check_scale(SCALE, backbone.patch)
    plain = type(backbone) in (VitBackbone, NeuronBackbone)
    if config.method == "distill" and plain:
        plain = not isinstance(teacher_and_student(backbone, config)[1], DenseClip)
    if not plain:
        raise ModelError(
            f"'{backbone.name}' would get a head for fine tokens on patches in the text space; it"
            " goes onto a plain ViT. Use features='tokens', or method='fine' on the plain model."
        )
    if config.views < CELLS:
        raise OptionError(
            f"{config.views} views are too few for a grid {SCALE} times as fine; use at least"
            f" {CELLS}.",
            "views",
        )
    check_enough(len(find_images(images)))


# --- the targets --------------------------------------------------------------------------------


class FineTeacher:
    """The frozen model, gathered from views on the fine grid."""

    def __init__(self, backbone: VitBackbone, config: CureConfig) -> None:
        self.backbone, self.config = backbone, config
        self.size = backbone.fitting_size(config.size)
        height, width = backbone.grid_of(self.size)
        self.grid = (SCALE * height, SCALE * width)

    def cache(self, sources: Sequence[ImageSource], folder: Path) -> TargetCache:
        """Keep the targets of the images on disk."""
        values = self.grid[0] * self.grid[1] * self.backbone.width
        return TargetCache(
            sources,
            folder,
            self.target,
            patch=self.backbone.patch,
            bytes_each=2 * values + 3 * self.size[0] * self.size[1] + 512,
            limit_gb=self.config.target_cache_gb,
        )

    def target(self, image: Image.Image, number: int) -> Target:
        """Give an image its fine tokens; other views for other images, so errors average out."""
        backbone, config = self.backbone, self.config
        resized = backbone.preprocessing.resize(image, self.size)
        pixels = backbone.preprocessing.normalize(resized)[None]
        with autocast(backbone.device, uses_bf16(backbone.device, config.precision)):
            fine = denoise(
                backbone,
                pixels.to(backbone.device, backbone.dtype),
                views=config.views,
                scale=SCALE,
                fraction=config.fraction,
                seed=config.seed + number,
                batch=VIEWS_PER_PASS,
            )
        return Target(resized, fine.patches[0].half(), torch.zeros(0).half())

    @torch.no_grad()
    def pair(self, target: Target) -> tuple[Tensor, Tensor]:
        """Tokens of one view (1, C, H, W), and the fine target (1, C, 2 H, 2 W), float32."""
        pixels = self.backbone.preprocessing.normalize(target.image)[None]
        one = self.backbone.forward(pixels.to(self.backbone.device, self.backbone.dtype)).map
        fine = target.patches.float().T.unflatten(1, self.grid)[None]
        return one.float().cpu(), fine


# --- the fit ------------------------------------------------------------------------------------


class HeadSums:
    """Sums over images from which the head is solved for, for any penalty.

    The unknowns are one matrix per cell of a patch, which takes the token itself, two that all
    cells share, which take the blurred tokens, and a constant per cell.
    """

    def __init__(self, channels: int) -> None:
        self.channels, inputs = channels, 3 * channels + 1
        self.moments = torch.zeros(CELLS, inputs, inputs, dtype=torch.float64)
        self.products = torch.zeros(CELLS, inputs, channels, dtype=torch.float64)

    def add(self, maps: Tensor, target: Tensor) -> None:
        """Add an image: tokens (1, C, H, W) and what they should become, (1, C, 2 H, 2 W)."""
        shared = by_cell(torch.cat([upsample(blurred) for blurred in blur_twice(maps)], 1))
        missing = by_cell(target - upsample(maps))
        own = maps[0].flatten(1).T
        for cell in range(CELLS):
            rows = F.pad(torch.cat([own, shared[cell]], 1), (0, 1), value=1.0)
            self.moments[cell] += rows.T @ rows
            self.products[cell] += rows.T @ missing[cell]

    def solve(self, penalty: float) -> FineHead:
        """Solve for the head; the penalty is relative to the energy of each input."""
        channels, size = self.channels, (CELLS + 2) * self.channels + CELLS
        moments = torch.zeros(size, size, dtype=torch.float64)
        products = torch.zeros(size, channels, dtype=torch.float64)
        common = torch.arange(CELLS * channels, (CELLS + 2) * channels)
        for cell in range(CELLS):
            own = torch.arange(cell * channels, (cell + 1) * channels)
            constant = torch.tensor([(CELLS + 2) * channels + cell])
            index = torch.cat([own, common, constant])
            moments[index[:, None], index] += self.moments[cell]
            products[index] += self.products[cell]
        scale = moments.diagonal().clamp(min=1e-12).sqrt()
        normal = moments / torch.outer(scale, scale) + penalty * torch.eye(size).double()
        solved = (torch.linalg.solve(normal, products / scale[:, None]) / scale[:, None]).float()
        own, both, constant = solved.split([CELLS * channels, 2 * channels, CELLS])
        head = FineHead(channels)
        with torch.no_grad():
            cells = own.unflatten(0, (CELLS, channels))  # (cell, in, out)
            head.split.weight.copy_(cells.permute(2, 0, 1).flatten(0, 1))
            head.split.bias.copy_(constant.T.flatten())
            head.around.weight.copy_(both.T)
        return head.eval().requires_grad_(False)


def by_cell(maps: Tensor) -> Tensor:
    """Take fine maps (1, D, 2 H, 2 W) apart into the cells of a patch, (4, H * W, D)."""
    cells: Tensor = F.pixel_unshuffle(maps, SCALE)[0].unflatten(0, (-1, CELLS))
    return cells.flatten(2).permute(1, 2, 0)


@torch.no_grad()
def head_distances(
    heads: Sequence[FineHead], teacher: FineTeacher, cache: TargetCache, numbers: Sequence[int]
) -> Tensor:
    """Mean cosine distance of each image to its fine target, by head, (heads, I)."""
    rows = []
    for number in numbers:
        maps, target = teacher.pair(cache[number])
        found = [cosine(head(maps).movedim(1, -1), target.movedim(1, -1)) for head in heads]
        rows.append(torch.stack([1 - one.mean() for one in found]))
    return torch.stack(rows, 1)


def fit_fine_head(
    backbone: VitBackbone,
    sources: Sequence[ImageSource],
    folder: Path,
    config: CureConfig,
    progress: Progress | None = None,
) -> VitBackbone:
    """Return the backbone with a head, or as it was if none is better; `report` tells.

    Args:
        backbone: A ViT, raw or cured; its weights are shared and unchanged.
        sources: Images, readable or not.
        folder: For the targets; a killed run goes on with the first that is missing.
        config: Size, views, held-out fraction, precision and seed are those of the cure.
        progress: Called with stage, done, total and a note.
    """
    accelerator, teacher = accelerator_for(backbone.device), FineTeacher(backbone, config)
    cache = teacher.cache(sources, folder)
    cache.prepare(progress, process=accelerator.process_index, processes=accelerator.num_processes)
    accelerator.wait_for_everyone()
    numbers, skipped = cache.split_readable()
    check_enough(len(numbers))

    fraction = max(config.held_out, FEWEST_HELD_OUT / len(numbers))
    fitting, held_out = ([numbers[i] for i in p] for p in split_held_out(len(numbers), fraction))
    sums, meter = HeadSums(backbone.width), Meter(progress, len(fitting), "fine head")
    for number in fitting:
        sums.add(*teacher.pair(cache[number]))
        meter.advance()
    heads = [sums.solve(penalty) for penalty in PENALTIES]
    chosen = head_distances(heads, teacher, cache, held_out[::2]).mean(1)
    best = int(chosen.argmin())
    checked = head_distances(
        [FineHead(backbone.width), heads[best]], teacher, cache, held_out[1::2]
    )
    report = dataclasses.replace(
        _report(backbone, heads[best], PENALTIES[best], checked),
        distances=dict(zip(map(str, PENALTIES), chosen.tolist(), strict=True)),
        images=len(numbers),
        skipped=tuple(skipped),
    )
    return with_fine_head(backbone, heads[best] if report.kept else None, report)


def check_enough(count: int) -> None:
    """Refuse too few images to fit, to choose and to check."""
    if count < FEWEST:
        raise ImageError(f"{count} images are too few for a head; give at least {FEWEST}.")


def with_fine_head(backbone: VitBackbone, head: FineHead | None, report: Any) -> VitBackbone:
    """Return the same backbone with a head and a report."""
    other = copy.copy(backbone)
    other.fine = None if head is None else head.to(backbone.device)
    other.report = report
    return other


def _report(backbone: VitBackbone, head: FineHead, penalty: float, distances: Tensor) -> FineReport:
    """Sum up distances (2, I) of upsampling and of the head."""
    gain = bootstrap((distances[0] - distances[1]).numpy())
    parameters = sum(p.numel() for p in head.parameters())
    return FineReport(
        kept=gain.low > 0,
        before=float(distances[0].mean()),
        after=float(distances[1].mean()),
        gain=gain,
        penalty=penalty,
        distances={},
        parameters=parameters,
        fraction=parameters / sum(p.numel() for p in backbone.network.parameters()),
        images=0,
        cure=backbone.report,
    )


# --- from images to the result ------------------------------------------------------------------


def add_fine_head(
    backbone: VitBackbone,
    images: Source,
    folder: Path,
    config: CureConfig,
    progress: Progress | None = None,
) -> VitBackbone:
    """Fit a head to a cured or raw model and save both, or give what an earlier run saved."""
    own, sources, accelerator = (
        folder / FOLDER,
        find_images(images),
        accelerator_for(backbone.device),
    )
    if accelerator.is_main_process:
        claim_files(folder, (RESULT, FOLDER), kind="cure")
    plan = plan_of(backbone, sources, config)
    done = read_json(folder / RESULT) if (folder / RESULT).exists() else {}
    if done.get("plan") == plan and done["report"]["kept"] == (folder / FINE_HEAD).exists():
        report = FineReport.from_json(done["report"], cure=backbone.report)
        return with_fine_head(backbone, load_saved(folder).fine, report)
    if accelerator.is_main_process:
        overwrite = config.overwrite
        claim(own, plan, kind="fine targets", files=TARGET_FILES, overwrite=overwrite)
    accelerator.wait_for_everyone()
    result = fit_fine_head(backbone, sources, own, config, progress)
    if accelerator.is_main_process:
        save(result, folder, kind="cure")
        if result.report.kept:
            add_head_to_card(folder, str(dataclasses.replace(result.report, cure=None)))
        write_json(folder / RESULT, {"plan": plan, "report": result.report.to_json()})
    return result


def plan_of(
    backbone: VitBackbone, sources: Sequence[ImageSource], config: CureConfig
) -> dict[str, Any]:
    """Write down all that decides the head, for a resumed run to compare."""
    options = ("views", "fraction", "seed", "held_out")
    plan = {
        "model": backbone.name,
        "fingerprint": backbone.fingerprint(),
        "images": len(sources),
        "listing": listing_of(sources),
        "size": backbone.fitting_size(config.size),
        **{name: getattr(config, name) for name in options},
        "bf16": uses_bf16(backbone.device, config.precision),
    }
    content: dict[str, Any] = json.loads(json.dumps(plan))
    return content
