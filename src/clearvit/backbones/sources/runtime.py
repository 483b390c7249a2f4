"""Exported models: a fixed graph that ONNX Runtime or OpenVINO runs, without torch's network."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import Self

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.preprocessing import RULE as PREPROCESSING_RULE
from clearvit.backbones.preprocessing import (
    Preprocessing,
    as_size,
    preprocessing_from,
    round_to_patches,
)
from clearvit.backbones.tokens import Tokens
from clearvit.errors import ModelError, missing_extra
from clearvit.files import check_regular
from clearvit.options import Size
from clearvit.schema import (
    Rule,
    either,
    flag,
    list_of,
    nothing,
    number,
    one_of,
    read_checked,
    table,
    text,
    whole,
)

RuntimeFormat = Literal["onnx", "openvino"]
CONFIG = "runtime.json"
FILES: dict[RuntimeFormat, str] = {"onnx": "model.onnx", "openvino": "model.xml"}
READERS: dict[RuntimeFormat, str] = {"onnx": "ONNX Runtime", "openvino": "OpenVINO"}
LIBRARIES: dict[RuntimeFormat, str] = {"onnx": "onnxruntime", "openvino": "openvino"}
# Names in the graph.
PIXELS, PATCHES, PREFIX, KEPT, CLASSES = "pixels", "patches", "prefix", "kept", "classes"
EMBEDDING = "embedding"
VERSION = 1
# All that OpenVINO may be told by a file: others name directories, plug-ins and log files.
PRECISION = "INFERENCE_PRECISION_HINT"
SETTINGS = {
    "SNIPPETS_MODE": one_of("ENABLE", "DISABLE", "IGNORE_CALLBACK"),
    PRECISION: one_of("f32", "bf16"),
}
_PREFIX_NAMES = ("class", "distillation", "register")
RULES: dict[str, Rule] = {  # of CONFIG
    "version": one_of(VERSION),
    "format": one_of("onnx", "openvino"),
    "source": text,
    "fingerprint": text,
    "size": list_of(whole(1, 65536), 2, 2),
    "patch": list_of(whole(1, 65536), 2, 2),
    "width": whole(1, 65536),
    "prefix_names": list_of(one_of(*_PREFIX_NAMES), 0, 4096),
    "preprocessing": PREPROCESSING_RULE,
    "pruned": flag,
    "batch": either(nothing, whole(1, 65536)),
    "quantize": either(nothing, one_of("int8", "bf16")),
    "macs": either(nothing, number(0, 1e18)),
    "scale": whole(1, 16),
    "settings": table(SETTINGS, optional=SETTINGS),
    "classes": list_of(text, 0, 255),
    "embedding": whole(0, 65536),
}
OPTIONAL = ("pruned", "batch", "quantize", "macs", "scale", "settings", "classes", "embedding")

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class GraphFacts:
    """What clearvit has to know about a graph; a JSON file beside it holds this."""

    format: RuntimeFormat
    source: str  # name of the backbone it was made of
    fingerprint: str  # of that backbone at this size
    size: Size  # (height, width) in pixels
    patch: Size
    width: int
    prefix_names: tuple[str, ...]
    preprocessing: Preprocessing
    pruned: bool = False  # whether the graph has `kept`
    batch: int | None = None  # images per run; None: any number
    quantize: str | None = None
    macs: float | None = None  # of one image
    scale: int = 1  # how many times finer than one cell per patch the grid is
    settings: Mapping[str, str] = field(default_factory=dict)  # the library needs to be right
    classes: tuple[str, ...] = ()  # names of the K classes, if it also gives their probabilities
    embedding: int = 0  # channels of the trained projection, if it also gives that

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what the graph gives, in order."""
        prefix = (PREFIX,) if self.prefix_names else ()
        kept, classes = (KEPT,) if self.pruned else (), (CLASSES,) if self.classes else ()
        embedding = (EMBEDDING,) if self.embedding else ()
        return (PATCHES, *prefix, *kept, *classes, *embedding)

    def to_json(self) -> dict[str, Any]:
        """Give everything as JSON can hold it."""
        return {"version": VERSION, **dataclasses.asdict(self)}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> GraphFacts:
        """Read what `to_json` gave."""
        facts = {key: _tuples(value) for key, value in content.items() if key != "version"}
        return GraphFacts(
            **{**facts, "preprocessing": preprocessing_from(content["preprocessing"])}
        )


class Engine(Protocol):
    """A graph that a library has made ready to run."""

    def __call__(self, pixels: NDArray[np.float32]) -> Arrays:
        """Run normalized pixels (B, 3, height, width); give the outputs by name."""


class RuntimeBackbone(Backbone):
    """An exported model for inference, at one size, on the CPU.

    It runs with as many threads as torch has when it is used.

    Attributes:
        facts: What the graph is and what it was made of.
        folder: Where it lies.
    """

    def __init__(self, folder: Path, facts: GraphFacts, *, name: str) -> None:
        super().__init__(nn.Identity(), facts.preprocessing, name=name)
        self.folder, self.facts = folder, facts
        self.patch, self.width = facts.patch, facts.width
        self.prefix_names, self.embedding = facts.prefix_names, facts.embedding
        self._ready: tuple[int, Engine] | None = None

    def forward(
        self,
        pixels: Tensor,
        *,
        layers: Sequence[int] | None = None,
        norm: bool = True,
        capture: Sequence[str] | str = (),
    ) -> Tokens:
        """Run the graph on normalized pixels (B, 3, height, width), without gradients."""
        why = f"was exported. Ask the model it was made of, '{self.facts.source}'."
        self._refuse_blocks(layers, norm, capture, why)
        self._check_size((pixels.shape[2], pixels.shape[3]))
        whole = self.run(pixels.detach().cpu().float())
        return Tokens(
            patches=whole[PATCHES],
            prefix=whole.get(PREFIX, torch.empty(len(pixels), 0, self.width)),
            grid=self.grid_of(self.facts.size),
            prefix_names=self.prefix_names,
            scale=self.scale,
            kept=whole.get(KEPT),
        )

    def _project(self, pixels: Tensor) -> Tensor:
        return self.run(pixels.detach().cpu().float())[EMBEDDING]

    @property
    def scale(self) -> int:
        """How many times finer than one cell per patch the grid is."""
        return self.facts.scale

    def run(self, pixels: Tensor) -> dict[str, Tensor]:
        """Run any number of images, as many at a time as the graph takes; outputs by name."""
        engine, step = self._engine(), self.facts.batch or len(pixels)
        parts: list[Arrays] = []
        for chunk in pixels.split(step):
            found = engine(_filled(chunk.contiguous().numpy(), self.facts.batch))
            parts.append({name: values[: len(chunk)] for name, values in found.items()})
        whole = {
            name: torch.from_numpy(np.concatenate([part[name] for part in parts]))
            for name in self.facts.outputs
        }
        self._check_shapes(whole, len(pixels))
        return whole

    def _check_shapes(self, whole: Mapping[str, Tensor], images: int) -> None:
        """Refuse a graph that gives something else than the file beside it says."""
        height, width = self.grid_of(self.facts.size)
        cells = height * width
        wanted: dict[str, tuple[int, ...]] = {
            PATCHES: (images, cells, self.width),
            PREFIX: (images, len(self.prefix_names), self.width),
            KEPT: (images, cells),
            CLASSES: (images, len(self.facts.classes), height, width),
            EMBEDDING: (images, self.facts.embedding),
        }
        for name, tensor in whole.items():
            if tuple(tensor.shape) != wanted[name]:
                raise ModelError(
                    f"the graph in '{self.folder}' gives {name} of the shape {tuple(tensor.shape)},"
                    f" but {CONFIG} says {wanted[name]}. Export the model again."
                )

    def _engine(self) -> Engine:
        """Make the graph ready, again whenever the number of threads has changed."""
        threads = torch.get_num_threads()
        if self._ready is None or self._ready[0] != threads:
            make = {"onnx": _onnx_engine, "openvino": _openvino_engine}[self.facts.format]
            path = self.folder / FILES[self.facts.format]
            try:
                check_regular(path)
                self._ready = (threads, make(path, threads, self.facts))
            except Exception as error:  # each library has errors of its own
                reader = READERS[self.facts.format]
                raise ModelError(
                    f"{reader} cannot read '{path}': {str(error).splitlines()[0]}. Export the"
                    f" model again: clearvit export MODEL --format {self.facts.format} --out DIR"
                ) from error
        return self._ready[1]

    def fitting_size(self, size: int | Size | None = None) -> Size:
        """Return the exported size, or say that there is no other."""
        if size is not None:
            self._check_size(round_to_patches(as_size(size), self.patch))
        return self.facts.size

    def resized(self, size: int | Size) -> Self:
        """Return the backbone if this is its size; there is no other."""
        self._check_size(round_to_patches(as_size(size), self.patch))
        return self

    def _check_size(self, size: Size) -> None:
        if size != self.facts.size:
            height, width = self.facts.size
            raise ModelError(
                f"'{self.name}' was exported for {height}x{width} px and runs at no other size"
                f" (asked for {size[0]}x{size[1]}). Use size=({height}, {width}), or export"
                f" '{self.facts.source}' at the size you need."
            )

    @property
    def device(self) -> torch.device:
        """The CPU, always."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """Number format of pixels and tokens."""
        return torch.float32

    def to(self, device: str | torch.device) -> Self:
        """Stay on the CPU; anything else is an error."""
        if torch.device(device).type != "cpu":
            raise ModelError(
                f"'{self.name}' runs on the CPU. For '{device}' load the model it was made of,"
                f" '{self.facts.source}'."
            )
        return self

    def fingerprint(self) -> str:
        """Hash the files of the graph and the preprocessing."""
        digest = hashlib.sha256(repr((self.facts, *self._settings())).encode())
        for path in sorted(self.folder.glob("model.*")):
            with open(path, "rb") as file:
                while piece := file.read(1 << 20):
                    digest.update(piece)
        return digest.hexdigest()


def load_runtime(path: str | Path, format: RuntimeFormat | None = None) -> RuntimeBackbone:
    """Load what `clearvit.export` wrote for ONNX Runtime or OpenVINO.

    Args:
        path: The directory, or the model file in it.
        format: What it has to be; any by default.
    """
    given = Path(path)
    folder = given.parent if given.suffix in (".onnx", ".xml") else given
    facts = _read_facts(folder, format or "onnx")
    if format is not None and facts.format != format:
        raise ModelError(f"'{folder}' was exported for {facts.format}: '{facts.format}:{folder}'.")
    check_libraries(facts.format, f"'{facts.format}:{path}'")
    if not (folder / FILES[facts.format]).is_file():
        raise ModelError(f"'{folder}' has lost its {FILES[facts.format]}; export the model again.")
    return RuntimeBackbone(folder, facts, name=f"{facts.format}:{path}")


def check_libraries(format: RuntimeFormat, needed_for: str, *, writing: bool = False) -> None:
    """Name the pip line for what is missing; only writing needs `onnx` itself."""
    for library in ("onnx", LIBRARIES[format]) if writing else (LIBRARIES[format],):
        if importlib.util.find_spec(library) is None:
            raise missing_extra(library, "runtime", needed_for)


def _read_facts(folder: Path, format: RuntimeFormat) -> GraphFacts:
    path = folder / CONFIG
    if not os.path.lexists(path):
        raise ModelError(
            f"'{folder}' holds no exported model ({CONFIG} is missing). Make one: clearvit export"
            f" MODEL --format {format} --out {folder}"
        )
    content = read_checked(path, RULES, error=ModelError, version="version", optional=OPTIONAL)
    facts = GraphFacts.from_json(content)
    whole_patches = all(s % p == 0 for s, p in zip(facts.size, facts.patch, strict=True))
    if not whole_patches or facts.preprocessing.size != facts.size:
        raise ModelError(f"'{path}' cannot be used: size, patch and preprocessing do not agree.")
    return facts


def _filled(pixels: NDArray[np.float32], batch: int | None) -> NDArray[np.float32]:
    """Fill images up to a fixed batch.

    Not by torch: its threads would go on waiting busily and take the cores from the graph's.
    """
    missing = (batch or len(pixels)) - len(pixels)
    return np.pad(pixels, ((0, missing), *((0, 0),) * 3)) if missing else pixels


def _onnx_engine(path: Path, threads: int, facts: GraphFacts) -> Engine:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4  # errors come as exceptions
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(pixels: NDArray[np.float32]) -> Arrays:
        found = session.run(list(facts.outputs), {PIXELS: pixels})
        return dict(zip(facts.outputs, found, strict=True))

    return run


def _openvino_engine(path: Path, threads: int, facts: GraphFacts) -> Engine:
    import openvino

    # Without the hint newer CPUs compute in half precision, which no parity check would pass.
    core, settings = openvino.Core(), {PRECISION: "f32", **facts.settings}
    if "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        settings[PRECISION] = "f32"  # emulated half precision is many times slower
    settings["INFERENCE_NUM_THREADS"] = str(threads)
    compiled = core.compile_model(str(path), "CPU", settings)

    def run(pixels: NDArray[np.float32]) -> Arrays:
        found = compiled(pixels)
        return {name: np.array(found[name]) for name in facts.outputs}  # its memory is used again

    return run


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
