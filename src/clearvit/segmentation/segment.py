"""`cv.segment`: a few masks or strokes in, masks for a whole folder out."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from clearvit.backbones.backbone import Backbone
from clearvit.errors import ImageError, OptionError
from clearvit.files import replace_json, written_whole
from clearvit.images import ImageSource, Skipped, find_images
from clearvit.images.find import ImageInput
from clearvit.options import with_options
from clearvit.progress import Meter, Progress
from clearvit.runs import claim
from clearvit.segmentation.annotations.coco import write_coco
from clearvit.segmentation.config import SegmentConfig
from clearvit.segmentation.contact_sheet import write_contact_sheet
from clearvit.segmentation.fit_examples import fit_segmenter, key_of
from clearvit.segmentation.labelled_examples import CLASSES, ExampleInput, read_examples
from clearvit.segmentation.mask_making import Making, find_missing, make_masks
from clearvit.segmentation.mask_results import Mask, Masks, is_edited, mask_paths, read_facts
from clearvit.segmentation.segmenter import CONFIG, TENSORS, Segmenter, load_segmenter

SUMMARY, PAGE, COCO = "masks.json", "masks.html", "coco.json"
FILES = (CONFIG, TENSORS, SUMMARY, PAGE, COCO, CLASSES)


@with_options(SegmentConfig)
def segment(
    backbone: Backbone,
    images: ImageInput,
    *,
    examples: ExampleInput | None = None,
    model_file: str | Path | None = None,
    out: str | Path | None = None,
    config: SegmentConfig,
    progress: Progress | None = None,
) -> Masks:
    """Make a mask for every image of a folder from a few labelled examples.

    The same call goes on where a killed run stopped. With other examples or options only what the
    new model decides is made again; masks that were edited by hand are kept.

    Args:
        backbone: Any backbone; raw, cured or with a fine grid.
        images: A folder (with all its subfolders), a file, a glob pattern, or a list of these.
        examples: A folder of labelled images, a JSON file (COCO, LabelMe, strokes), or pairs of an
            image and an index mask; see docs/segment.md.
        model_file: segmenter.json of an earlier run, instead of examples.
        out: The directory of the masks; a temporary one that vanishes with the result if None.
        config: All options at once, instead of keywords.
        progress: Called with the stage, the images done and all images; a bar by default.

    Returns:
        The masks in the order of the images; `.skipped` lists the bad files, `.segmenter` is the
        model with the choice behind it.
    """
    if (examples is None) == (model_file is None):
        raise OptionError("give either examples or the model_file of an earlier run.", "examples")
    temporary = tempfile.TemporaryDirectory(prefix="clearvit-") if out is None else None
    folder = Path(temporary.name if temporary else str(out))
    sources = _outside(find_images(images), folder)
    claim(folder, {}, kind="masks", files=FILES, overwrite=config.overwrite)
    if model_file is not None:
        segmenter = load_segmenter(model_file)
    else:
        assert examples is not None
        segmenter = _fit_or_load(backbone, examples, sources, folder, config, progress)
    fine = segmenter.prepare(backbone)
    segmenter.save(folder)
    if progress:
        progress("method", 0, 0, f"method: {segmenter.choice}")
    paths = mask_paths(sources, folder)
    missing = find_missing(sources, paths, segmenter.key, overwrite=config.overwrite)
    meter = Meter(progress, len(sources), "masks")
    meter.advance(len(sources) - len(missing))
    run = Making(segmenter, fine, paths, config.batch, config.strict)
    skipped = _make(run, missing, meter, config, folder)
    masks = Masks(_collect(sources, paths, segmenter), skipped, segmenter, folder, temporary)
    _write_results(masks, config)
    return masks


def _outside(sources: Sequence[ImageSource], folder: Path) -> list[ImageSource]:
    """Leave out masks that lie among the images because `out` does."""
    top = folder.absolute()
    kept = [
        image
        for image in sources
        if not isinstance(image.source, (str, Path))
        or not Path(image.source).absolute().is_relative_to(top)
    ]
    if not kept:
        raise ImageError(f"all images lie in '{folder}', where the masks go. Choose another --out.")
    return kept


def _fit_or_load(
    backbone: Backbone,
    examples: ExampleInput,
    sources: Sequence[ImageSource],
    folder: Path,
    config: SegmentConfig,
    progress: Progress | None,
) -> Segmenter:
    """Fit to the examples, unless the directory holds the result of the same fit."""
    labelled = read_examples(examples, images=sources, unlabelled=config.unlabelled)
    if (folder / CONFIG).exists():
        found = load_segmenter(folder)
        if found.key == key_of(backbone, labelled, config):
            return found
    return fit_segmenter(backbone, labelled, config, progress)


def _make(
    run: Making,
    missing: Sequence[ImageSource],
    meter: Meter,
    config: SegmentConfig,
    folder: Path,
) -> list[Skipped]:
    if missing and config.engine == "ray":
        from clearvit.segmentation.masks_on_ray import make_on_ray

        return make_on_ray(run, missing, meter, folder)
    return make_masks(run, missing, meter)


def _collect(
    sources: Sequence[ImageSource], paths: dict[str, Path], segmenter: Segmenter
) -> list[Mask]:
    """List the masks that are there."""
    classes = dict(zip(segmenter.numbers, segmenter.classes, strict=True))
    found = []
    for image in sources:
        path = paths[image.name]
        if path.exists():
            facts = read_facts(path)
            ours = facts is not None and not is_edited(path, facts)
            confidence = facts.confidence if ours and facts else None
            found.append(Mask(image.name, path, confidence, classes, image))
    return found


def _write_results(masks: Masks, config: SegmentConfig) -> None:
    """Write what belongs to all masks together."""
    replace_json(masks.folder / SUMMARY, masks.to_json())
    names = [masks.classes.get(n, f"class {n}") for n in range(max(masks.classes) + 1)]
    with written_whole(masks.folder / CLASSES) as temporary:
        temporary.write_text("\n".join(names) + "\n", "utf-8")
    if config.coco:
        pairs = ((mask.name, mask.array.astype("int64")) for mask in masks)
        write_coco(masks.folder / COCO, masks.classes, pairs)
    if config.page and len(masks):
        write_contact_sheet(masks.folder / PAGE, masks)
