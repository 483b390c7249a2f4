"""From a folder of images to shards of tokens.

Batches never cross a shard and a shard is one file, renamed when it is whole. So a run that was
killed continues at the first missing shard and ends with the same bytes as one that was not.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Generator, Sequence
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
from clearvit.files import check_space, write_json, written_whole
from clearvit.images import Batch, ImageSource, Skipped, batches, find_images, listing_of
from clearvit.images.find import ImageInput
from clearvit.options import with_options
from clearvit.precision import autocast
from clearvit.progress import Meter, Progress
from clearvit.runs import FORMAT
from clearvit.shards.config import TokenConfig
from clearvit.shards.plan import INDEX, Plan, claim_tokens
from clearvit.shards.read import TokenStore, is_whole, open_tokens, read_header
from clearvit.views.denoised import DenoisedBackbone, with_views


@dataclass(frozen=True)
class Extraction:
    """One run: what to read, how, and where the shards go."""

    backbone: Backbone
    images: Sequence[ImageSource]
    plan: Plan
    folder: Path
    config: TokenConfig


@dataclass(frozen=True)
class EncodedBatch:
    """Tokens of one batch as they go to disk."""

    names: list[str]
    skipped: list[Skipped]
    tensors: dict[str, Tensor]  # "patches", "prefix", "layer.8.patches", ...


@with_options(TokenConfig)
def save_tokens(
    backbone: Backbone,
    images: ImageInput,
    *,
    out: str | Path,
    config: TokenConfig,
    progress: Progress | None = None,
) -> TokenStore:
    """Write the tokens of every image to a directory, or finish what an earlier run began.

    Args:
        backbone: Makes the tokens.
        images: A folder (with all its subfolders), a file, a glob pattern, or a list of these.
        out: The directory; refused if another model, other images or other options made it.
        config: All options at once, instead of keywords.
        progress: Called with the stage, the images done and all images; a bar by default.

    Returns:
        The finished directory, opened for reading; `.skipped` lists the bad files.
    """
    folder = Path(out)
    backbone = with_views(
        backbone, config.views, config.scale, refine=config.refine, batch=config.batch
    )
    sources = find_images(images)
    plan = make_plan(backbone, sources, config)
    if isinstance(backbone, DenoisedBackbone):
        backbone.check_views(plan.size)
    advice = "Use float16, a smaller --size or fewer --layers, or another disk."
    check_space(folder, _bytes_needed(backbone, plan), advice)
    claim_tokens(folder, plan, overwrite=config.overwrite)
    missing = [n for n in range(plan.shards) if not is_whole(plan.path(folder, n))]
    meter = Meter(progress, len(plan.names), "tokens")
    meter.advance(len(plan.names) - sum(len(plan.names[plan.members(n)]) for n in missing))
    run = Extraction(backbone, sources, plan, folder, config)
    if missing and config.engine == "ray":
        from clearvit.shards.ray_engine import run_on_ray

        run_on_ray(run, missing, meter)
    elif missing:
        write_shards(run, missing, meter)
    _write_index(folder, plan, backbone)
    return open_tokens(folder)


def make_plan(backbone: Backbone, images: Sequence[ImageSource], config: TokenConfig) -> Plan:
    """Decide everything that the bytes of the shards depend on."""
    layers: tuple[int, ...] = ()
    inner = bool(config.layers) or not config.norm
    if inner and backbone.scale > 1 and isinstance(backbone, VitBackbone):
        raise StoreError(
            f"'{backbone.name}' gives its final tokens on a fine grid, and blocks or tokens before"
            " the final norm on its own. Save those from the model without its head."
        )
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
        names=tuple(image.name for image in images),
        listing=listing_of(images),
    )


def write_shards(run: Extraction, numbers: Sequence[int], meter: Meter) -> None:
    """Encode and write some shards; images are read ahead across their borders."""
    plan = run.plan
    wanted = [image for number in numbers for image in run.images[plan.members(number)]]
    with closing(encode(run, wanted)) as encoded:
        for number in numbers:
            count = len(plan.names[plan.members(number)])
            parts = []
            for part in itertools.islice(encoded, -(-count // plan.batch)):
                parts.append(part)
                meter.advance(len(part.names) + len(part.skipped))
            write_shard(plan.path(run.folder, number), parts)


def encode(run: Extraction, images: Sequence[ImageSource]) -> Generator[EncodedBatch, None, None]:
    """Compute tokens batch by batch while the next images are being read."""
    backbone, plan = run.backbone, run.plan
    dtype = getattr(torch, plan.dtype)
    source = batches(
        images,
        lambda image: backbone.preprocessing(image, plan.size),
        size=plan.batch,
        threads=run.config.decoders or (1 if backbone.device.type == "cpu" else 4),
        strict=run.config.strict,
    )
    with closing(source), torch.no_grad():
        for batch in source:
            yield _encode_batch(backbone, batch, plan, dtype)


def _encode_batch(
    backbone: Backbone, batch: Batch[Tensor], plan: Plan, dtype: torch.dtype
) -> EncodedBatch:
    if not batch.items:
        return EncodedBatch([], batch.skipped, {})
    pixels = torch.stack(batch.items).to(backbone.device, backbone.dtype)
    with autocast(backbone.device, backbone.bf16):
        tokens = backbone.forward(pixels, layers=plan.layers or None, norm=plan.norm)
    tensors = {}
    for name, tensor in _flatten(tokens).items():
        _check_range(tensor, dtype, name, batch.names)
        tensors[name] = tensor.to(dtype).cpu()
    return EncodedBatch(batch.names, batch.skipped, tensors)


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


def _flatten(tokens: Tokens) -> dict[str, Tensor]:
    flat = {"patches": tokens.patches, "prefix": tokens.prefix}
    for block, inner in tokens.layers.items():
        flat |= {f"layer.{block}.patches": inner.patches, f"layer.{block}.prefix": inner.prefix}
    return flat


def write_shard(path: Path, parts: Sequence[EncodedBatch]) -> None:
    """Write one shard in one piece; names and bad files travel in its header."""
    full = [part for part in parts if part.tensors]
    keys = full[0].tensors if full else {}
    tensors = {key: torch.cat([part.tensors[key] for part in full]).contiguous() for key in keys}
    header = {
        "names": [name for part in parts for name in part.names],
        "skipped": [[bad.name, bad.reason] for part in parts for bad in part.skipped],
    }
    with written_whole(path) as temporary:
        # one entry only: safetensors does not promise an order among several
        save_file(tensors, temporary, metadata={"clearvit": json.dumps(header)})


def _write_index(out: Path, plan: Plan, backbone: Backbone) -> None:
    """Say where every image ended up, once all shards are there."""
    if (out / INDEX).exists():
        return
    rows, skipped = [], []
    for number in range(plan.shards):
        header = read_header(plan.path(out, number))
        rows += [[name, number, row] for row, name in enumerate(header["names"])]
        skipped += header["skipped"]
    grid = backbone.grid_of(plan.size)
    content = plan.to_json()
    del content["names"], content["listing"]
    content |= {"grid": list(grid), "scale": backbone.scale, "width": backbone.width}
    content["depth"], content["prefix_names"] = backbone.depth, list(backbone.prefix_names)
    write_json(out / INDEX, {**content, "format": FORMAT, "images": rows, "skipped": skipped})


def _bytes_needed(backbone: Backbone, plan: Plan) -> int:
    height, width = backbone.grid_of(plan.size)
    tokens = (height * width + len(backbone.prefix_names)) * (1 + len(plan.layers))
    return len(plan.names) * tokens * backbone.width * (2 if plan.dtype == "float16" else 4)
