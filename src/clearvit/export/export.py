"""`cv.export`: write a model for another program, reload it there and compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.preprocessing import Size
from clearvit.backbones.runtime import READERS
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError, closest
from clearvit.export.native import write_hf, write_timm
from clearvit.export.parity import Check, Written, another_size, compare
from clearvit.export.runtime import Quantise, write_runtime

Format = Literal["timm", "hf", "onnx", "openvino"]
FORMATS: tuple[Format, ...] = get_args(Format)
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


def export(
    backbone: Backbone,
    out: str | Path,
    *,
    format: Format = "timm",
    check: int | Size | None = None,
    size: int | Size | None = None,
    batch: int | None = None,
    quantise: Quantise | None = None,
) -> Exported:
    """Write a backbone in the format of another library, reload it there and compare the tokens.

    The copy is compared with the original on a fixed batch of synthetic images. A difference above
    1e-4 of the tokens' root mean square is an error.

    Args:
        backbone: A ViT: raw, cured or, for "onnx" and "openvino", pruned to a fixed number.
        out: Directory to write.
        format: "timm" for `timm.create_model("local-dir:OUT", pretrained=True)`, "hf" for
            `transformers.AutoModel.from_pretrained(OUT)`; "onnx" and "openvino" for graphs of one
            size that ONNX Runtime and OpenVINO run, and `clearvit.load("onnx:OUT")`.
        check: Of timm and hf: the second size of the comparison, in pixels, one number or
            (height, width); else about half the native.
        size: In pixels, one number or (height, width); else that of the backbone.
        batch: Of graphs: images per run, which can be faster; else any number.
        quantise: Of "onnx": "int8" stores matrices in 8 bits and quantises what they meet as it
            comes. The difference is reported, whatever it is.

    Raises:
        ModelError: The format is unknown or cannot hold this network, or the copy gives other
            tokens; what was written for timm or hf stays for inspection, a graph does not.
    """
    if format not in FORMATS:
        known = ", ".join(FORMATS)
        raise ModelError(f"'{format}' is no format; use one of {known}.{closest(format, FORMATS)}")
    if not isinstance(backbone, VitBackbone):
        raise ModelError(
            f"'{backbone.name}' ({type(backbone).__name__}) is no ViT; export takes ViTs. Export"
            " the model it was made of; a grid-only backbone is saved by the library it comes from."
        )
    chosen = backbone if size is None else backbone.resized(size)
    if format == "onnx" or format == "openvino":
        _refuse_options(format, check=check)
        done = write_runtime(chosen, Path(out), format, batch=batch, quantise=quantise)
        reader, checks = READERS[format], (done.check,)
        return _exported(done.path, format, done.loading, reader, checks, done.notes)
    _refuse_options(format, batch=batch, quantise=quantise)
    written = WRITERS[format](chosen, Path(out))
    sizes = [written.size]
    if written.other_sizes:
        sizes.append(another_size(written.size, chosen, check))
    compared = tuple(compare(chosen, written.run, size) for size in sizes)
    _refuse_other_tokens(chosen, written, compared)
    return _exported(written.path, format, written.loading, written.reader, compared, written.notes)


def _exported(
    path: Path,
    format: Format,
    loading: str,
    reader: str,
    checks: tuple[Check, ...],
    notes: tuple[str, ...],
) -> Exported:
    difference = max(done.difference for done in checks)
    return Exported(path, format, difference, loading, reader, checks, notes)


def _refuse_options(format: Format, **options: object) -> None:
    """Refuse what would be ignored without a word."""
    for name, value in options.items():
        if value is not None:
            raise ModelError(f"format='{format}' has no option '{name}'; leave it out.")


def _refuse_other_tokens(
    backbone: VitBackbone, written: Written, checks: tuple[Check, ...]
) -> None:
    failed = [done for done in checks if not done.passed]
    if not failed:
        return
    found = "; ".join(
        f"{done.relative:.1e} of their size at {done.size[0]}x{done.size[1]} px" for done in failed
    )
    raise ModelError(
        f"'{backbone.name}' was written to '{written.path}', but {written.reader} computes other"
        f" tokens from it ({found}). Do not use that copy. Something of this backbone is not in its"
        " weights: an edit at run time, or a setting the other library lacks. clearvit.save keeps"
        " all settings."
    )
