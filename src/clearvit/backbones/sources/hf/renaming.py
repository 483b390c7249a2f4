"""Tables that translate the weights of another library into timm's, and back.

A table is a list of rules. A rule names the tensors on both sides and how their numbers are
arranged; nothing is computed that could not be undone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clearvit.errors import ModelError

State = Mapping[str, Tensor]
Arrange = Callable[..., tuple[Tensor, ...]]
SHOWN = 20  # differences listed in one error


@dataclass(frozen=True)
class Rule:
    """Some tensors of ours (timm) and the tensors of theirs that hold the same numbers.

    In names, `{}` is the number of a block. Their names are relative to the vision tower;
    a leading `/` starts at the root of the checkpoint instead.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    from_source: Arrange  # their tensors -> ours
    to_source: Arrange  # our tensors -> theirs
    optional: bool = False  # a checkpoint may lack all of them


def same(ours: str, theirs: str, *, optional: bool = False) -> Rule:
    """One tensor under two names."""
    return Rule((ours,), (theirs,), _keep, _keep, optional)


def layer(ours: str, theirs: str, *, bias: bool = True, optional: bool = False) -> list[Rule]:
    """Weight and bias of one layer."""
    kinds = ("weight", "bias") if bias else ("weight",)
    return [same(f"{ours}.{kind}", f"{theirs}.{kind}", optional=optional) for kind in kinds]


def shaped(ours: str, theirs: str, into: Sequence[int], back: Sequence[int]) -> Rule:
    """One tensor with another shape on each side."""
    return Rule((ours,), (theirs,), lambda t: (t.reshape(*into),), lambda t: (t.reshape(*back),))


def fused(ours: str, theirs: Sequence[str]) -> Rule:
    """Equal parts on their side, stacked along the first axis on ours: query, key and value."""
    return Rule((ours,), tuple(theirs), _stack, lambda t: tuple(t.chunk(len(theirs))))


def unused(theirs: str, shape: Sequence[int]) -> Rule:
    """Mark a tensor that does not affect the features; the way back writes zeros."""
    return Rule((), (theirs,), lambda _: (), lambda: (torch.zeros(*shape),), optional=True)


def unbiased(ours: str, theirs: str, *, transposed: bool = False, optional: bool = False) -> Rule:
    """A layer that has a bias on our side and none on theirs, where it must be zero."""

    def transpose(weight: Tensor) -> Tensor:
        return weight.T.contiguous() if transposed else weight

    def inward(weight: Tensor) -> tuple[Tensor, ...]:
        weight = transpose(weight)
        return weight, weight.new_zeros(len(weight))

    def outward(weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        if bias.any():
            raise ModelError(f"{ours}.bias is not zero, but '{theirs}' has no bias to hold it.")
        return (transpose(weight),)

    names = (f"{ours}.weight", f"{ours}.bias")
    return Rule(names, (theirs,), inward, outward, optional)


def expand_blocks(rules: Iterable[Rule], depth: int, prefix: str = "") -> list[Rule]:
    """Write out the blocks 0 to depth - 1 and put the prefix before their names."""
    full: list[Rule] = []
    for rule in rules:
        per_block = any("{}" in name for name in (*rule.ours, *rule.theirs))
        for block in range(depth if per_block else 1):
            ours = tuple(name.format(block) for name in rule.ours)
            theirs = tuple(absolute_name(name, prefix).format(block) for name in rule.theirs)
            full.append(replace(rule, ours=ours, theirs=theirs))
    return full


def absolute_name(name: str, prefix: str) -> str:
    """Turn a name relative to the tower into a name from the root of the checkpoint."""
    return name[1:] if name.startswith("/") else prefix + name


def from_source(
    state: State, rules: Sequence[Rule], ignored: Sequence[str] = ()
) -> dict[str, Tensor]:
    """Translate their weights into ours.

    Args:
        state: Their weights.
        rules: The table, expanded to all blocks.
        ignored: Patterns of names that the vision network has no use for; regular expressions,
            matched at the start of a name.
    """
    return _translate(state, [(r, r.theirs, r.ours, r.from_source) for r in rules], ignored)


def to_source(state: State, rules: Sequence[Rule]) -> dict[str, Tensor]:
    """Translate our weights into theirs."""
    return _translate(state, [(r, r.ours, r.theirs, r.to_source) for r in rules], ())


Step = tuple[Rule, tuple[str, ...], tuple[str, ...], Arrange]


def _translate(state: State, steps: Sequence[Step], ignored: Sequence[str]) -> dict[str, Tensor]:
    result: dict[str, Tensor] = {}
    problems: list[str] = []
    known: set[str] = set()
    like = next(iter(state.values()), torch.empty(0))  # number format of rules without sources
    for rule, sources, targets, arrange in steps:
        known.update(sources)
        absent = [name for name in sources if name not in state]
        if rule.optional and sources and len(absent) == len(sources):
            continue
        if absent:
            problems += [f"missing {name}" for name in absent]
            continue
        try:
            made = arrange(*(state[name] for name in sources))
        except RuntimeError:  # torch says what it could not reshape, but not whose
            shapes = ", ".join(f"{name} {tuple(state[name].shape)}" for name in sources)
            problems.append(f"wrong shape: {shapes}")
            continue
        result.update(zip(targets, made if sources else (t.to(like) for t in made), strict=True))
    skip = re.compile("|".join(ignored)) if ignored else None
    left = [name for name in state if name not in known and not (skip and skip.match(name))]
    problems += [f"unexpected {name}" for name in left]
    if problems:
        raise ModelError(_describe(problems))
    return result


def _describe(problems: Sequence[str]) -> str:
    shown = "\n  ".join(problems[:SHOWN])
    more = f"\n  and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
    return (
        f"the weights do not fit the configuration (differences: {len(problems)}):\n  {shown}{more}"
    )


def _keep(tensor: Tensor) -> tuple[Tensor, ...]:
    return (tensor,)


def _stack(*parts: Tensor) -> tuple[Tensor, ...]:
    if len({part.shape for part in parts}) > 1:
        raise RuntimeError("parts of different shape")
    return (torch.cat(parts),)
