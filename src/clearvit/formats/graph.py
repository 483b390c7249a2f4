"""A backbone as one graph of fixed size: normalized pixels in, final tokens out."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from clearvit.backbones.sources.runtime import EMBEDDING, KEPT, PIXELS, PREFIX, GraphFacts
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import missing_extra
from clearvit.options import Size

OPSET = 17  # the first with one operator for a layer norm; ONNX Runtime 1.13, OpenVINO 2022.3


class Graph(nn.Module):
    """The forward pass of a backbone at one size, with the outputs that `facts` names.

    A head, if there is one, maps the patch tokens (B, N, C) to class maps (B, K, H, W).
    """

    def __init__(
        self, backbone: VitBackbone, facts: GraphFacts, head: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.original, self.head = backbone, head
        self.backbone, self.outputs = fix_positions(backbone, facts.size), facts.outputs
        self.network = backbone.network  # registered here, so that weights are known as such
        self.predictors = getattr(backbone, "predictors", None)
        self.fine = backbone.fine

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Run normalized pixels (B, 3, height, width)."""
        tokens = self.backbone.forward(pixels)
        optional = {PREFIX: tokens.prefix, KEPT: tokens.kept}
        found = [optional[name] for name in self.outputs if name in optional]
        found += [] if self.head is None else [self.head(tokens.patches)]
        if EMBEDDING in self.outputs:
            found.append(self.network.forward_head(torch.cat([tokens.prefix, tokens.patches], 1)))
        return (tokens.patches, *(tensor for tensor in found if tensor is not None))


def fix_positions(backbone: VitBackbone, size: Size) -> VitBackbone:
    """Return a copy whose prefix tokens and positions are constants for one size.

    What `add_positions` makes of empty patches is just that: prefix tokens and positions.
    """
    fixed = copy.copy(backbone)
    inner = fixed
    for name in ("dense", "plain"):  # pruned models and CLIP heads embed with what they wrap
        if isinstance(getattr(fixed, name, None), VitBackbone):
            inner = copy.copy(getattr(fixed, name))
            setattr(fixed, name, inner)
    grid = (size[0] // backbone.patch[0], size[1] // backbone.patch[1])
    prefix, channels = len(backbone.prefix_names), inner.network.embed_dim
    with torch.no_grad():
        table = inner.add_positions(torch.zeros(1, grid[0] * grid[1], channels), grid)

    def add_positions(patches: Tensor, _: tuple[int, int]) -> Tensor:
        patches = patches + table[:, prefix:]
        if not prefix:
            return patches
        return torch.cat([table[:, :prefix].expand(patches.shape[0], -1, -1), patches], dim=1)

    inner.add_positions = add_positions  # type: ignore[assignment, method-assign]
    return fixed


def to_float32(backbone: VitBackbone) -> VitBackbone:
    """Return the backbone on the CPU in float32, a copy if it is elsewhere or in half precision."""
    if backbone.device.type == "cpu" and backbone.dtype is torch.float32:
        return backbone
    other = copy.deepcopy(backbone)
    for part in (other.network, getattr(other, "predictors", None), other.fine):
        if part is not None:
            part.to("cpu", torch.float32)
    return other


def macs_of(backbone: VitBackbone, size: Size) -> float:
    """Count the multiply-accumulates of one image with torch's counter."""
    unfused = sdpa_kernel(SDPBackend.MATH)  # the counter does not know fused attention on a CPU
    with torch.no_grad(), unfused, FlopCounterMode(display=False) as counter:
        backbone.forward(torch.zeros(1, 3, *size))
    return float(counter.get_total_flops()) / 2


def write_by_tracing(graph: Graph, facts: GraphFacts, path: Path) -> None:
    """Write the backbone as an ONNX file by following one pass: fast, and wrong for some networks.

    The tracer confuses some reshapes once the number of images is open, so what it writes has to be
    checked. It follows hooks, top-k and gathers as they run.
    """
    _export(
        graph,
        facts,
        path,
        dynamic_axes=None if facts.batch else {n: {0: "batch"} for n in (PIXELS, *facts.outputs)},
        opset_version=OPSET,
        dynamo=False,
    )


def write_by_export(graph: Graph, facts: GraphFacts, path: Path) -> None:
    """Write the backbone as an ONNX file by `torch.export`: slower, and right for more networks."""
    if importlib.util.find_spec("onnxscript") is None:
        raise missing_extra("onnxscript", "runtime", f"export of '{graph.original.name}'")
    batch = torch.export.Dim("batch", min=1)
    _export(
        graph,
        facts,
        path,
        dynamic_shapes=None if facts.batch else ({0: batch},),
        opset_version=OPSET + 1,
        dynamo=True,
        external_data=False,
        verbose=False,
    )


def _export(graph: Graph, facts: GraphFacts, path: Path, **options: Any) -> None:
    pixels = torch.randn(facts.batch or 2, 3, *facts.size)
    names: dict[str, Any] = {"input_names": [PIXELS], "output_names": list(facts.outputs)}
    with torch.no_grad(), quiet():
        torch.onnx.export(graph.eval(), (pixels,), str(path), **names, **options)


EXPORTERS: tuple[Callable[[Graph, GraphFacts, Path], None], ...] = (
    write_by_tracing,
    write_by_export,
)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the log lines of tracing and quantization off the console."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
