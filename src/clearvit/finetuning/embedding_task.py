"""A network and its projection as the training loop takes them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError
from clearvit.finetuning.config import FinetuneConfig
from clearvit.finetuning.labelled_images import LabelledImages
from clearvit.finetuning.learned_whitening import load_projection
from clearvit.finetuning.metric_losses import Distillation, EmbeddingLoss, PlaceTriplets
from clearvit.finetuning.place_images import PlaceImages
from clearvit.options import Size
from clearvit.precision import autocast, uses_bf16
from clearvit.progress import Meter
from clearvit.pruning.training.augmentation import random_crop
from clearvit.training.held_out import read_large_enough
from clearvit.training.low_rank import KEPT, add_factors, is_factor
from clearvit.training.order import seeded_generator

RATES = {"low-rank": 1e-4}  # learning rates by what trains; of whole matrices WHOLE
WHOLE, HEAD_RATE = 1e-5, 1e-4  # HEAD_RATE is that of the projection
LOSS_RATE = 10.0  # of the loss's own parameters, relative to the network's
EVALUATED = 8  # images of a forward pass
Images = LabelledImages | PlaceImages


@dataclass(frozen=True)
class Material:
    """What all trainings of a run share.

    Attributes:
        images: The images, what belongs together, and how it is judged.
        config: All options.
        size: (height, width) in pixels.
        targets: Descriptors of the teacher, (N, D), with the loss "distill".
    """

    images: Images
    config: FinetuneConfig
    size: Size
    targets: Tensor | None = None

    def read(self, number: int, patch: Size) -> Any:
        """Decode an image."""
        return read_large_enough(self.images.sources[number], patch)


class Embedder(nn.Module):
    """A backbone with a loss on its embeddings."""

    def __init__(self, backbone: VitBackbone, loss: nn.Module) -> None:
        super().__init__()
        self.network, self.backbone, self.loss = backbone.network, backbone, loss

    def forward(self, batch: tuple[Tensor, Tensor, int]) -> dict[str, Tensor]:
        """Compute "loss" of pixels (B, 3, height, width) and what the loss knows of them."""
        pixels, labels, seed = batch
        return {"loss": self.loss(describe(self.backbone, pixels), labels, seed)}


def describe(backbone: VitBackbone, pixels: Tensor, *, pooled: bool = False) -> Tensor:
    """Give what an index compares: the embedding, else the class token, else the mean patch.

    With `pooled`, give what enters the head of the network.
    """
    tokens = backbone.forward(pixels)
    if pooled or backbone.embedding or backbone.text is not None:
        whole = torch.cat([tokens.prefix, tokens.patches], 1)
        found: Tensor = backbone.network.forward_head(whole, pre_logits=pooled)
        return found
    return tokens.patches.mean(1) if tokens.cls is None else tokens.cls


def pools_class_token(backbone: VitBackbone) -> bool:
    """Tell whether the class token is what enters the head of the network, as it is."""
    network: Any = backbone.network
    plain = not backbone.embedding and backbone.text is None
    identity = isinstance(getattr(network, "fc_norm", None), nn.Identity)
    one = "distillation" not in backbone.prefix_names and "class" in backbone.prefix_names
    return plain and identity and one and getattr(network, "global_pool", "") == "token"


@torch.no_grad()
def describe_images(
    backbone: VitBackbone,
    material: Material,
    numbers: Sequence[int],
    *,
    pooled: bool = False,
    meter: Meter | None = None,
) -> Tensor:
    """Describe some whole images, (len(numbers), D) float32 on the CPU."""
    half = uses_bf16(backbone.device, material.config.precision)
    found = []
    for start in range(0, len(numbers), EVALUATED):
        images = [material.read(i, backbone.patch) for i in numbers[start : start + EVALUATED]]
        pixels = torch.stack([backbone.preprocessing(one, material.size) for one in images])
        with autocast(backbone.device, half):
            vectors = describe(backbone, pixels.to(backbone.device), pooled=pooled)
        found.append(vectors.float().cpu())
        if meter is not None:
            meter.advance(len(images))
    return torch.cat(found)


class MetricTask:
    """What the training loop asks for; all randomness is a function of step and image."""

    def __init__(self, student: VitBackbone, material: Material, held: Sequence[int]) -> None:
        self.student, self.material, self.held = student, material, list(held)
        self.module: nn.Module = Embedder(student, _make_loss(student, material)).to(student.device)

    def param_groups(self) -> list[dict[str, Any]]:
        """Group the network's parameters, those of the projection, and those of the loss."""
        assert isinstance(self.module, Embedder)
        config = self.material.config
        rate = config.lr or RATES.get(config.unfreeze, WHOLE)
        groups: list[dict[str, Any]] = []
        for is_head, lr in ((False, rate), (True, config.lr or HEAD_RATE)):
            named = self.student.network.named_parameters()
            own = [p for n, p in named if p.requires_grad and n.startswith("head.") == is_head]
            if own:
                groups.append({"params": own, "lr": lr, "weight_decay": config.weight_decay})
        others = list(self.module.loss.parameters())
        if others:
            groups.append({"params": others, "lr": LOSS_RATE * rate, "weight_decay": 0.0})
        return groups

    def load_batch(self, images: Sequence[int], step: int) -> tuple[Tensor, Tensor, int]:
        """Load training images, cropped and mirrored at random."""
        material, pixels = self.material, []
        for place, image in enumerate(images):
            rng = seeded_generator(material.config.seed + 1, step * 10_000 + place)
            crop = random_crop(material.read(image, self.student.patch), rng)
            pixels.append(self.student.preprocessing(crop, material.size))
        known = material.images.batch_labels(images)
        if material.targets is not None:
            known = material.targets[list(images)]
        device = self.student.device
        seed = material.config.seed + step
        return torch.stack(pixels).to(device), known.to(device), seed

    def evaluate(self, module: nn.Module) -> dict[str, float]:
        """Search the held-out groups; the row of each is kept, for an honest choice later."""
        if not self.held:
            return {}
        images = self.material.images
        vectors = describe_images(self.student, self.material, images.members(self.held))
        return score_row(images.judge(vectors, self.held), self.held, images.metrics)

    def image_names(self, images: Sequence[int]) -> list[str]:
        """Name some training images."""
        return [self.material.images.sources[i].name for i in images]


def score_row(found: Tensor, groups: Sequence[int], metrics: Sequence[str]) -> dict[str, float]:
    """Name the scores of some groups, (G, 2): their means, and each group's own."""
    row = {"score": float(found.mean())}
    row |= {name: float(found[:, i].mean()) for i, name in enumerate(metrics)}
    for group, values in zip(groups, found.tolist(), strict=True):
        row |= {f"{name} of {group}": v for name, v in zip(metrics, values, strict=True)}
    return row


def make_student(
    backbone: VitBackbone, config: FinetuneConfig, projection: Tensor | None
) -> VitBackbone:
    """Copy a backbone, add its projection, and let the chosen weights train."""
    network, blueprint = copy.deepcopy(backbone.network), backbone.blueprint
    if projection is not None:
        channels = len(projection)
        network.reset_classifier(channels)
        load_projection(projection, network.head)
        network.head.to(next(network.parameters()))
        if blueprint is not None:
            arguments = {**blueprint.arguments, "num_classes": channels}
            blueprint = replace(blueprint, arguments=arguments)
    student = backbone.around(network, blueprint)
    if projection is not None:
        student.embedding, student.text = len(projection), None
    _unfreeze(student, config)
    student.grad_checkpointing = config.grad_checkpointing
    return student


def check_projection(backbone: VitBackbone) -> None:
    """Refuse networks whose head is not one linear layer behind one vector."""
    network = backbone.network
    if getattr(network, "head_dist", None) is not None or not hasattr(network, "reset_classifier"):
        raise ModelError(
            f"'{backbone.name}' has no single linear head that a projection could take the place"
            " of; use --dimension 0 with --unfreeze low-rank."
        )


def _unfreeze(student: VitBackbone, config: FinetuneConfig) -> None:
    names = {name for name, _ in student.network.named_parameters()}
    wanted: set[str] = set()
    if config.unfreeze == "low-rank":
        add_factors(student, config.rank, config.seed)
        wanted = {n for n, _ in student.network.named_parameters() if is_factor(n)}
        wanted |= {name for name in names if KEPT.match(name)}
    elif config.unfreeze == "all":
        wanted = {name for name in names if not name.startswith("head")}
    elif config.unfreeze != "none":
        first = max(0, student.depth - int(config.unfreeze.removeprefix("last-")))
        blocks = tuple(f"blocks.{index}." for index in range(first, student.depth))
        wanted = {name for name in names if name.startswith((*blocks, "norm.", "fc_norm."))}
    if student.embedding:
        wanted |= {name for name in names if name.startswith("head.")}
    for name, parameter in student.network.named_parameters():
        parameter.requires_grad_(name in wanted)


def _make_loss(student: VitBackbone, material: Material) -> nn.Module:
    config, images = material.config, material.images
    if material.targets is not None:
        return Distillation()
    if isinstance(images, PlaceImages):
        return PlaceTriplets(config.negatives)
    width = student.embedding or student.width
    return EmbeddingLoss(config.loss or "margin", images.groups, width)
