"""The model card of a cured model: what it is, what was done to it, how to load it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from clearvit.backbones.demo.demo_weights import HUB_REPOSITORY
from clearvit.backbones.output import FINE_HEAD
from clearvit.backbones.sources.hf.export_hf import kind_of
from clearvit.backbones.sources.snippets import clearvit_code, timm_code
from clearvit.backbones.vit import VitBackbone
from clearvit.cures.config import CureConfig
from clearvit.cures.results.cure_report import CureReport
from clearvit.errors import ModelError
from clearvit.files import written_whole

CARD = "README.md"
LICENSE, HEAD = "## License", "## Fine tokens in one pass"
TAGS = ("image-feature-extraction", "vision-transformer", "registers", "ph-reg", "clearvit")
CITATION = """\
@inproceedings{phreg2025,
  title     = {Vision Transformers with Self-Distilled Registers},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2025},
  note      = {arXiv:2505.21501}
}
"""


def write_card(folder: str | Path, cured: VitBackbone, original: str, config: CureConfig) -> Path:
    """Write README.md beside the saved weights.

    Args:
        folder: Where `clearvit.save` wrote the cured model.
        cured: The model, with the report of its training.
        original: Name of the model that was cured.
        config: How it was cured.
    """
    target = Path(folder) / CARD
    report: CureReport = cured.report
    base = base_model(original)
    registers = f", {report.registers} registers" if report.registers else ""
    named = f"[{base}](https://huggingface.co/{base})" if base else f"`{original}`"
    parts = [
        _front_matter(base),
        f"# {base or original}, cured{registers}\n",
        _what_was_done(original, config, report),
        f"## Before and after\n\n{_table(report)}" if report.before is not None else "",
        _loading(Path(folder).resolve().name, cured),
        f"{LICENSE}\n\nThe weights derive from {named} and stay under its license.\n",
        f"## Citation\n\n```bibtex\n{CITATION}```\n",
    ]
    with written_whole(target) as temporary:
        temporary.write_text("\n".join(part for part in parts if part), "utf-8")
    return target


def add_head_to_card(folder: str | Path, summary: str) -> None:
    """Say in the card that a head for fine tokens lies beside the weights, if there is a card.

    Args:
        folder: Where the card of the cured model lies.
        summary: What the head is and what it brought, without a full stop.
    """
    target = Path(folder) / CARD
    text = target.read_text("utf-8") if target.exists() else ""
    before, license_, after = text.rpartition(LICENSE)
    if not license_ or HEAD in before:
        return
    section = (
        f"{HEAD}\n\n`{FINE_HEAD}` gives patch tokens on a grid twice as fine in the same forward"
        f" pass: {summary}. clearvit loads it with the model and exports both as one ONNX or"
        " OpenVINO graph; timm loads the network without it.\n\n"
    )
    with written_whole(target) as temporary:
        temporary.write_text(f"{before}{section}{license_}{after}", "utf-8")


def result_rows(report: CureReport) -> list[tuple[str, str, str]]:
    """List what was measured on held-out images: name, before, after; empty without such images."""
    if report.before is None or report.after is None or report.class_cosine is None:
        return []
    rows = [
        (
            "cosine distance to the average of the views, held-out images",
            f"{report.before:.4f}",
            f"{report.after:.4f}",
        ),
        (
            "cosine of the class token to that of the original",
            "1.0000",
            f"{report.class_cosine:.4f}",
        ),
    ]
    if report.agreement is not None:
        kept = f"{100 * report.agreement:.0f} %"
        rows.append(("held-out images that its own head gives the same class", "100 %", kept))
    return rows


def trained_parts(config: CureConfig) -> str:
    """Name what was trained."""
    registers = [f"{config.registers} registers"] if config.registers else []
    return ", ".join([*registers, *(p for p in config.unfreeze if p != "registers")])


def base_model(name: str) -> str | None:
    """Find the hub's id of a model that `clearvit.load` knows by this name."""
    source, _, rest = name.partition(":")
    if name == "demo":
        return HUB_REPOSITORY
    if source == "timm" and rest.startswith(("hf-hub:", "hf_hub:")):
        return rest.partition(":")[2]
    if source == "timm" and "@" in rest:
        return None  # a checkpoint file
    if source == "timm" and "." in rest and ":" not in rest:
        return f"timm/{rest}"
    if source == "hf" and rest.count("/") == 1 and rest[0] not in "./~" and not Path(rest).exists():
        return rest.partition("@")[0]
    return None


def _front_matter(base: str | None) -> str:
    lines = ["---", "library_name: timm", "pipeline_tag: image-feature-extraction", "tags:"]
    lines += [f"- {tag}" for tag in TAGS]
    if base is not None:
        lines += [f"base_model: {json.dumps(base)}", "base_model_relation: finetune"]
    return "\n".join([*lines, "---", ""])


def _what_was_done(original: str, config: CureConfig, report: CureReport) -> str:
    size = config.size if isinstance(config.size, tuple) else (config.size, config.size)
    sizes = ", ".join(map(str, config.sizes or ()))
    return (
        f"This is `{original}` after PH-Reg with clearvit: the average of {config.views} shifted"
        " and mirrored views of an image is free of the artifacts of a single view, and the model"
        " was trained to give it in one forward pass. No labels were used.\n\n"
        "| | |\n|---|---|\n"
        f"| trained | {trained_parts(config)} |\n"
        f"| images | {report.images:,} |\n"
        f"| size | {sizes or f'{size[0]} x {size[1]}'} px |\n"
        f"| views | {config.views} |\n"
        f"| epochs | {report.best_epoch} |\n"
    )


def _table(report: CureReport) -> str:
    rows = "".join(f"| {name} | {old} | {new} |\n" for name, old, new in result_rows(report))
    return f"| | before | after |\n|---|---|---|\n{rows}"


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
