"""The model card of a cured model: what it is, what was done to it, how to load it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clearvit.backbones.demo import HUB_REPOSITORY
from clearvit.backbones.hf_back import kind_of
from clearvit.backbones.loading_code import clearvit_code, timm_code
from clearvit.backbones.preprocessing import Size
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError
from clearvit.files import written_whole

CARD = "README.md"
TAGS = ("image-feature-extraction", "vision-transformer", "registers", "ph-reg", "clearvit")
CITATION = """\
@inproceedings{phreg2025,
  title     = {Vision Transformers with Self-Distilled Registers},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2025},
  note      = {arXiv:2505.21501}
}
"""


@dataclass(frozen=True)
class Treatment:
    """How a model was cured, as its card tells it."""

    base: str  # the name that `clearvit.load` was given
    registers: int  # new ones, m
    unlock: Sequence[str]  # what was trained beside them, in words
    images: int
    size: Size  # (height, width) in pixels
    views: int
    epochs: float


@dataclass(frozen=True)
class Row:
    """One line of the table: a number before and after the cure, as it is to be printed."""

    name: str
    before: str
    after: str


def write_card(
    folder: str | Path, cured: VitBackbone, treatment: Treatment, *, results: Sequence[Row] = ()
) -> Path:
    """Write README.md beside the saved weights.

    Args:
        folder: Where `clearvit.save` wrote the cured model.
        cured: The model.
        treatment: What was done.
        results: What was measured before and after.
    """
    target = Path(folder) / CARD
    parts = [
        _front_matter(treatment),
        f"# {_title(treatment)}\n",
        _what_was_done(treatment),
        _table(results),
        _loading(Path(folder).resolve().name, cured),
        f"## Licence\n\n{_licence(treatment)}\n",
        f"## Citation\n\n```bibtex\n{CITATION}```\n",
    ]
    with written_whole(target) as temporary:
        temporary.write_text("\n".join(part for part in parts if part), "utf-8")
    return target


def loading_code(folder: str | Path, cured: VitBackbone) -> str:
    """Give the lines that load a cured model with timm alone, printed at the end of a cure."""
    return timm_code(folder, cured)


def base_model(name: str) -> str | None:
    """Find the hub's id of a model that `clearvit.load` knows by this name."""
    source, _, rest = name.partition(":")
    if name == "demo":
        return HUB_REPOSITORY
    if source == "timm" and rest.startswith(("hf-hub:", "hf_hub:")):
        return rest.partition(":")[2]
    if source == "timm" and "." in rest and ":" not in rest:
        return f"timm/{rest}"
    if source == "hf" and rest.count("/") == 1 and rest[0] not in "./~" and not Path(rest).exists():
        return rest.partition("@")[0]
    return None


def _front_matter(treatment: Treatment) -> str:
    lines = ["---", "library_name: timm", "pipeline_tag: image-feature-extraction", "tags:"]
    lines += [f"- {tag}" for tag in TAGS]
    base = base_model(treatment.base)
    if base is not None:
        lines += [f"base_model: {json.dumps(base)}", "base_model_relation: finetune"]
    return "\n".join([*lines, "---", ""])


def _title(treatment: Treatment) -> str:
    base = base_model(treatment.base) or treatment.base
    return f"{base}, cured" + (f", {treatment.registers} registers" if treatment.registers else "")


def _what_was_done(treatment: Treatment) -> str:
    height, width = treatment.size
    trained = [*([f"{treatment.registers} registers"] if treatment.registers else [])]
    trained += list(treatment.unlock)
    return (
        f"This is `{treatment.base}` after PH-Reg with clearvit: the average of"
        f" {treatment.views} shifted and mirrored views of a picture is free of the artifacts of a"
        " single view, and the model was trained to give it in one forward pass. No labels were"
        " used.\n\n"
        "| | |\n|---|---|\n"
        f"| trained | {', '.join(trained) or 'nothing'} |\n"
        f"| images | {treatment.images:,} |\n"
        f"| size | {height} x {width} px |\n"
        f"| views | {treatment.views} |\n"
        f"| epochs | {treatment.epochs:g} |\n"
    )


def _table(results: Sequence[Row]) -> str:
    if not results:
        return ""
    rows = "".join(f"| {_cell(r.name)} | {_cell(r.before)} | {_cell(r.after)} |\n" for r in results)
    return f"## Before and after\n\n| | before | after |\n|---|---|---|\n{rows}"


def _loading(folder: str, cured: VitBackbone) -> str:
    text = (
        "## Loading\n\nWith timm alone:\n\n"
        f"```python\n{timm_code(folder, cured)}```\n\n"
        f"With clearvit:\n\n```python\n{clearvit_code(folder)}```\n"
    )
    try:
        kind_of(cured)
    except ModelError:
        return text
    source, target = shlex.quote(f"dir:{folder}"), shlex.quote(f"{folder}-hf")
    command = f"clearvit export {source} --format hf --out {target}"
    return text + f"\nFor transformers, export it once:\n\n```bash\n{command}\n```\n"


def _licence(treatment: Treatment) -> str:
    base = base_model(treatment.base)
    named = f"[{base}](https://huggingface.co/{base})" if base else f"`{treatment.base}`"
    return f"The weights derive from {named} and stay under its licence."


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
