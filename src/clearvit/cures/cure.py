"""`cv.cure`: a Backbone in, a Backbone with clean tokens out."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.vit import VitBackbone
from clearvit.cures.config import CureConfig
from clearvit.cures.cure_report import load_result, write_result
from clearvit.cures.distill import RUN, distill, parameters_of
from clearvit.cures.registers import registers_for
from clearvit.cures.teacher import Teacher, targets_folder, teacher_and_student
from clearvit.errors import ModelError, OptionError, StoreError
from clearvit.files import check_space, remove_leftovers
from clearvit.images import ImageSource, find_images, listing_of
from clearvit.options import with_options
from clearvit.progress import Progress
from clearvit.runs import claim, output_directory
from clearvit.training.held_out import check_batch_fits
from clearvit.training.loop import accelerator_for, check_divisible, uses_bf16

TRAINING = "training"  # directory inside the output
OF_TARGETS = (
    *("model", "fingerprint", "listing"),
    *("size", "views", "sampler", "fraction", "seed", "bf16", "features", "layer"),
)
WITHOUT_EFFECT = ("target_cache_gb", "targets_dir", "overwrite", "grad_checkpointing")

Source = str | Path | Iterable[object]


@with_options(CureConfig)
def cure(
    backbone: Backbone,
    images: Source = (),
    *,
    out: str | Path | None = None,
    config: CureConfig,
    progress: Progress | None = None,
) -> Backbone:
    """Return a backbone with clean tokens; the given one is left as it was.

    "distill" adds registers and trains them with the network to give, in one forward pass, the
    tokens that the model gives on average over shifted and mirrored views (PH-Reg). "test-time"
    moves the activations behind high-norm tokens to one extra token, without training. "positional"
    removes the directions in which tokens of noise images vary with their position; how many is
    chosen on the images, and none if that does not help. "denoise" averages views in every forward
    pass.

    Args:
        backbone: A ViT; for "denoise" any backbone.
        images: A folder, a file, a pattern or a list of these; no labels are needed. "denoise"
            needs none, "positional" only to choose and to check.
        out: Directory for the result. A killed run goes on when called again with the same
            arguments. Without it nothing is kept.
        config: All options at once, instead of keywords.
        progress: Called with the stage, what is done and of how much; a bar by default.

    Returns:
        A backbone whose `report` is a `CureReport` ("distill"), a `RegisterNeurons` ("test-time"),
        a `PositionalReport` ("positional") or None ("denoise").
    """
    if config.method == "denoise":
        from clearvit.views.config import DenoiseConfig
        from clearvit.views.denoised import DenoisedBackbone

        denoising = DenoiseConfig(
            views=config.views, sampler=config.sampler, fraction=config.fraction
        )
        return DenoisedBackbone(backbone, denoising)
    if not isinstance(backbone, VitBackbone):
        raise ModelError(
            f"'{backbone.name}' is a grid-only backbone: it cannot hold registers. Its features can"
            " be averaged over views: method='denoise'."
        )
    if config.method != "distill":
        return _cure_without_training(backbone, images, out, config, progress)
    with output_directory(out) as folder:
        return _cure_by_training(backbone, images, folder, config, progress)


def _cure_by_training(
    backbone: VitBackbone,
    images: Source,
    folder: Path,
    config: CureConfig,
    progress: Progress | None,
) -> VitBackbone:
    """Check all that can be checked, then train, and write the result."""
    config = dataclasses.replace(config, size=backbone.fitting_size(config.size))
    teacher, student = teacher_and_student(backbone, config)
    registers = registers_for(student, config.registers)
    parts = tuple(part for part in config.unfreeze if part != "registers" or registers)
    config = dataclasses.replace(config, registers=registers, unfreeze=parts)
    _check(student, config)
    sources = find_images(images)
    accelerator = accelerator_for(backbone.device)
    check_divisible(config.batch, accelerator.num_processes)
    check_batch_fits(len(sources), config.held_out, config.batch)
    plan = _plan(teacher, sources, config)
    if accelerator.is_main_process:
        _claim(folder, plan, config)
    accelerator.wait_for_everyone()
    finished = load_result(student, folder, plan)
    if finished is not None:
        return _whole(*finished)
    if accelerator.is_main_process:
        _announce(Teacher(teacher, config), sources, folder / TRAINING, progress)
    accelerator.wait_for_everyone()
    trained = distill(backbone, sources, folder / TRAINING, config, accelerator, progress)
    cured = _whole(*trained)
    if accelerator.is_main_process:
        write_result(folder, cured, backbone.name, config, plan)
    accelerator.wait_for_everyone()
    return cured


def _check(student: VitBackbone, config: CureConfig) -> None:
    """Refuse, before any work, what cannot be done."""
    if not any(part == "registers" or parameters_of(student, part) for part in config.unfreeze):
        raise OptionError("unfreeze leaves nothing to train; use 'all' or some parts.", "unfreeze")
    if config.preset == "ph-reg" and student.text is not None:
        raise OptionError(
            f"'{student.name}' has a text tower; PH-Reg trains such models as preset"
            " 'ph-reg-clip' does.",
            "preset",
        )


def _plan(
    teacher: VitBackbone, sources: Sequence[ImageSource], config: CureConfig
) -> dict[str, Any]:
    """Write down all that decides the weights, for a resumed run to compare."""
    options = dataclasses.asdict(config)
    plan = {
        "model": teacher.name,
        "fingerprint": teacher.fingerprint(),
        "images": len(sources),
        "listing": listing_of(sources),
        **{key: value for key, value in options.items() if key not in WITHOUT_EFFECT},
        "bf16": uses_bf16(teacher.device, config.precision),  # what "auto" means here
    }
    content: dict[str, Any] = json.loads(json.dumps(plan))
    return content


def _claim(folder: Path, plan: dict[str, Any], config: CureConfig) -> None:
    """Take the directories of the training and of the targets, which other runs may share."""
    if folder.exists() and any(folder.iterdir()) and not (folder / TRAINING).exists():
        raise StoreError(f"'{folder}' is not empty and holds no cure. Choose another --out.")
    remove_leftovers(folder)  # of a run that was killed while it wrote its result
    files = ("*.safetensors", "*.json")
    claim(folder / TRAINING / RUN, plan, kind="training", files=files, overwrite=config.overwrite)
    chosen = {key: plan[key] for key in OF_TARGETS}
    targets = targets_folder(folder / TRAINING, config)
    claim(targets, chosen, kind="targets", files=files, overwrite=config.overwrite)


def _announce(
    teacher: Teacher, sources: Sequence[ImageSource], folder: Path, progress: Progress | None
) -> None:
    """Say what will be written, before it is, and whether there is room for it."""
    cache = teacher.cache(sources, folder)
    missing = cache.missing()
    needed = missing * cache.bytes_each
    check_space(cache.folder, needed, "Keep less with --target-cache-gb, or use another disk.")
    if progress and missing:
        kept = "" if cache.kept == len(sources) else f" (of {len(sources)})"
        note = f"targets: {missing} images{kept} x {teacher.config.views} views"
        progress("targets", 0, 0, f"{note}, {needed / 1e6:.1f} MB in {cache.folder}")


def _whole(student: VitBackbone, report: Any) -> VitBackbone:
    """Undo the choice of a layer, so that all blocks run again, and attach the report."""
    cured = copy.copy(student)
    cured.depth, cured.report = len(student.network.blocks), report
    return cured


def _cure_without_training(
    backbone: VitBackbone,
    images: Source,
    out: str | Path | None,
    config: CureConfig,
    progress: Progress | None,
) -> VitBackbone:
    from clearvit.backbones.saved import save
    from clearvit.cures.positional import remove_position
    from clearvit.cures.test_time import test_time

    method = test_time if config.method == "test-time" else remove_position
    edited = method(backbone, images, size=config.size, seed=config.seed, progress=progress)
    if out is not None:
        save(edited, out)
    return edited
