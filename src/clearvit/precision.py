"""In which number format networks run: bfloat16 where the hardware computes in it, else float32."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from clearvit.options import Precision

CPU_UNITS = ("avx512_bf16", "amx_bf16")  # instructions that multiply in bfloat16


def uses_bf16(device: torch.device, precision: Precision) -> bool:
    """Decide whether to compute in bfloat16; "auto" does where the hardware is made for it.

    That is a GPU that supports it, or a CPU with AVX-512 BF16 or AMX: without these a CPU converts
    every number first and is slower than in float32. The instructions are asked for, nothing is
    timed: numbers depend on the answer, so it must be the same whenever a run goes on or a cache is
    read, whatever else the machine does then (benchmarks/precision.py has the times).
    """
    if precision != "auto":
        return precision == "bf16"
    if device.type == "cpu":
        return cpu_computes_bf16()
    return device.type == "cuda" and torch.cuda.is_bf16_supported()


@functools.cache
def cpu_computes_bf16() -> bool:
    """Ask the processor for instructions that multiply in bfloat16."""
    ask = getattr(torch.cpu, "get_capabilities", None)
    if ask is not None:
        found = ask()
        return any(bool(found.get(unit)) for unit in CPU_UNITS)
    # Before torch 2.10 there is no public name for the question.
    older = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, name, bool)()) for name in older)


def autocast(device: torch.device, enabled: bool) -> AbstractContextManager[Any]:
    """Compute in bfloat16 where it is safe, if enabled; other devices have nothing to switch."""
    if not enabled and not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled)
