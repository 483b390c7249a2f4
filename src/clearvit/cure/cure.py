"""`cv.cure`: a Backbone in, a Backbone with clean tokens out."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.vit import VitBackbone
from clearvit.cure.config import METHODS, CureConfig, Method
from clearvit.cure.distill import Report, distill, parts_to_unlock
from clearvit.cure.features import pair_of, whole
from clearvit.cure.registers import registers_for
from clearvit.cure.result import restored, write_result
from clearvit.cure.targets import TargetConfig, Targets
from clearvit.cure.unlock import parameters_of
from clearvit.errors import ModelError, StoreError, TrainingError, closest
from clearvit.files import remove_leftovers
from clearvit.images import Picture, find_images
from clearvit.shards.plan import check_space, listing_of
from clearvit.training.loop import accelerator_for, check_share, in_half
from clearvit.training.pictures import check_enough, readable
from clearvit.training.run import claim

TRAINING, RUN, TARGETS = "training", "run", "targets"  # directories inside the output
OF_TARGETS = (
    *("model", "fingerprint", "listing"),
    *("size", "views", "sampler", "fraction", "seed", "half", "features", "layer"),
)
WITHOUT_EFFECT = ("cache", "targets", "overwrite", "recompute")  # options, on the result


def cure(
    backbone: Backbone,
    images: str | Path | Iterable[object] = (),
    *,
    out: str | Path | None = None,
    method: Method = "distill",
    config: CureConfig | None = None,
    report: Report | None = None,
) -> Backbone:
    """Return a backbone with clean tokens; the given one is left as it was.

    "distill" adds registers and trains them with the network to give, in one forward pass, the
    tokens that the model gives on average over shifted and mirrored views (PH-Reg). "test-time"
    moves the activations behind high-norm tokens to one extra token, without training. "denoise"
    averages views in every forward pass.

    Args:
        backbone: A ViT; for "denoise" any backbone.
        images: A folder, a file, a pattern or a list of these; no labels are needed. "denoise"
            looks at none.
        out: Directory for the result. A killed run goes on when called again with the same
            arguments. Without it nothing is kept.
        method: "distill", "test-time" or "denoise".
        config: Size, views, registers, epochs and so on.
        report: Told what is going on, for a progress bar.
    """
    config = config or CureConfig()
    if method not in METHODS:
        raise ModelError(
            f"method is '{method}'; use {', '.join(METHODS)}.{closest(method, METHODS)}"
        )
    if method == "denoise":
        from clearvit.cure.averaged import averaged

        return averaged(
            backbone, views=config.views, sampler=config.sampler, fraction=config.fraction
        )
    if not isinstance(backbone, VitBackbone):
        raise ModelError(
            f"'{backbone.name}' is a grid-only backbone: it cannot hold registers. Its features can"
            " be averaged over views: method='denoise'."
        )
    if method == "test-time":
        return _test_time(backbone, images, out, config, report)
    with _directory(out) as folder:
        return _distilled(backbone, images, folder, config, report)


def _distilled(
    backbone: VitBackbone,
    images: str | Path | Iterable[object],
    folder: Path,
    config: CureConfig,
    report: Report | None,
) -> VitBackbone:
    """Check all that can be checked, then compute targets, train, and write the result."""
    pair = pair_of(backbone, config.features, config.layer)
    registers = registers_for(pair.student, config.registers)
    config = dataclasses.replace(config, registers=registers)
    _check(pair.student, config)
    check = None if report is None else functools.partial(report, "check")
    pictures, skipped = readable(find_images(images), backbone, check)
    accelerator = accelerator_for(backbone.device)
    check_share(config.batch, accelerator.num_processes)
    check_enough(len(pictures), config.validation, config.batch)
    targets = Targets(
        pair.teacher, pictures, _place(folder, config), _target_config(pair.teacher, config)
    )
    plan = _plan(pair.teacher, pictures, config, targets.config)
    if accelerator.is_main_process:
        _claim(folder, plan, targets, config)
        _announce(targets, report)
    accelerator.wait_for_everyone()
    finished = restored(pair.student, folder, plan)
    if finished is not None:
        return finished
    tell = None if report is None else lambda done, total: report("targets", done, total, "")
    targets.prepare(tell, process=accelerator.process_index, processes=accelerator.num_processes)
    accelerator.wait_for_everyone()
    distilled = distill(pair.student, targets, config, folder / TRAINING / RUN, accelerator, report)
    if accelerator.is_main_process:
        write_result(folder, backbone, distilled, plan, skipped)
    accelerator.wait_for_everyone()
    return whole(distilled.backbone)


def _check(student: VitBackbone, config: CureConfig) -> None:
    """Refuse, before any work, what cannot be done."""
    for part in parts_to_unlock(config):
        if part != "registers":
            parameters_of(student, part)
    for name in ("epochs", "batch", "views"):
        if getattr(config, name) < 1:
            raise TrainingError(f"{name} is {getattr(config, name)}; give at least 1.")
    if not config.lr > 0:
        raise TrainingError(f"lr is {config.lr}; give a positive number.")
    if not 0 <= config.ema < 1:
        raise TrainingError(f"ema is {config.ema}; give a share in [0, 1), 0 for none.")
    if not 0 < config.validation < 1:
        raise TrainingError(f"validation is {config.validation}; give a share in (0, 1).")


def _target_config(teacher: Backbone, config: CureConfig) -> TargetConfig:
    return TargetConfig(
        size=teacher.fitting_size(config.size),
        views=config.views,
        sampler=config.sampler,
        fraction=config.fraction,
        seed=config.seed,
        limit=config.cache,
        half=in_half(teacher.device, config.precision),
    )


def _plan(
    teacher: VitBackbone, pictures: Sequence[Picture], config: CureConfig, targets: TargetConfig
) -> dict[str, Any]:
    """Write down all that decides the weights, for a resumed run to compare."""
    options = {
        key: value for key, value in dataclasses.asdict(config).items() if key not in WITHOUT_EFFECT
    }
    plan = {
        "model": teacher.name,
        "fingerprint": teacher.fingerprint(),
        "images": len(pictures),
        "listing": listing_of(pictures),
        **options,
        "size": targets.size,
        "half": targets.half,  # what "auto" precision came to here
    }
    content: dict[str, Any] = json.loads(json.dumps(plan))
    return content


def _claim(folder: Path, plan: dict[str, Any], targets: Targets, config: CureConfig) -> None:
    if folder.exists() and any(folder.iterdir()) and not (folder / TRAINING).exists():
        raise StoreError(
            f"'{folder}' is not empty and holds no cure of ours. Choose another --out."
        )
    remove_leftovers(folder)  # of a run that was killed while it wrote its result
    claim(folder / TRAINING / RUN, plan, overwrite=config.overwrite)
    chosen = {key: plan[key] for key in OF_TARGETS}
    claim(targets.folder, chosen, overwrite=config.overwrite)
    check_space(targets.folder, len(targets.missing()) * targets.bytes_each)


def _announce(targets: Targets, report: Report | None) -> None:
    """Say what will be written, before it is."""
    missing = len(targets.missing())
    if report and missing:
        views, size = targets.config.views, missing * targets.bytes_each / 1e6
        kept = "" if targets.kept == len(targets.pictures) else f" (of {len(targets.pictures)})"
        report(
            "note",
            0,
            0,
            f"targets: {missing} images{kept} x {views} views, {size:.1f} MB in {targets.folder}",
        )


def _place(folder: Path, config: CureConfig) -> Path:
    return Path(config.targets) if config.targets else folder / TRAINING / TARGETS


@contextlib.contextmanager
def _directory(out: str | Path | None) -> Iterator[Path]:
    """Give the output directory, or one that vanishes."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="clearvit-") as temporary:
        yield Path(temporary)


def _test_time(
    backbone: VitBackbone,
    images: str | Path | Iterable[object],
    out: str | Path | None,
    config: CureConfig,
    report: Report | None,
) -> VitBackbone:
    from clearvit.backbones.saved import save_backbone
    from clearvit.cure.testtime import test_time

    tell = None if report is None else lambda done, total: report("neurons", done, total, "")
    edited = test_time(backbone, images, size=config.size, seed=config.seed, progress=tell)
    if out is not None:
        save_backbone(edited, out)
    return edited
