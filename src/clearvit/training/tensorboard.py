"""Curves for TensorBoard, where it is installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from clearvit.training.state import State


class Curves:
    """Write losses, learning rates and held-out scores; a resumed run continues its curves."""

    def __init__(self, folder: Path, step: int) -> None:
        self.writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:  # pip install 'clearvit[train]'; the history is in the state anyway
            return
        self.writer = SummaryWriter(str(folder), purge_step=step)
        self.written = 0  # rows of the history

    def add(
        self, losses: Mapping[str, float], optimizer: torch.optim.Optimizer, state: State
    ) -> None:
        """Add the step that was taken, and the epoch that it ended."""
        if self.writer is None:
            return
        for name, value in losses.items():
            self.writer.add_scalar(f"train/{name}", value, state.step)
        for group in optimizer.param_groups:
            self.writer.add_scalar(f"lr/{group.get('name', 'all')}", group["lr"], state.step)
        for row in state.history[self.written :]:
            for name, value in row.items():
                self.writer.add_scalar(f"held-out/{name}", value, state.step)
        self.written = len(state.history)
        self.writer.flush()
