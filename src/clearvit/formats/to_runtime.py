"""For ONNX Runtime and OpenVINO: one graph of fixed size, compared with the original in place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from clearvit.backbones.sources.runtime import (
    CLASSES,
    CONFIG,
    FILES,
    PIXELS,
    PRECISION,
    READERS,
    GraphFacts,
    RuntimeBackbone,
    RuntimeFormat,
    check_libraries,
)
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ClearvitError, ModelError
from clearvit.files import write_json
from clearvit.formats.config import Quantize
from clearvit.formats.folder import atomic_folder
from clearvit.formats.graph import EXPORTERS, Graph, macs_of, to_float32
from clearvit.formats.parity import Check, compare_runtime, synthetic_images
from clearvit.formats.quantization import (
    check_quantize,
    quantize_onnx,
    quantize_openvino,
    read_calibration,
)
from clearvit.segmentation.patch_classifiers import ClassMaps
from clearvit.segmentation.segmenter import Segmenter

NEAR = 0.98  # cosine to the float graph below which a note says so

CLASS_TOLERANCE = 1e-3  # of a probability
# Ways to run a graph, in the order they are tried. OpenVINO's fused attention (2026.4) is wrong for
# sequences of a few tokens when the number of images is fixed.
SETTINGS: dict[RuntimeFormat, tuple[dict[str, str], ...]] = {
    "onnx": ({},),
    "openvino": ({}, {"SNIPPETS_MODE": "DISABLE"}),
}


@dataclass(frozen=True)
class WrittenGraph:
    """What lies on disk now, and how near it is to the original."""

    path: Path
    facts: GraphFacts
    check: Check
    loading: str
    notes: tuple[str, ...]


def write_runtime(
    backbone: VitBackbone,
    out: Path,
    format: RuntimeFormat,
    *,
    batch: int | None = None,
    quantize: Quantize | None = None,
    segmenter: Segmenter | None = None,
    calibration: str | None = None,
) -> WrittenGraph:
    """Write a graph and its facts to a directory, which appears once its tokens were compared."""
    check_quantize(format, quantize, calibration)
    check_libraries(format, f"export to {format}", writing=True)
    original = to_float32(backbone)
    facts = _facts(original, format, batch)
    head = None
    if segmenter is not None:
        facts = replace(facts, classes=segmenter.classes)
        head = ClassMaps(segmenter.classifier, original.grid_of(facts.size))
    images = None if calibration is None else read_calibration(original, calibration)
    with atomic_folder(out) as folder:
        facts, check = _write_checked(Graph(original, facts, head), facts, folder)
        if quantize:
            facts, check = _write_quantized(original, facts, folder, quantize, images)
        write_json(folder / CONFIG, facts.to_json())
    notes = _notes(facts, check)
    if segmenter is not None and segmenter.choice.chosen.refine:
        notes += ("masks were sharpened along the edges of the image, which the graph does not do",)
    return WrittenGraph(out, facts, check, runtime_code(out, facts), notes)


def _write_quantized(
    backbone: VitBackbone,
    facts: GraphFacts,
    folder: Path,
    quantize: Quantize,
    images: tuple[Tensor, Tensor] | None,
) -> tuple[GraphFacts, Check]:
    """Make the graph one of fewer bits, and compare it on images that took no part in that."""
    settings = dict(facts.settings)
    if facts.format == "openvino":
        settings[PRECISION] = "bf16"  # also of what int8 leaves in float
    quantized = replace(facts, quantize=quantize, settings=settings)
    if facts.format == "onnx":
        quantize_onnx(folder / FILES["onnx"])
    elif images is not None:
        quantize_openvino(folder, facts, images[0])
    return quantized, _check(backbone, quantized, folder, None if images is None else images[1])


def _write_checked(graph: Graph, facts: GraphFacts, folder: Path) -> tuple[GraphFacts, Check]:
    """Write the graph by the first way whose tokens are those of the original."""
    backbone, reasons = graph.original, []
    for exporter in EXPORTERS:
        try:
            exporter(graph, facts, folder / FILES["onnx"])
            if facts.format == "openvino":
                _convert(folder)
            for settings in SETTINGS[facts.format]:
                tried = replace(facts, settings=settings)
                check = _check(backbone, tried, folder)
                if check.passed and _same_classes(graph, tried, folder):
                    return tried, check
        except ClearvitError as error:  # a library is missing
            reasons.append(str(error))
        except Exception as error:  # every library has errors of its own, and none is expected
            reasons.append(str(error).strip().partition("\n")[0])
        else:
            found = f"{check.relative:.1e} of their RMS"
            reasons.append(f"{READERS[facts.format]} computes other tokens ({found})")
    raise ModelError(
        f"'{backbone.name}' ({type(backbone).__name__}) cannot be written as a graph:"
        f" {'; then: '.join(reasons)}. Export the model it was made of, or a copy pruned by another"
        " scorer."
    )


def _check(
    backbone: VitBackbone, facts: GraphFacts, folder: Path, pixels: Tensor | None = None
) -> Check:
    copied = RuntimeBackbone(folder, facts, name=str(folder))
    return compare_runtime(backbone, copied, facts.size, pixels)


def _same_classes(graph: Graph, facts: GraphFacts, folder: Path) -> bool:
    """Compare the class maps of the file with those of the original, where there are any."""
    if graph.head is None:
        return True
    pixels = synthetic_images(facts.size)
    with torch.no_grad():
        wanted = graph.head(graph.original.forward(pixels).patches)
    found = RuntimeBackbone(folder, facts, name=str(folder)).run(pixels)[CLASSES]
    return bool((found - wanted).abs().max() <= CLASS_TOLERANCE)


def runtime_code(out: Path, facts: GraphFacts) -> str:
    """Load and run the graph without clearvit; it runs as it stands."""
    path = (out / FILES[facts.format]).as_posix()
    shape = (facts.batch or 1, 3, *facts.size)
    if facts.format == "onnx":
        first, names = "import onnxruntime", ", ".join(facts.outputs)
        session = f"onnxruntime.InferenceSession({path!r})"
        run = f"{names}{',' * (len(facts.outputs) == 1)} = session.run({list(facts.outputs)}, "
        run += f"{{{PIXELS!r}: pixels}})"
    else:
        hint = f", {dict(facts.settings)}" if facts.settings else ""
        first, session = "import openvino", f"openvino.Core().compile_model({path!r}, 'CPU'{hint})"
        run = "tokens = session(pixels)\n"
        run += "\n".join(f"{name} = tokens[{name!r}]" for name in facts.outputs)
    batch = "" if facts.batch else "  # any number of images"
    mean, std = facts.preprocessing.mean, facts.preprocessing.std
    return f"""\
import numpy
{first}

session = {session}
# Pixels from 0 to 1, minus {mean}, divided by {std}.
pixels = numpy.zeros({shape}, numpy.float32){batch}
{run}
# With clearvit: cv.load({f"{facts.format}:{out.as_posix()}"!r}).tokens("photo.jpg")
"""


def _facts(backbone: VitBackbone, format: RuntimeFormat, batch: int | None) -> GraphFacts:
    size = backbone.fitting_size()
    dense = getattr(backbone, "dense", backbone)
    return GraphFacts(
        format=format,
        source=backbone.name,
        fingerprint=backbone.fingerprint(),
        size=size,
        patch=backbone.patch,
        width=backbone.width,
        prefix_names=backbone.prefix_names,
        preprocessing=replace(backbone.preprocessing, size=size),
        pruned=dense is not backbone,
        batch=batch,
        macs=macs_of(backbone, size),
        scale=backbone.scale,
        # Steps after the norm change the patches, which the projection may pool.
        embedding=backbone.embedding if backbone.output is None and backbone.fine is None else 0,
    )


def _convert(folder: Path) -> None:
    """Put OpenVINO's own files in the place of the ONNX file."""
    import openvino

    source = folder / FILES["onnx"]
    model = openvino.Core().read_model(source)
    openvino.save_model(model, folder / FILES["openvino"], compress_to_fp16=False)
    source.unlink()


def _notes(facts: GraphFacts, check: Check) -> tuple[str, ...]:
    height, width = facts.size
    notes = [f"the graph runs at {height}x{width} px only; its position embeddings are fixed"]
    if facts.batch is not None:
        notes.append(f"it takes {facts.batch} images at a time; cv.load fills up what is missing")
    if facts.quantize:
        notes.append(_quantized_note(facts.quantize, check))
    elif check.ties:
        notes.append(
            f"{check.ties} tokens of the check were left out: two patches scored the same within"
            " rounding, so another one was kept or copied"
        )
    return tuple(notes)


def _quantized_note(quantize: str, check: Check) -> str:
    """Say how far the tokens are from the original's."""
    words = f"{quantize} changes the tokens: mean cosine {check.cosine:.4f} to the original's"
    if check.prefix_cosine is not None:
        words += f" (class token and registers {check.prefix_cosine:.4f})"
    words += f" on {check.images} images"
    words += " that took no part in the calibration" if check.photos else " of noise and colors"
    judged = check.cosine if check.prefix_cosine is None else check.prefix_cosine
    if judged < NEAR:
        words += f"; that is below {NEAR}"
    return f"{words}; measure your task before you use it"
