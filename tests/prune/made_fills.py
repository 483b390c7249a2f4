"""Fills by name; that which is learned has random weights."""

import torch

from clearvit.prune.learned_fill import LearnedFill


def fill_of(name, width):
    if name != "learned":
        return name
    torch.manual_seed(5)
    fill = LearnedFill(width)
    torch.nn.init.normal_(fill.outer.weight, std=0.1)
    return fill.requires_grad_(False)
