"""Curves for TensorBoard, where it is installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from clearvit.training.state import State


class Curves:
    """Write losses, rates and held-out scores; a resumed run continues its curves."""

    def __init__(self, folder: Path, step: int) -> None:
        self.writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:  # pip install 'clearvit[train]'; the history is in the state anyway
            return
        self.writer = SummaryWriter(str(folder), purge_step=step)
        self.told = 0

    def add(
        self,
        step: int,
        losses: Mapping[str, float],
        optimizer: torch.optim.Optimizer,
        state: State,
    ) -> None:
        """Add one step, and the epoch that it ended."""
        if self.writer is None:
            return
        for name, value in losses.items():
            self.writer.add_scalar(f"train/{name}", value, step)
        for group in optimizer.param_groups:
            self.writer.add_scalar(f"rate/{group.get('name', 'all')}", group["lr"], step)
        for row in state.history[self.told :]:
            for name, value in row.items():
                self.writer.add_scalar(f"held-out/{name}", value, step)
        self.told = len(state.history)
        self.writer.flush()
