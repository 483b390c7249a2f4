"""High-norm artifacts that the network's own weights write."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearvit.artifacts.outliers import MIN_RATIO
from clearvit.backbones.backbone import Backbone, Images
from clearvit.backbones.vit import VitBackbone
from clearvit.errors import ModelError
from clearvit.options import Size
from clearvit.testing.planted import RELATIVE_NORM, Planted

# Whole-patch rolls of an image, (rows, columns): artifacts must move when the content does.
ROLLS = ((0, 0), (1, 2), (2, -1), (-1, -2), (-2, 1), (2, 2), (-2, -2), (-1, 1))
ACTIVATION = 4.0  # at a typical artifact: in the linear part of a GELU
RIDGE = 1e-3  # of the mean variance, so that a few images suffice


def wired(
    backbone: Backbone, images: Images, fraction: float = 0.02, *, block: int | None = None
) -> Planted:
    """Rewire one hidden unit so that it writes high-norm artifacts; the original is left as it was.

    Real ones arise like this: a few units fire at some patches and write a high-norm vector
    there. The unit responds to the direction in which a patch changes most when the image is
    shifted, so the positions differ in every view. It replaces the least influential unit of its
    block, so what is learnt or moved elsewhere gives the original back: the tokens of `backbone`
    are the truth. `clearvit.testing.planted` lays artifacts over the tokens instead, where no
    weight can take them off again.

    Args:
        backbone: A ViT whose MLPs are two linear layers around a GELU.
        images: A few dozen images to find the direction and the threshold on.
        fraction: Fraction of their patches at which the unit fires, in (0, 0.5].
        block: Where the unit is, from 0; the middle block by default.

    Returns:
        The backbone and `mask(images, size=None)`, which marks the patches whose norm after that
        block the unit has raised by the factor from which on `clearvit.artifacts` speaks of an
        artifact (1.3), compared with the original model: the truth, not a detection. (B, N) bool.
    """
    if not isinstance(backbone, VitBackbone):
        raise ModelError(f"'{backbone.name}' is a grid-only backbone; artifacts need a ViT.")
    if not 0 < fraction <= 0.5:
        raise ModelError(f"fraction is {fraction}; use a fraction in (0, 0.5].")
    index = backbone.depth // 2 if block is None else backbone.block_indices([block])[0]
    network = copy.deepcopy(backbone.network)
    layers = _layers(backbone.name, network.blocks[index])
    unit = _rewire_unit(layers, *_collect_inputs(backbone, images, index), fraction)
    changed = backbone.around(network, backbone.blueprint)
    changed.name = f"{backbone.name} + block {index} unit {unit}"

    def mask(images: Images, *, size: int | Size | None = None) -> Tensor:
        with torch.no_grad():
            parts = [
                _norms(changed, pixels, index) >= MIN_RATIO * _norms(backbone, pixels, index)
                for pixels in changed.pixels(images, size=size)
            ]
        return torch.cat(parts)

    return Planted(changed, mask)


def _rewire_unit(
    layers: tuple[nn.Linear, nn.Linear, Tensor], inputs: Tensor, tokens: Tensor, fraction: float
) -> int:
    """Make the least influential unit write artifacts at a fraction of the patches; its number."""
    first, second, scale = layers
    direction = _shift_direction(inputs)
    responses = inputs.flatten(0, -2) @ direction
    threshold = responses.quantile(1 - fraction)
    slope = ACTIVATION / (responses[responses > threshold] - threshold).mean()
    with torch.no_grad():
        unit = int(second.weight.norm(dim=0).argmin())
        first.weight[unit], first.bias[unit] = slope * direction, -slope * threshold
        written = F.normalize(tokens.mean(0), dim=0) * RELATIVE_NORM["high-norm"] / ACTIVATION
        second.weight[:, unit] = written * tokens.norm(dim=1).median() / scale
    return unit


def _layers(name: str, block: nn.Module) -> tuple[nn.Linear, nn.Linear, Tensor]:
    """Both layers of a block's MLP and what its output is multiplied with."""
    mlp = getattr(block, "mlp", None)
    first, second = getattr(mlp, "fc1", None), getattr(mlp, "fc2", None)
    gated = ModelError(f"the MLPs of '{name}' are gated; take a ViT with two linear layers.")
    if not isinstance(first, nn.Linear) or not isinstance(second, nn.Linear):
        raise gated
    if first.out_features != second.in_features or first.bias is None:
        raise gated
    scale = getattr(getattr(block, "ls2", None), "gamma", None)
    return first, second, torch.tensor(1.0) if scale is None else scale.detach()


def _collect_inputs(backbone: VitBackbone, images: Images, index: int) -> tuple[Tensor, Tensor]:
    """Patches as the MLP gets them in every roll, (V, ..., C), and as they leave the block."""
    inputs: list[list[Tensor]] = [[] for _ in ROLLS]
    tokens: list[Tensor] = []
    caught: list[Tensor] = []
    prefix = len(backbone.prefix_names)
    mlp = backbone.network.blocks[index].mlp
    hook = mlp.register_forward_pre_hook(lambda _, values: caught.append(values[0][:, prefix:]))
    try:
        with torch.no_grad():
            for pixels in backbone.pixels(images):
                for views, roll in zip(inputs, ROLLS, strict=True):
                    by = [n * p for n, p in zip(roll, backbone.patch, strict=True)]
                    seen = backbone.forward(pixels.roll(by, (2, 3)), layers=[index], norm=False)
                    back = caught.pop().unflatten(1, seen.grid).roll([-n for n in roll], (1, 2))
                    views.append(back.flatten(0, 2))
                    if roll == (0, 0):
                        tokens.append(seen.layers[index].patches.flatten(0, 1))
    finally:
        hook.remove()
    return torch.stack([torch.cat(views) for views in inputs]), torch.cat(tokens)


def _shift_direction(inputs: Tensor) -> Tensor:
    """Direction in which patches differ most between views for how much they differ at all, (C,).

    Args:
        inputs: The same patches in V views, (V, P, C).
    """
    total = torch.cov(inputs.flatten(0, 1).T)
    between = torch.cov((inputs - inputs.mean(0)).flatten(0, 1).T)
    ridge = RIDGE * total.diagonal().mean() * torch.eye(len(total)).to(total)
    whiten = torch.linalg.inv(torch.linalg.cholesky(total + ridge))
    _, vectors = torch.linalg.eigh(whiten @ between @ whiten.T)
    direction: Tensor = whiten.T @ vectors[:, -1]
    heights = inputs.flatten(0, 1) @ direction
    skew = (heights - heights.mean()).pow(3).mean()
    return direction if skew >= 0 else -direction  # the longer tail: rare and strong


def _norms(backbone: VitBackbone, pixels: Tensor, index: int) -> Tensor:
    return backbone.forward(pixels, layers=[index], norm=False).layers[index].norms
