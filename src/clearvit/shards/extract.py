"""From a folder of images to shards of tokens.

Batches never cross a shard and a shard is one file, renamed when it is whole. So a run that was
killed continues at the first missing shard and ends with the same bytes as one that was not.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.tokens import Tokens
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import StoreError
from clearvit.files import write_json, written_whole
from clearvit.images import Batch, Picture, Skipped, batches, find_images
from clearvit.progress import Progress
from clearvit.shards.plan import (
    FORMAT,
    INDEX,
    Plan,
    TokenConfig,
    check_space,
    claim,
    listing_of,
    read_json,
)
from clearvit.shards.read import TokenStore, open_tokens, read_header

Source = str | Path | Iterable[object]
"""Called with the number of images that are done and of all images."""
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Encoded:
    """Tokens of one batch as they go to disk."""

    names: list[str]
    skipped: list[Skipped]
    tensors: dict[str, Tensor]  # "patches", "prefix", "layer.8.patches", ...


def save_tokens(
    backbone: Backbone,
    images: Source,
    *,
    out: str | Path,
    config: TokenConfig | None = None,
    progress: Progress | None = None,
) -> TokenStore:
    """Write the tokens of every image to a directory, or finish what an earlier run began.

    Args:
        backbone: Makes the tokens.
        images: A folder (with all its subfolders), a file, a glob pattern, or a list of these.
        out: The directory; refused if another model, other images or other options made it.
        config: Size, layers, precision, batch, and what to do with bad files.
        progress: Told how many images are done, of how many, for a progress bar.

    Returns:
        The finished directory, opened for reading; `.skipped` lists the bad files.
    """
    config = config or TokenConfig()
    folder = Path(out)
    pictures = find_images(images)
    plan = make_plan(backbone, pictures, config)
    check_space(folder, _bytes_needed(backbone, plan))
    claim(folder, plan, overwrite=config.overwrite)
    missing = [n for n in range(plan.shards) if not plan.path(folder, n).exists()]
    report = _counter(progress, len(plan.names))
    report(len(plan.names) - sum(len(plan.names[plan.members(n)]) for n in missing))
    if missing and config.engine == "ray":
        from clearvit.shards.ray_engine import run_on_ray

        run_on_ray(backbone, pictures, plan, missing, folder, config, report)
    elif missing:
        write_shards(backbone, pictures, plan, missing, folder, config, report)
    _write_index(folder, plan, backbone)
    return open_tokens(folder)


def _counter(progress: Progress | None, total: int) -> Advance:
    """Count images for a progress bar."""
    count = 0

    def advance(images: int) -> None:
        nonlocal count
        count += images
        if progress:
            progress(count, total)

    return advance


def make_plan(backbone: Backbone, pictures: Sequence[Picture], config: TokenConfig) -> Plan:
    """Decide everything that the bytes of the shards depend on."""
    if config.batch < 1 or config.shard < 1:
        raise StoreError("batch and shard must be at least 1.")
    layers: tuple[int, ...] = ()
    if config.layers:
        if not isinstance(backbone, VitBackbone):
            raise StoreError(f"'{backbone.name}' has no blocks to choose layers from.")
        layers = tuple(backbone.block_indices(config.layers))
    return Plan(
        model=backbone.name,
        fingerprint=backbone.fingerprint(),
        size=backbone.fitting_size(config.size),
        layers=layers,
        norm=config.norm,
        dtype=config.dtype,
        batch=config.batch,
        shard=-(-config.shard // config.batch) * config.batch,
        names=tuple(picture.name for picture in pictures),
        listing=listing_of(pictures),
    )


def write_shards(
    backbone: Backbone,
    pictures: Sequence[Picture],
    plan: Plan,
    numbers: Sequence[int],
    out: Path,
    config: TokenConfig,
    report: Advance,
) -> None:
    """Encode and write some shards; images are read ahead across their borders."""
    wanted = [pictures[i] for n in numbers for i in range(len(pictures))[plan.members(n)]]
    with closing(encode(backbone, wanted, plan, config)) as encoded:
        for number in numbers:
            count = len(plan.names[plan.members(number)])
            parts = []
            for part in itertools.islice(encoded, -(-count // plan.batch)):
                parts.append(part)
                report(len(part.names) + len(part.skipped))
            write_shard(plan.path(out, number), parts)


def encode(
    backbone: Backbone, pictures: Sequence[Picture], plan: Plan, config: TokenConfig
) -> Generator[Encoded, None, None]:
    """Compute tokens batch by batch while the next images are being read."""
    dtype = getattr(torch, plan.dtype)
    size = plan.size
    decoders = config.decoders or (1 if backbone.device.type == "cpu" else 4)
    source = batches(
        pictures,
        lambda image: backbone.preprocessing(image, size),
        size=plan.batch,
        threads=decoders,
        strict=config.strict,
    )
    with closing(source), torch.no_grad():
        for batch in source:
            yield _encode_batch(backbone, batch, plan, dtype)


def _encode_batch(
    backbone: Backbone, batch: Batch[Tensor], plan: Plan, dtype: torch.dtype
) -> Encoded:
    if not batch.items:
        return Encoded([], batch.skipped, {})
    pixels = torch.stack(batch.items).to(backbone.device, backbone.dtype)
    tokens = backbone.forward(pixels, layers=plan.layers or None, norm=plan.norm)
    tensors = {}
    for name, tensor in _flat(tokens).items():
        _check_range(tensor, dtype, name, batch.names)
        tensors[name] = tensor.to(dtype).cpu()
    return Encoded(batch.names, batch.skipped, tensors)


def _check_range(tensor: Tensor, dtype: torch.dtype, name: str, images: Sequence[str]) -> None:
    """Refuse NaN, infinity, and what the number format of the files cannot hold."""
    if not tensor.numel():
        return
    limit = torch.finfo(dtype).max
    low, high = tensor.aminmax()  # one fast pass; NaN makes both comparisons false
    if low >= -limit and high <= limit:
        return
    fits = (tensor.abs() <= limit).flatten(1).all(1)
    raise StoreError(
        f"'{images[int(fits.int().argmin())]}' gives {name} that {str(dtype)[6:]} cannot hold (NaN"
        " or too large). Try --dtype float32; if it persists, the weights are damaged."
    )


def _flat(tokens: Tokens) -> dict[str, Tensor]:
    flat = {"patches": tokens.patches, "prefix": tokens.prefix}
    for block, inner in tokens.layers.items():
        flat |= {f"layer.{block}.patches": inner.patches, f"layer.{block}.prefix": inner.prefix}
    return flat


def write_shard(path: Path, parts: Sequence[Encoded]) -> None:
    """Write one shard in one piece; names and bad files travel in its header."""
    full = [part for part in parts if part.tensors]
    keys = full[0].tensors if full else {}
    tensors = {key: torch.cat([part.tensors[key] for part in full]).contiguous() for key in keys}
    header = {
        "names": [name for part in parts for name in part.names],
        "skipped": [[bad.name, bad.reason] for part in parts for bad in part.skipped],
    }
    try:
        with written_whole(path) as temporary:
            # one entry only: safetensors does not promise an order among several
            save_file(tensors, temporary, metadata={"clearvit": json.dumps(header)})
    except OSError as error:
        raise StoreError(
            f"cannot write '{path}': {error}. Nothing that was written before is lost; free some"
            " space and run the same command again."
        ) from error


def _write_index(out: Path, plan: Plan, backbone: Backbone) -> None:
    """Say where every image ended up, once all shards are there."""
    if (out / INDEX).exists() and read_json(out / INDEX).get("format") == FORMAT:
        return
    rows, skipped = [], []
    for number in range(plan.shards):
        header = read_header(plan.path(out, number))
        rows += [[name, number, row] for row, name in enumerate(header["names"])]
        skipped += header["skipped"]
    grid = [s // p for s, p in zip(plan.size, backbone.patch, strict=True)]
    content = plan.to_json()
    del content["names"], content["listing"]
    content |= {"grid": grid, "width": backbone.width, "depth": backbone.depth}
    content["prefix_names"] = list(backbone.prefix_names)
    write_json(out / INDEX, {**content, "images": rows, "skipped": skipped})


def _bytes_needed(backbone: Backbone, plan: Plan) -> int:
    height, width = (s // p for s, p in zip(plan.size, backbone.patch, strict=True))
    tokens = (height * width + len(backbone.prefix_names)) * (1 + len(plan.layers))
    return len(plan.names) * tokens * backbone.width * (2 if plan.dtype == "float16" else 4)
