"""A second device for machines without one: tensors that say they are elsewhere.

They compute on the CPU, but mixing them with tensors of the CPU is an error, as is `.numpy()`, just
as with a GPU. So code that forgets to move something fails here too.
"""

import copy
import functools
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")  # the one besides the CPU that needs no driver; here it holds values
aten = torch.ops.aten
MOVES = (aten._to_copy, aten.copy_)
# An index may be on the CPU, as on a GPU.
INDEXED = (aten.index, aten.index_put, aten.index_put_)


class Elsewhere(torch.Tensor):
    """A tensor of the second device."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return f"Elsewhere({tuple(self.shape)})"

    def __deepcopy__(self, memo):
        return Elsewhere(self.inner.clone())

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _run(function, args, kwargs or {})


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return _run(function, args, kwargs or {})


@contextmanager
def second_device():
    """Make `device=DEVICE` and `.to(DEVICE)` work."""
    fused = F.scaled_dot_product_attention  # asks a driver which kernel to take
    with pytest.MonkeyPatch.context() as patch, _Mode():
        patch.setattr(F, "scaled_dot_product_attention", functools.partial(_attend, fused))
        yield DEVICE


def _attend(fused, query, key, value, attn_mask=None, scale=None, **options):
    if not isinstance(query, Elsewhere):
        return fused(query, key, value, attn_mask=attn_mask, scale=scale, **options)
    scores = query @ key.transpose(-2, -1) * (scale or query.shape[-1] ** -0.5)
    if attn_mask is not None:
        shut = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if shut else scores + attn_mask
    return scores.softmax(-1) @ value


def move(backbone):
    """Copy a backbone to the second device."""
    moved = copy.copy(backbone)
    moved.network = copy.deepcopy(backbone.network)
    for module in moved.network.modules():
        for name, value in list(module._parameters.items()):
            if value is not None:
                there = Elsewhere(value.detach())
                module._parameters[name] = torch.nn.Parameter(there, requires_grad=False)
        for name, value in list(module._buffers.items()):
            if value is not None:
                module._buffers[name] = Elsewhere(value)
    return moved


def _run(function, args, kwargs):
    given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    ours = [one for one in given if isinstance(one, Elsewhere)]
    packet, target = function.overloadpacket, kwargs.get("device")
    if ours and packet not in (*MOVES, *INDEXED):
        strangers = [one for one in given if not isinstance(one, Elsewhere) and one.dim()]
        if strangers:
            raise RuntimeError(f"{function} mixes tensors of two devices")
    here = {key: torch.device("cpu") if key == "device" else value for key, value in kwargs.items()}
    result = function(*tree_map(_inner, args), **tree_map(_inner, here))
    if function._schema.is_mutable and isinstance(args[0], torch.Tensor):
        return args[0]
    there = bool(ours) if target is None else torch.device(target).type == DEVICE.type
    return tree_map(lambda one: _outer(one, there), result)


def _inner(value):
    return value.inner if isinstance(value, Elsewhere) else value


def _outer(value, there):
    return Elsewhere(value) if there and isinstance(value, torch.Tensor) else value
