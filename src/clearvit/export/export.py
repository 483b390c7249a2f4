"""`cv.export`: write a model for another program, reload it there and compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.preprocessing import Size
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError, closest
from clearvit.export.native import write_hf, write_timm
from clearvit.export.parity import Check, Written, another_size, compare

Format = Literal["timm", "hf"]
WRITERS: dict[str, Callable[[VitBackbone, Path], Written]] = {"timm": write_timm, "hf": write_hf}


@dataclass(frozen=True)
class Exported:
    """A model that was written, reloaded and found equal.

    Attributes:
        path: The directory or file.
        format: What was asked for.
        difference: Largest |difference| of any value of any token in the checks.
        loading: Python that loads it, ready to run.
        reader: The library that reloaded it for the checks.
        checks: One comparison per size.
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
) -> Exported:
    """Write a backbone in the format of another library, reload it there and compare the tokens.

    The copy is compared with the original on a fixed random batch of two, at the native size and at
    one other size. A difference above 1e-4 of the tokens' root mean square is an error.

    Args:
        backbone: A ViT, cured or not.
        out: Directory to write.
        format: "timm" for `timm.create_model("local-dir:OUT", pretrained=True)`, "hf" for
            `transformers.AutoModel.from_pretrained(OUT)`.
        check: The other size, in pixels, one number or (height, width); else about half the native.

    Raises:
        ModelError: The format is unknown or cannot hold this network, or the copy gives other
            tokens; what was written stays for inspection.
    """
    if format not in WRITERS:
        known = ", ".join(WRITERS)
        raise ModelError(f"'{format}' is no format; use one of {known}.{closest(format, WRITERS)}")
    if not isinstance(backbone, VitBackbone):
        raise ModelError(
            f"'{backbone.name}' is a grid-only backbone; export takes ViTs. Save it with the"
            " library it comes from."
        )
    written = WRITERS[format](backbone, Path(out))
    sizes = [written.size]
    if written.other_sizes:
        sizes.append(another_size(written.size, backbone, check))
    checks = tuple(compare(backbone, written.run, size) for size in sizes)
    _refuse_other_tokens(backbone, written, checks)
    return Exported(
        path=written.path,
        format=format,
        difference=max(done.difference for done in checks),
        loading=written.loading,
        reader=written.reader,
        checks=checks,
        notes=written.notes,
    )


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
