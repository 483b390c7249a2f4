"""OpenCLIP models: the image tower as a timm network, the text tower beside it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from clearvit.backbones.backbone import Backbone
from clearvit.backbones.blueprint import Blueprint, blueprint_of, load_exactly
from clearvit.backbones.grid import GridBackbone, timm_grid
from clearvit.backbones.preprocessing import RESAMPLING, Preprocessing, as_size
from clearvit.backbones.sources.hf.hf_config import exact_ratio
from clearvit.backbones.sources.hf.renaming import (
    Rule,
    expand_blocks,
    from_source,
    layer,
    same,
    shaped,
    unbiased,
)
from clearvit.backbones.sources.hub import check_reachable
from clearvit.backbones.sources.openclip_folder import FOLDER_CONFIG, FOLDER_WEIGHTS, check_folder
from clearvit.backbones.vit import VitBackbone, is_vit
from clearvit.errors import ModelError, closest, missing_extra
from clearvit.options import PositionRule

PICKLES = (".bin", ".ckpt", ".npz", ".pkl", ".pt", ".pth")


def load_openclip(name: str, positions: PositionRule | None = None) -> Backbone:
    """Load a model of OpenCLIP.

    Args:
        name: `ARCH/TAG`, for example `ViT-B-16/openai`, or `ARCH/PATH` with the path of a
            safetensors file, or the path of a folder with open_clip_config.json and safetensors,
            as open_clip saves for the hub. Whether GELU is the quick one, a tag and a folder know;
            with a file the architecture says it (`ViT-B-16-quickgelu`).
        positions: Rule for resizing position embeddings; else OpenCLIP's own.
    """
    try:
        import open_clip
    except ImportError as error:
        raise missing_extra("open_clip", "openclip", f"'openclip:{name}'") from error
    folder = _folder(open_clip, name)
    architecture, tag = (folder, None) if folder else _parsed(open_clip, name)
    chosen = folder is None and open_clip.get_pretrained_cfg(architecture, tag)
    try:
        if chosen and chosen.get("hf_hub"):
            check_reachable(chosen["hf_hub"].rstrip("/"))
        model = open_clip.create_model(
            architecture,
            pretrained=tag,
            force_quick_gelu=bool(chosen and chosen.get("quick_gelu")),
            weights_only=True,
            require_pretrained=True,
        )
    except Exception as error:  # open_clip passes on whatever hub, disk and torch raise
        raise ModelError(
            f"open_clip could not load '{name}': {error}\nWithout a network, put the weights in a"
            f" safetensors file and use 'openclip:{architecture}/PATH', or try the model 'demo'."
        ) from error
    visual, model.visual = model.eval().visual, nn.Identity()  # freed from the text tower
    preprocessing = _preprocessing(visual.preprocess_cfg)
    backbone = _image_tower(visual, preprocessing, f"openclip:{name}", positions)
    backbone.text = OpenClipText(model, architecture)
    return backbone


class OpenClipText:
    """The text tower of an OpenCLIP model.

    Attributes:
        logit_scale: Factor of the cosine similarity of image and text in a logit.
        logit_bias: What SigLIP adds to a logit; None for every other model.
    """

    def __init__(self, model: Any, architecture: str) -> None:
        self.model = model
        self.architecture = architecture
        self.logit_scale = float(model.logit_scale.detach().exp())
        bias = getattr(model, "logit_bias", None)
        self.logit_bias = None if bias is None else float(bias.detach())

    def to(self, device: str | torch.device) -> Self:
        """Move the weights to a device."""
        self.model.to(device)
        return self

    @cached_property
    def tokenizer(self) -> Any:
        """Split text as the model was trained; some tokenizers are downloaded on first use."""
        import open_clip

        try:
            return open_clip.get_tokenizer(self.architecture)
        except Exception as error:  # again whatever hub and disk raise
            raise ModelError(
                f"the tokenizer of '{self.architecture}' cannot be fetched: {error}\nImages can be"
                " used without it; for texts, check the connection."
            ) from error

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Embed texts in the space of the images, (len(texts), D), unit length."""
        device = self.model.logit_scale.device
        with torch.no_grad():
            tokens = self.tokenizer(list(texts)).to(device)
            return self.model.encode_text(tokens, normalize=True)  # type: ignore[no-any-return]


def imagenet_prompts() -> tuple[str, ...]:
    """Give the 80 prompts that CLIP was evaluated with, each with {} for the name."""
    return tuple(prompt("{}") for prompt in _metadata().OPENAI_IMAGENET_TEMPLATES)


def imagenet_names() -> tuple[str, ...]:
    """Name the 1000 classes of ImageNet in the order of their folders, as CLIP's authors do."""
    return tuple(_metadata().IMAGENET_CLASSNAMES)


def _metadata() -> Any:
    try:
        import open_clip
    except ImportError as error:
        raise missing_extra("open_clip", "openclip", "zero-shot classification") from error
    return open_clip


def _folder(open_clip: Any, name: str) -> str | None:
    """Recognize a folder of open_clip's own; return how open_clip calls it."""
    folder = Path(name).expanduser()
    if not (folder / FOLDER_CONFIG).is_file():
        return None
    if not any((folder / weights).is_file() for weights in FOLDER_WEIGHTS):
        raise ModelError(
            f"'{folder}' holds {FOLDER_CONFIG}, but no {FOLDER_WEIGHTS[0]}; pickles are never"
            " loaded. Save the weights with safetensors."
        )
    if not hasattr(open_clip.factory, "LOCAL_DIR_PREFIX"):
        raise ModelError(
            f"open_clip {open_clip.__version__} cannot load the folder '{folder}'. Run: pip install"
            " -U open_clip_torch"
        )
    check_folder(folder)
    return f"local-dir:{folder}"


def _parsed(open_clip: Any, name: str) -> tuple[str, str]:
    """Split a name into an architecture and a tag or file that exist."""
    architecture, _, tag = name.partition("/")
    known = open_clip.list_models()
    if architecture not in known:
        raise ModelError(f"open_clip has no model '{architecture}'.{closest(architecture, known)}")
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    listed = f"there are: {', '.join(tags)}" if tags else "there are none; give a safetensors file"
    if not tag:
        raise ModelError(f"'openclip:{name}' lacks the weights: 'openclip:ARCH/TAG'; {listed}.")
    if tag in tags:
        return architecture, tag
    path = Path(tag).expanduser()
    if path.suffix in PICKLES:
        raise ModelError(
            f"'{path}' may hold pickled code, which clearvit never loads. Convert it:"
            " safetensors.torch.save_file(torch.load(FILE, weights_only=True), 'FILE.safetensors')."
        )
    if path.suffix != ".safetensors":
        raise ModelError(f"'{architecture}' has no weights '{tag}'; {listed}.{closest(tag, tags)}")
    if not path.is_file():
        raise ModelError(f"the file '{path}' does not exist.")
    return architecture, str(path)


def _preprocessing(config: Any) -> Preprocessing:
    interpolation = config["interpolation"]
    size = config["size"]
    return Preprocessing(
        size=as_size(size if isinstance(size, int) else tuple(size)),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        interpolation=interpolation if interpolation in RESAMPLING else "bicubic",
    )


def _image_tower(
    visual: Any, preprocessing: Preprocessing, name: str, positions: PositionRule | None
) -> Backbone:
    if hasattr(visual, "trunk"):
        if not is_vit(visual.trunk):
            return OpenClipGrid(visual, preprocessing, name=name)
        network = _with_head(visual, name)
        blueprint = _trunk_blueprint(network, name)
    elif type(visual).__name__ == "VisionTransformer":
        network, blueprint = _own_vit(visual, name)
    else:
        raise ModelError(
            f"'{name}' has a {type(visual).__name__} as image tower, which is neither a ViT nor a"
            " timm network. Choose a 'ViT-...' or 'convnext_...' architecture."
        )
    rule = positions or "bicubic-antialias"
    return VitBackbone(network, preprocessing, name=name, positions=rule, blueprint=blueprint)


class OpenClipGrid(GridBackbone):
    """A convolutional or hierarchical tower of timm, with its projection to the text space."""

    def __init__(self, visual: Any, preprocessing: Preprocessing, *, name: str) -> None:
        grid = timm_grid(visual.trunk, preprocessing, name=name)
        super().__init__(
            visual,
            preprocessing,
            name=name,
            features=grid._features,
            stride=grid.patch[0],
            width=grid.width,
        )

    def _project(self, pixels: Tensor) -> Tensor:
        return self.network(pixels)  # type: ignore[no-any-return]


# --- timm networks inside open_clip -----------------------------------------------------------


def _with_head(visual: Any, name: str) -> Any:
    """Give the trunk the linear projection of the tower as its own head."""
    trunk = visual.trunk
    layers: dict[str, Any] = dict(visual.head.named_children())
    last = layers.pop("proj", None)
    extra = [key for key in layers if key != "drop"]
    if extra:
        raise ModelError(
            f"'{name}' projects with '{', '.join(extra)}', which timm's ViT cannot hold; only"
            " linear projections can be loaded."
        )
    if last is not None:
        head = nn.Linear(last.in_features, last.out_features)
        bias = torch.zeros(last.out_features) if last.bias is None else last.bias
        head.load_state_dict({"weight": last.weight, "bias": bias})
        trunk.head, trunk.num_classes = head, last.out_features
    return trunk


def _trunk_blueprint(trunk: Any, name: str) -> Blueprint:
    plain = blueprint_of(trunk, name)
    # open_clip changes the pooling after creation, which leaves the place of the norm as it was.
    normed = not isinstance(trunk.fc_norm, nn.Identity)
    option = "use_fc_norm" if type(trunk).__name__ == "Eva" else "fc_norm"
    return Blueprint(plain.architecture, {**plain.arguments, option: normed})


# --- open_clip's own ViT ----------------------------------------------------------------------


def _own_vit(visual: Any, name: str) -> tuple[nn.Module, Blueprint]:
    _check(visual, name)
    block = visual.transformer.resblocks[0]
    width, depth = visual.conv1.out_channels, len(visual.transformer.resblocks)
    pre_norm = isinstance(visual.ln_pre, nn.LayerNorm)
    average = visual.pool_type == "avg"
    after_pool = average and visual.final_ln_after_pool  # the class token does not feel the order
    scaled = not isinstance(block.ls_1, nn.Identity)
    blueprint = Blueprint(
        "vit_base_patch16_clip_224",
        {
            "img_size": list(visual.image_size),
            "patch_size": list(visual.patch_size),
            "embed_dim": width,
            "depth": depth,
            "num_heads": block.attn.num_heads,
            "mlp_ratio": exact_ratio(width, block.mlp.c_fc.out_features),
            "init_values": 1e-5 if scaled else None,
            "pre_norm": pre_norm,
            "fc_norm": after_pool,
            "act_layer": _activation(block.mlp.gelu, name),
            "global_pool": "avg" if average else "token",
            "num_classes": visual.proj.shape[1],
        },
        visual.ln_post.eps,
    )
    rules = tower_rules(width, pre_norm, scaled, "fc_norm" if after_pool else "norm")
    network = blueprint.build()
    load_exactly(network, from_source(visual.state_dict(), expand_blocks(rules, depth)), name)
    return network, blueprint


def tower_rules(width: int, pre_norm: bool, scaled: bool, norm: str) -> list[Rule]:
    """Map the image tower of OpenAI and open_clip."""
    block = "transformer.resblocks.{}"
    patch, scale = [unbiased("patch_embed.proj", "conv1.weight")], []
    if pre_norm:
        patch = [same("patch_embed.proj.weight", "conv1.weight"), *layer("norm_pre", "ln_pre")]
    if scaled:
        scale = [same(f"blocks.{{}}.ls{i}.gamma", f"{block}.ls_{i}.gamma") for i in (1, 2)]
    return [
        *patch,
        shaped("cls_token", "class_embedding", (1, 1, width), (width,)),
        shaped("pos_embed", "positional_embedding", (1, -1, width), (-1, width)),
        *layer("blocks.{}.norm1", f"{block}.ln_1"),
        same("blocks.{}.attn.qkv.weight", f"{block}.attn.in_proj_weight"),
        same("blocks.{}.attn.qkv.bias", f"{block}.attn.in_proj_bias"),
        *layer("blocks.{}.attn.proj", f"{block}.attn.out_proj"),
        *scale,
        *layer("blocks.{}.norm2", f"{block}.ln_2"),
        *layer("blocks.{}.mlp.fc1", f"{block}.mlp.c_fc"),
        *layer("blocks.{}.mlp.fc2", f"{block}.mlp.c_proj"),
        *layer(norm, "ln_post"),
        unbiased("head", "proj", transposed=True),
    ]


def _check(visual: Any, name: str) -> None:
    block = visual.transformer.resblocks[0]
    problem = None
    if visual.attn_pool is not None:
        problem = "pools with attention of its own (CoCa)"
    elif visual.pool_type not in ("tok", "avg"):
        problem = f"pools by '{visual.pool_type}'"
    elif type(block).__name__ != "ResidualAttentionBlock":
        problem = f"has blocks of the kind {type(block).__name__}"
    if problem:
        raise ModelError(f"the image tower of '{name}' {problem}, which timm's ViT cannot hold.")


def _activation(module: nn.Module, name: str) -> str:
    if type(module).__name__ == "QuickGELU":
        return "quick_gelu"
    if isinstance(module, nn.GELU):
        return "gelu_tanh" if module.approximate == "tanh" else "gelu"
    raise ModelError(
        f"'{name}' uses the activation {type(module).__name__}, unknown to timm's ViT."
    )
