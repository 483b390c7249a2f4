"""`cv.export`: write a model for another program, reload it there and compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.sources.runtime import READERS, RuntimeFormat
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError, OptionError
from clearvit.formats.config import ExportConfig, Format
from clearvit.formats.native import write_hf, write_timm
from clearvit.formats.parity import Check, Written, choose_second_size, compare
from clearvit.formats.to_runtime import write_runtime
from clearvit.options import with_options
from clearvit.runs import claim_files

if TYPE_CHECKING:
    from clearvit.segmentation.segmenter import Segmenter

WRITERS: dict[str, Callable[[VitBackbone, Path], Written]] = {"timm": write_timm, "hf": write_hf}


@dataclass(frozen=True)
class Exported:
    """A model that was written, reloaded and compared.

    Attributes:
        path: The directory or file.
        format: What was asked for.
        difference: Largest |difference| of any value of any token in the checks.
        loading: Python that loads it, ready to run.
        reader: The library that reloaded it for the checks.
        checks: One comparison per size; `relative` is the number that is judged.
        notes: What to know before using it, one sentence each.
    """

    path: Path
    format: Format
    difference: float
    loading: str
    reader: str
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say how the comparison went, as comments of the Python that loads the model."""
        sizes = " and ".join(f"{check.size[0]}x{check.size[1]} px" for check in self.checks)
        relative = max(check.relative for check in self.checks)
        result = f"{self.reader} gives the same tokens at {sizes}"
        if not all(check.passed for check in self.checks):  # fewer bits; else it was an error
            cosine = min(check.cosine for check in self.checks)
            result = f"fewer bits in {self.reader} at {sizes}, mean cosine {cosine:.4f} to the"
            result += " original tokens"
        numbers = f"largest difference {self.difference:.1e}, {relative:.1e} of their RMS"
        return f"# {self.path}: {result}\n# ({numbers}). Load it with:\n{self.loading.rstrip()}"


@with_options(ExportConfig)
def export(backbone: Backbone, out: str | Path, *, config: ExportConfig) -> Exported:
    """Write a backbone in the format of another library, reload it there and compare the tokens.

    The copy is compared with the original on a fixed batch of synthetic images. A difference above
    1e-4 of the tokens' root mean square is an error.

    Args:
        backbone: A ViT: raw, cured or, for "onnx" and "openvino", pruned to a fixed number.
        out: Directory to write. After format="timm" `timm.create_model("local-dir:OUT",
            pretrained=True)` loads it, after "hf" `transformers.AutoModel.from_pretrained(OUT)`,
            after "onnx" and "openvino" the runtime itself and `clearvit.load("onnx:OUT")`.
        config: All options at once, instead of keywords.

    Raises:
        ModelError: The format cannot hold this network, or the copy gives other
            tokens; what was written for timm or hf stays for inspection, a graph does not.
    """
    if not isinstance(backbone, VitBackbone):
        raise ModelError(
            f"'{backbone.name}' ({type(backbone).__name__}) is no ViT; export takes ViTs. Export"
            " the model it was made of; a grid-only backbone is saved by the library it comes from."
        )
    chosen, segmenter = backbone if config.size is None else backbone.resized(config.size), None
    if config.segmenter is not None:
        chosen, segmenter = _with_segmenter(chosen, config)
    if config.format == "onnx" or config.format == "openvino":
        _refuse_options(config, "check")
        return _export_graph(chosen, Path(out), config.format, config, segmenter)
    _refuse_options(config, "batch", "quantize", "calibration")
    return _export_weights(chosen, Path(out), config)


def _export_weights(chosen: VitBackbone, out: Path, config: ExportConfig) -> Exported:
    claim_files(out, (), kind="export")
    written = WRITERS[config.format](chosen, out)
    sizes = [written.size]
    if written.other_sizes:
        sizes.append(choose_second_size(written.size, chosen, config.check))
    checks = tuple(compare(chosen, written.run, size) for size in sizes)
    _refuse_other_tokens(chosen, written, checks)
    return Exported(
        path=written.path,
        format=config.format,
        difference=max(check.difference for check in checks),
        loading=written.loading,
        reader=written.reader,
        checks=checks,
        notes=written.notes,
    )


def _export_graph(
    backbone: VitBackbone,
    out: Path,
    format: RuntimeFormat,
    config: ExportConfig,
    segmenter: Segmenter | None,
) -> Exported:
    graph = write_runtime(
        backbone,
        out,
        format,
        batch=config.batch,
        quantize=config.quantize,
        segmenter=segmenter,
        calibration=config.calibration,
    )
    return Exported(
        path=graph.path,
        format=format,
        difference=graph.check.difference,
        loading=graph.loading,
        reader=READERS[format],
        checks=(graph.check,),
        notes=graph.notes,
    )


def _with_segmenter(backbone: VitBackbone, config: ExportConfig) -> tuple[VitBackbone, Segmenter]:
    """Give the backbone as a segmenter was fitted to it, and the segmenter."""
    from clearvit.segmentation.segmenter import load_segmenter

    if config.format not in ("onnx", "openvino"):
        raise OptionError(
            f"format='{config.format}' cannot hold a segmenter; use onnx.", "segmenter"
        )
    found = load_segmenter(str(config.segmenter))
    if config.size is not None and backbone.preprocessing.size != found.size:
        height, width = found.size
        raise OptionError(f"the segmenter was fitted at {height}x{width} px; omit size.", "size")
    prepared = found.prepare(backbone)
    if not isinstance(prepared, VitBackbone):
        raise ModelError(
            f"the segmenter in '{config.segmenter}' averages views of every image, which one graph"
            " does not. Fit it with --scale 1, or on a model with a head of --scale 2."
        )
    return prepared, found


def _refuse_options(config: ExportConfig, *names: str) -> None:
    """Refuse options that would be ignored silently."""
    for name in names:
        if getattr(config, name) is not None:
            raise OptionError(f"format='{config.format}' has no option '{name}'; omit it.", name)


def _refuse_other_tokens(
    backbone: VitBackbone, written: Written, checks: tuple[Check, ...]
) -> None:
    failed = [done for done in checks if not done.passed]
    if not failed:
        return
    found = "; ".join(
        f"{done.relative:.1e} of their RMS at {done.size[0]}x{done.size[1]} px" for done in failed
    )
    raise ModelError(
        f"'{backbone.name}' was written to '{written.path}', but {written.reader} computes other"
        f" tokens from it ({found}). Do not use that copy. Something of this backbone is not in its"
        " weights: an edit at run time, or a setting the other library lacks. clearvit.save keeps"
        " all settings."
    )
