"""How much memory S, B and L need, computed without any device that holds values.

    python benchmarks/gpu_memory.py

The networks are built on torch's meta device, where tensors have shapes and no data. Every storage
that operators allocate is counted while it lives; the peak, and what the backward pass keeps, are
the numbers of the page. Fused attention is counted as such (inputs and output, no N x N matrix).
What a driver, a CUDA context and an allocator add, about 0.5 to 1 GB, is not in it. Nothing here
was measured on a GPU. Writes docs/results/gpu_memory.md.
"""

from __future__ import annotations

import datetime
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from clearvit.backbones.guarded_timm import timm
from tables import write_tables

MODELS = {
    "S": "vit_small_patch14_dinov2",
    "B": "vit_base_patch14_dinov2",
    "L": "vit_large_patch14_dinov2",
}
SIZES = (224, 336, 518)
BATCH = 8
OPTIMIZER_BYTES = 16  # per trained weight: gradient, two moments and the average, in float32


class Peak(TorchDispatchMode):
    """Count the bytes of all storages that are alive."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.now = self.peak = 0
        own = [p.untyped_storage() for p in (*network.parameters(), *network.buffers())]
        self.weights = own  # held, so that no other storage gets their address
        self.seen = {storage._cdata for storage in own}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for one in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(one, Tensor):
                self.add(one)
        return result

    def add(self, tensor: Tensor) -> None:
        """Count the storage of a tensor until it is freed."""
        storage = tensor.untyped_storage()
        if storage._cdata in self.seen:
            return
        size = storage.nbytes()
        self.seen.add(storage._cdata)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.free, storage._cdata, size)

    def free(self, address: int, size: int) -> None:
        """Forget a storage."""
        self.seen.discard(address)
        self.now -= size


class Fused(torch.autograd.Function):
    """The memory of fused attention: it keeps inputs, output and one number per row."""

    @staticmethod
    def forward(context: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Allocate the output."""
        out = torch.empty_like(query)
        context.save_for_backward(query, key, value, out)
        return out

    @staticmethod
    def backward(context: Any, grad: Tensor) -> Any:
        """Allocate the gradients."""
        query, key, value, _ = context.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def fused(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Fused.apply(query, key, value)  # type: ignore[no-any-return, no-untyped-call]


def main() -> None:
    torch.nn.functional.scaled_dot_product_attention = fused
    rows = [row(name, arch, size) for name, arch in MODELS.items() for size in SIZES]
    text = PAGE.format(rows="\n".join(rows), date=datetime.date.today().isoformat(), batch=BATCH)
    write_tables("gpu_memory", text)
    print(text)


def row(name: str, arch: str, size: int) -> str:
    with torch.device("meta"):
        network = timm.create_model(arch, num_classes=0, img_size=size).eval()
    weights = sum(p.numel() for p in network.parameters())
    cells = [f"{4 * weights / 1e9:.2f}"]
    for dtype in (torch.float32, torch.bfloat16):
        cells += [gigabytes(4 * weights + run(network, size, dtype, train=False))]
        kept = run(network, size, dtype, train=True)
        cells += [gigabytes((4 + OPTIMIZER_BYTES) * weights + kept)]
    return f"| {name} | {size} | {' | '.join(cells)} |"


def run(network: nn.Module, size: int, dtype: torch.dtype, *, train: bool) -> int:
    """Give the peak of activations of one batch, in bytes."""
    copy = network.to(dtype)  # on meta this costs nothing; autocast keeps float32 weights beside
    pixels = torch.empty(BATCH, 3, size, size, device="meta", dtype=dtype)
    with Peak(copy) as peak, torch.set_grad_enabled(train):
        tokens = copy.forward_features(pixels)  # type: ignore[operator]
        if train:
            loss = tokens.float().square().mean()
            del tokens
            loss.backward()
    network.zero_grad(set_to_none=True)
    extra = 0 if dtype is torch.float32 else 2 * sum(p.numel() for p in network.parameters())
    grads = 0 if not train else sum(p.numel() * p.element_size() for p in network.parameters())
    return max(peak.peak - grads, 0) + extra


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f}"


PAGE = """# Memory on a GPU, computed

`python benchmarks/gpu_memory.py` on {date}. **Computed, not measured**: shapes were counted on
torch's meta device for batches of {batch} images; add about 0.5 to 1 GB for the driver and the
allocator. Gigabytes.

| ViT/14 | px | weights | tokens, float32 | training, float32 | tokens, bf16 | training, bf16 |
|---|---|---|---|---|---|---|
{rows}

Training counts weights, gradients, two moments and the moving average in float32, and the
activations that the backward pass keeps. A default cure trains low-rank changes, which need less
of the former and as much of the latter. `--micro-batch` divides the activations,
`--grad-checkpointing` keeps those of one block at a time.
"""


if __name__ == "__main__":
    main()
