"""`cv.microscope`: one page in which to look at the tokens of images, without a server."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError, StoreError
from clearvit.files import replace_file
from clearvit.images import ImageSource, Skipped, find_images, spread_evenly
from clearvit.images.find import ImageInput
from clearvit.microscopy.config import MicroscopeConfig
from clearvit.microscopy.norm_verdict import interesting_blocks, judge_norms
from clearvit.microscopy.page_data import (
    PageData,
    PageModel,
    Photos,
    add_model,
    begin_page,
    read_photos,
    short_labels,
)
from clearvit.microscopy.page_plan import PagePlan, make_plan
from clearvit.microscopy.sight import block_norms
from clearvit.microscopy.turns import Turn, at_once
from clearvit.options import Size, with_options
from clearvit.progress import Meter, Progress
from clearvit.views.denoised import with_views

BUILT = Path(__file__).with_name("microscope.html")  # made of web/ by `make web`
JUDGED = 8  # images by whose norms the blocks are chosen
GENERATOR = "clearvit microscope"
SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
MARKS = ("<!--clearvit:head-->", "<!--clearvit:data-->")


@dataclass(frozen=True)
class MicroscopeResult:
    """A page that was written."""

    path: Path
    bytes: int
    images: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    left_out: tuple[str, ...]  # what did not fit, in words

    def to_json(self) -> dict[str, Any]:
        """Give the result as plain JSON."""
        return {
            "page": str(self.path),
            "bytes": self.bytes,
            "images": list(self.images),
            "skipped": [asdict(bad) for bad in self.skipped],
            "left_out": list(self.left_out),
        }


@with_options(MicroscopeConfig)
def microscope(
    backbones: Backbone | Sequence[Backbone],
    images: ImageInput,
    *,
    out: str | Path = "microscope.html",
    overwrite: bool = False,
    config: MicroscopeConfig,
    progress: Progress | None = None,
) -> MicroscopeResult:
    """Write one page in which to look at tokens: it needs no network, no server, no other file.

    Point at a patch, and every model shows how similar all other patches are to it, in this image,
    in a second one and in all of them; block by block, with norms, flagged tokens, principal
    components, keys, queries, values and attention. With views the first model is shown a second
    time with its tokens averaged over views, with a scale on a finer grid, with both as both.

    Args:
        backbones: One or several: raw, cured, denoised, fine, pruned.
        images: A folder, a file, a pattern, a PIL image, or a list of files and PIL images.
        out: The .html file.
        overwrite: Replace a file that clearvit did not write.
        config: All options at once, instead of keywords.
        progress: Called with images done and all of them; a bar by default.

    Raises:
        ImageError: None of the images can be read.
        ModelError: There is no model.
    """
    path = Path(out)
    with replace_file(path, overwrite=overwrite) as temporary:
        photos, data = collect_page(backbones, images, config, progress)
        for bad in photos.skipped:
            warnings.warn(f"skipped {bad.name}: {bad.reason}", stacklevel=3)
        text = render_microscope(data)
        temporary.write_text(text, "utf-8", errors="replace")
    return MicroscopeResult(
        path=path,
        bytes=path.stat().st_size,
        images=tuple(source.name for source in photos.sources),
        skipped=photos.skipped,
        left_out=tuple(data.manifest["leftOut"]),
    )


def collect_page(
    backbones: Backbone | Sequence[Backbone],
    images: ImageInput,
    config: MicroscopeConfig,
    progress: Progress | None,
    turn: Turn = at_once,
) -> tuple[Photos, PageData]:
    """Compute all that a page shows.

    Args:
        backbones: The models; with views or a scale the first is added with its tokens from views.
        images: As `microscope` takes them.
        config: What the page holds.
        progress: Called with images done and all of them.
        turn: Runs every batch.
    """
    models = [backbones] if isinstance(backbones, Backbone) else list(backbones)
    if not models:
        raise ModelError("there is no model to look through; give at least one.")
    models += models_with_views(models[0], config)
    photos = read_photos(spread_evenly(find_images(images), config.limit))
    plan = plan_page(models, photos.sources, config, turn)
    if progress:
        progress("microscope", 0, 0, describe_plan(plan, len(photos.sources)))
    count = len(photos.sources)
    title = (
        f"{count} image{'s' * (count != 1)} through {len(models)} model{'s' * (len(models) > 1)}"
    )
    data = begin_page(photos, plan, title)
    meter = Meter(progress, count * len(models), "microscope")
    labels = short_labels([model.name for model in models])
    for model, label, own in zip(models, labels, plan.models, strict=True):
        add_model(data, PageModel(model, label, own), photos, meter.advance, turn)
    return photos, data


def models_with_views(backbone: Backbone, config: MicroscopeConfig) -> list[Backbone]:
    """Give a model with its tokens from views: denoised, fine, or both where both are asked for."""
    scales = {1, config.scale} if config.views is not None else {config.scale}
    several = (
        with_views(backbone, config.views, scale, refine=config.refine) for scale in sorted(scales)
    )
    return [one for one in several if one is not backbone]


def plan_page(
    models: Sequence[Backbone],
    sources: Sequence[ImageSource],
    config: MicroscopeConfig,
    turn: Turn = at_once,
) -> PagePlan:
    """Choose what of each model goes on the page."""
    sizes = [model.fitting_size(config.size) for model in models]
    return make_plan(
        models,
        _slots(models, sources, sizes, config, turn),
        sizes=sizes,
        images=len(sources),
        channels=config.channels,
        megabytes=config.megabytes,
        given=bool(config.layers),
    )


def _slots(
    models: Sequence[Backbone],
    sources: Sequence[ImageSource],
    sizes: Sequence[Size],
    config: MicroscopeConfig,
    turn: Turn,
) -> list[list[int]]:
    """Give the blocks of each model that may be stored; models of one depth have the same."""
    chosen: dict[int, list[int]] = {}
    for model, size in zip(models, sizes, strict=True):
        if not isinstance(model, VitBackbone) or model.depth in chosen:
            continue
        if config.layers:
            asked = model.block_indices(config.layers)
            chosen[model.depth] = [block for block in asked if block < model.depth - 1]
            continue
        norms = block_norms(model, spread_evenly(sources, JUDGED), size, turn)
        chosen[model.depth] = interesting_blocks(judge_norms(norms), model.depth)
    return [
        chosen.get(model.depth, []) if isinstance(model, VitBackbone) else [] for model in models
    ]


def describe_plan(plan: PagePlan, images: int) -> str:
    """Say what the page will hold and about how large it will be."""
    blocks = sorted({block for model in plan.models for block in model.blocks})
    shown = f"blocks {', '.join(map(str, blocks))} and the output" if blocks else "the output"
    text = f"page of about {plan.estimate / 1e6:.1f} MB: {images} images, {shown}"
    if plan.left_out:
        text += f"; left out: {', '.join(plan.left_out[:4])}"
        text += ", …" if len(plan.left_out) > 4 else ""
        text += " (more with a larger --megabytes)"
    return text


def render_microscope(data: PageData) -> str:
    """Fill data into the page as it was built."""
    parts = [_json_script("clearvit-data", data.manifest)]
    for number, chunk in enumerate(data.chunks):
        parts.append(f'<script type="text/plain" id="chunk-{number}">{chunk}</script>')
    return _fill_page(f"Token microscope: {data.manifest['title']}", parts, content_policy())


def render_served(settings: dict[str, Any]) -> str:
    """Give the page that asks its server for data.

    Args:
        settings: What the server holds and allows, as plain JSON.
    """
    policy = f"{content_policy()}; connect-src 'self'".replace("img-src", "img-src 'self'")
    return _fill_page("Token microscope", [_json_script("clearvit-server", settings)], policy)


def _json_script(name: str, content: dict[str, Any]) -> str:
    # "<" cannot end a script that holds none; names of files may hold anything
    text = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


def _fill_page(title: str, parts: Sequence[str], policy: str) -> str:
    head = (
        f'<meta name="generator" content="{GENERATOR}">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{html.escape(title)}</title>"
    )
    return built_page().replace(MARKS[0], head, 1).replace(MARKS[1], "\n".join(parts), 1)


@cache
def built_page() -> str:
    """Read the page as it was built, with its marks."""
    text = BUILT.read_text("utf-8")
    missing = [mark for mark in MARKS if mark not in text]
    if missing:
        raise StoreError(f"'{BUILT}' is damaged ({missing[0]} is missing); install clearvit again.")
    return text


def content_policy() -> str:
    """Allow the one script of the page and nothing from outside."""
    scripts = SCRIPT.findall(built_page())
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline';"
        " img-src data: blob:; form-action 'none'; base-uri 'none'"
    )
