"""`cv.cure`: a Backbone in, a Backbone with clean tokens out."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.neurons import NeuronBackbone
from clearvit.backbones.output import SCALE
from clearvit.backbones.sources.runtime import RuntimeBackbone
from clearvit.backbones.vit import VitBackbone
from clearvit.cures.classifier import has_head
from clearvit.cures.config import CureConfig
from clearvit.cures.distill import RUN, distill, make_student
from clearvit.cures.fine_head import add_fine_head, check_curable, wants_fine_head
from clearvit.cures.forecast import doubts, forecast
from clearvit.cures.positional import edit_output, is_empty
from clearvit.cures.registers import registers_for
from clearvit.cures.results.cure_file import FILE, write_cure_file
from clearvit.cures.results.cure_report import FILES as RESULT_FILES
from clearvit.cures.results.cure_report import CureReport, load_result, write_result
from clearvit.cures.targets import FILES as TARGET_FILES
from clearvit.cures.teacher import (
    Teacher,
    directions_for,
    targets_folder,
    teacher_and_student,
)
from clearvit.cures.trainable import parameters_of
from clearvit.errors import ImageError, ModelError, OptionError, TrainingError
from clearvit.files import check_space
from clearvit.images import ImageSource, find_images, listing_of
from clearvit.options import with_options
from clearvit.precision import uses_bf16
from clearvit.progress import Progress
from clearvit.runs import claim, claim_files, output_directory
from clearvit.training.held_out import check_batch_fits, split_held_out
from clearvit.training.loop import BEST, STATE, accelerator_for, check_divisible
from clearvit.views.config import DenoiseConfig
from clearvit.views.denoised import DenoisedBackbone

TRAINING = "training"  # directory inside the output
OF_TARGETS = (
    *("model", "fingerprint", "listing"),
    *("size", "sizes", "views", "sampler", "fraction", "directions"),
    *("seed", "bf16", "features", "layer"),
)
WITHOUT_EFFECT = (
    *("target_cache_gb", "targets_dir", "overwrite", "grad_checkpointing", "keep_anyway"),
)
HEAD_NOTE = (
    "the classifier on top is not trained along and may lose a point or two of top-1; where it"
    " counts, measure it, or use method 'denoise'."
)

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
    chosen on the images, and none if that does not help. "instant" does the same and may also
    average each token with its neighbors. "denoise" averages views in every forward pass. "fine"
    leaves the network as it is. `scale=2` ends each of them with a small head, fitted to the
    images, that gives the tokens on a grid twice as fine in the same forward pass; where it is no
    better than upsampling, there is none.

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
        an `OutputReport` ("positional", "instant") or None ("denoise"); a `FineReport` with
        scale=2.
    """
    if config.method == "denoise":
        denoising = DenoiseConfig(
            views=config.views,
            scale=config.scale or 1,
            sampler=config.sampler,
            fraction=config.fraction,
        )
        denoised = DenoisedBackbone(backbone, denoising)
        denoised.check_views(config.size)
        if out is not None:
            denoised.save(out, kind="cure")
        return denoised
    vit = _check_kind(backbone, config)
    config = _decide_sizes(vit, config)
    fine = wants_fine_head(config)
    _check_images(images, config, fine=fine)
    check_curable(vit, images, config, fine=fine)
    with output_directory(out) as folder:
        if config.method == "distill":
            vit = _cure_by_training(vit, images, folder, config, progress)
        elif config.method != "fine":
            vit = _cure_without_training(vit, images, out, config, progress)
        return add_fine_head(vit, images, folder, config, progress) if fine else vit


def _check_kind(backbone: Backbone, config: CureConfig) -> VitBackbone:
    """Refuse, before any work, models that have no weights to train or to edit."""
    name = backbone.name
    if isinstance(backbone, RuntimeBackbone):
        raise ModelError(
            f"'{name}' is an exported graph, whose weights are fixed. Cure the model that it was"
            f" made of, '{backbone.facts.source}', and export the result."
        )
    if isinstance(backbone, DenoisedBackbone):
        raise ModelError(f"'{name}' averages views already. Cure '{backbone.inner.name}' itself.")
    if not isinstance(backbone, VitBackbone):
        raise ModelError(
            f"'{name}' is a grid-only backbone, and method '{config.method}' is for ViTs. Its"
            " features can be averaged over views: method='denoise'."
        )
    if hasattr(backbone, "dense"):
        raise ModelError(f"'{name}' is pruned. Cure the dense model first, and prune the result.")
    edits = config.method in ("positional", "instant", "fine")  # after the final norm only
    if isinstance(backbone, NeuronBackbone) and not edits:
        raise ModelError(f"'{name}' has test-time registers. Cure the model that it was made of.")
    return backbone


def _check_images(images: Source, config: CureConfig, *, fine: bool) -> None:
    """Refuse, before any work, to learn from nothing; the directions of position need no images."""
    if not is_empty(images) or (config.method == "positional" and not fine):
        return
    what = f"a head for {SCALE} times finer tokens" if fine else f"method '{config.method}'"
    raise ImageError(
        f"{what} learns from images, and there are none; labels are not needed. Give a folder, or"
        " use method 'denoise' or 'positional', which go without."
    )


def _decide_sizes(backbone: VitBackbone, config: CureConfig) -> CureConfig:
    """Let the first of several sizes stand for all where only one can be used."""
    if not config.sizes:
        return config
    if config.method != "distill":
        raise OptionError("several sizes are for the training, method 'distill'.", "sizes")
    if config.size is not None:
        raise OptionError("give --size or --sizes, not both.", "sizes")
    return dataclasses.replace(config, size=backbone.fitting_size(config.sizes[0]))


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
    sources, config = _decide(teacher, student, images, config, progress)
    accelerator = accelerator_for(backbone.device)
    check_divisible(config.batch, accelerator.num_processes)
    plan = _plan(teacher, sources, config)
    if accelerator.is_main_process:
        _claim(folder, plan, config)
    accelerator.wait_for_everyone()
    finished = None if config.overwrite else load_result(student, folder, plan)
    if finished is not None:
        return _whole(*finished)
    if accelerator.is_main_process:
        _announce(Teacher(teacher, config), student, sources, folder / TRAINING, progress)
    accelerator.wait_for_everyone()
    trained, report, change = distill(
        backbone, sources, folder / TRAINING, config, accelerator, progress
    )
    _check_gain(report, config)
    cured = _whole(trained, report)
    if accelerator.is_main_process:
        (folder / FILE).unlink(missing_ok=True)  # of an earlier run that was low-rank
        if change is not None and not config.resize_positions:
            write_cure_file(folder / FILE, change, student, config, report)
        write_result(folder, cured, backbone.name, config, plan)
    accelerator.wait_for_everyone()
    return cured


def _decide(
    teacher: VitBackbone,
    student: VitBackbone,
    images: Source,
    config: CureConfig,
    progress: Progress | None,
) -> tuple[list[ImageSource], CureConfig]:
    """Find the images, and replace what the options leave open: registers, directions."""
    registers, reason = registers_for(student, config.registers)
    parts = tuple(part for part in config.unfreeze if part != "registers" or registers)
    config = dataclasses.replace(config, registers=registers, unfreeze=parts)
    _check(student, config)
    sources = find_images(images)
    check_batch_fits(len(sources), config.held_out, config.batch)
    directions, choice = directions_for(teacher, sources, config, progress)
    for note in filter(None, (reason, choice)):
        if progress:
            progress("cure", 0, 0, f"note: {note}")
    return sources, dataclasses.replace(config, directions=directions)


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
    claim_files(folder, (*RESULT_FILES, FILE, TRAINING), kind="cure")
    run = folder / TRAINING / RUN
    claim(run, plan, kind="training", files=(STATE, BEST), overwrite=config.overwrite)
    chosen = {key: plan[key] for key in OF_TARGETS}
    targets = targets_folder(folder / TRAINING, config)
    claim(targets, chosen, kind="targets", files=TARGET_FILES, overwrite=config.overwrite)


def _announce(
    teacher: Teacher,
    student: VitBackbone,
    sources: Sequence[ImageSource],
    folder: Path,
    progress: Progress | None,
) -> None:
    """Say what the work will take and what speaks against it, before it begins."""
    config, cache = teacher.config, teacher.cache(sources, folder)
    missing = cache.missing()
    disk = missing * cache.bytes_each
    check_space(cache.folder, disk, "Keep less with --target-cache-gb, or use another disk.")
    if progress is None:
        return
    registers = torch.zeros(config.registers or 0, student.network.embed_dim)
    trial = make_student(student, config, registers)
    images = len(split_held_out(len(sources), config.held_out)[0])
    expected = forecast(
        teacher,
        trial,
        targets=len(sources) if config.fresh_targets else missing,
        images=images,
        disk=disk,
    )
    for doubt in doubts(len(sources), teacher.sizes, teacher.preprocessing.size, config.views):
        progress("cure", 0, 0, f"note: {doubt}")
    if has_head(student) and config.layer is None:
        progress("cure", 0, 0, f"note: {HEAD_NOTE}")
    what = f"{len(sources)} images x {config.views} views, {config.registers} registers"
    progress("cure", 0, 0, f"{what}; {expected}")


def _check_gain(report: CureReport, config: CureConfig) -> None:
    """Refuse a result that is no better than the model it was made of."""
    if report.before is None or report.after is None or report.after < report.before:
        return
    if config.keep_anyway:
        return
    _check_head(report, config)
    raise TrainingError(
        "the training did not help, and no model was written: on held-out images the distance to"
        f" clean tokens was {report.before:.4f} before and {report.after:.4f} after the best epoch"
        f" ({report.best_epoch} of {len(report.epochs) - 1}). Give more images (these were"
        f" {report.images}; some hundred help), images of the size the model is used at (--size),"
        " more epochs, or a lower --lr. --keep-anyway writes the model all the same."
    )


def _check_head(report: CureReport, config: CureConfig) -> None:
    """Refuse a training whose every gain would cost a classifier its predictions."""
    least, before = config.head_agreement, report.before
    refused = [
        epoch
        for epoch in report.epochs
        if epoch.distance is not None and before is not None and epoch.distance < before
        if epoch.agreement is not None and epoch.agreement < least
    ]
    if not refused:
        return
    best = max(refused, key=lambda epoch: epoch.agreement or 0.0)
    kept = 100 * (best.agreement or 0.0)
    raise TrainingError(
        "no model was written: its own head would no longer predict the same classes. It must for"
        f" {100 * least:.0f} % of the held-out images, and did for {kept:.0f} % (epoch"
        f" {best.epoch}). Use a lower --lr or --rank, or --head-agreement 0 if you do not need the"
        " head."
    )


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
    from clearvit.cures.test_time import test_time

    if out is not None:
        claim_files(Path(out), (), kind="cure")  # refuse before the work
    size, seed = config.size, config.seed
    edited: VitBackbone
    if config.method == "test-time":
        edited = test_time(backbone, images, size=size, seed=seed, progress=progress)
    else:
        smoothing = config.method == "instant"
        edited = edit_output(
            backbone, images, smoothing=smoothing, size=size, seed=seed, progress=progress
        )
    if out is not None:
        save(edited, out, kind="cure")
    return edited
