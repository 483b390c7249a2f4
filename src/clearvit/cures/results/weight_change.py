"""What a low-rank training changed, small enough to pass around: a model minus its base."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from clearvit.backbones.vit import VitBackbone
from clearvit.cures.registers import fold_class_position, with_registers
from clearvit.training.low_rank import merge_factors

STORED = torch.float16  # factors and differences are small numbers of similar size
REGISTERS = "reg_token"
HEAD = "head."  # of a classifier: no cure reads or changes it


@dataclass(frozen=True)
class WeightChange:
    """A change of a base, in float16; made by `extract_change`."""

    products: dict[str, tuple[Tensor, Tensor]]  # by name of a weight: B (out, r) and A (r, in)
    differences: dict[str, Tensor]  # by name of a parameter, of its own shape
    registers: Tensor  # (m, C)

    def apply(self, base: VitBackbone) -> VitBackbone:
        """Return a changed copy of the base."""
        changed = with_registers(base, self.registers.float())
        own = changed.network.state_dict()
        with torch.no_grad():
            for name, (up, down) in self.products.items():
                own[name] += (up.float() @ down.float()).to(own[name])
            for name, difference in self.differences.items():
                own[name] += difference.to(own[name])
        return changed

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """List all numbers, by their names in a file."""
        for name, (up, down) in self.products.items():
            yield f"up/{name}", up
            yield f"down/{name}", down
        for name, difference in self.differences.items():
            yield f"difference/{name}", difference
        if len(self.registers):
            yield "registers", self.registers


def extract_change(student: VitBackbone, base: VitBackbone) -> WeightChange:
    """Take what a trained student differs in from its base; its factors are merged on the way."""
    products = merge_factors(student.network)
    fold_class_position(student.network)
    added = "register" in student.prefix_names and "register" not in base.prefix_names
    none = torch.empty(0, student.network.embed_dim)
    registers = student.network.reg_token[0].detach() if added else none
    registers = registers.to(STORED).cpu()
    start = with_registers(base, registers.float()).network.state_dict()
    differences = {}
    for name, value in student.network.state_dict().items():
        if name not in products and not (added and name == REGISTERS):
            difference = value - start[name].to(value)
            if difference.any():
                differences[name] = difference.to(STORED).cpu()
    stored = {
        name: (up.to(STORED).cpu(), down.to(STORED).cpu()) for name, (up, down) in products.items()
    }
    return WeightChange(stored, differences, registers)


def base_fingerprint(backbone: VitBackbone) -> str:
    """Hash the weights of a network, without its classifier; preprocessing does not count."""
    digest = hashlib.sha256()
    for key, tensor in sorted(backbone.network.state_dict().items()):
        if not key.startswith(HEAD):
            plain = tensor.detach().float().cpu().contiguous()
            digest.update(f"{key}{tuple(plain.shape)}".encode())
            digest.update(plain.numpy().data)
    return digest.hexdigest()
