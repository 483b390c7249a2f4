"""The lines that load a saved model, to be printed and copied; each runs as it stands."""

from __future__ import annotations

from pathlib import Path

from clearvit.backbones.guarded_timm import was_repaired
from clearvit.backbones.vit import VitBackbone
from clearvit.options import Size

GUARD = "import clearvit.backbones.guarded_timm  # torch and torchvision do not match here\n"


def runnable_here(code: str) -> str:
    """Make a snippet run in this environment too, where torchvision breaks `import timm`.

    Model cards are read elsewhere and do without this line; docs/troubleshooting.md explains it.
    """
    return GUARD + code if was_repaired() else code


def timm_code(folder: str | Path, backbone: VitBackbone) -> str:
    """Load what `save` wrote with timm alone."""
    height, width = backbone.fitting_size()
    name = f"local-dir:{_posix(folder)}"
    head = "embedding = network.forward_head(tokens)  # of the whole image\n"
    return f"""\
import timm
import torch

network = timm.create_model({name!r}, pretrained=True, dynamic_img_size=True)
network.eval()
# Pixels are normalized as timm.data.resolve_model_data_config(network) says.
pixels = torch.zeros(1, 3, {height}, {width})
with torch.no_grad():
    tokens = network.forward_features(pixels)
patches = tokens[:, network.num_prefix_tokens :]  # {_behind(backbone)}
{head if backbone.embedding else ""}"""


def clearvit_code(folder: str | Path) -> str:
    """Load what `save` wrote with clearvit."""
    return f"""\
import clearvit as cv

backbone = cv.load({f"dir:{_posix(folder)}"!r})
"""


def transformers_code(folder: str | Path, backbone: VitBackbone, kind: str, size: Size) -> str:
    """Load what `save_hf` wrote with transformers alone.

    Args:
        folder: Where it is.
        backbone: What was saved.
        kind: Its model type.
        size: The size in pixels of its table of positions.
    """
    path = repr(_posix(folder))
    options = ", add_pooling_layer=False" if kind in ("vit", "deit") else ""
    normed = "  # before the final norm" if kind == "clip_vision_model" else ""
    return f"""\
import torch
from transformers import AutoModel

model = AutoModel.from_pretrained({path}{options}).eval()
# Pixels are normalized by AutoImageProcessor.from_pretrained({path}).
pixels = torch.zeros(1, 3, {size[0]}, {size[1]})
with torch.no_grad():
    tokens = model(pixel_values=pixels).last_hidden_state{normed}
patches = tokens[:, {len(backbone.prefix_names)}:]  # {_behind(backbone)}
"""


def _behind(backbone: VitBackbone) -> str:
    names = backbone.prefix_names
    parts = [f"the {kind} token" for kind in ("class", "distillation") if kind in names]
    if "register" in names:
        parts.append(f"{names.count('register')} registers")
    return f"(1, N, {backbone.width}), behind {' and '.join(parts) or 'nothing'}"


def _posix(folder: str | Path) -> str:
    return Path(folder).as_posix()
