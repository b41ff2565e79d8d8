"""What the recorder must know of an operator, read from its schema once and remembered."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch._ops import OpOverload

aten = torch.ops.aten

# Operators whose result has no value of its own yet: its shadow is whatever is written next.
_UNINITIALISED = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"})

# Write a constant the script chose. An Inf written by one of these is meant, and is no origin of a fault.
# Any operator with a non-finite number among its arguments counts as well; this table adds those that only move
# a constant about.
CONSTANT_WRITERS = frozenset(
    {"fill", "fill_", "full", "full_like", "new_full", "masked_fill", "masked_fill_", "index_fill", "index_fill_",
     "scalar_tensor", "constant_pad_nd", "where", "lift_fresh", "lift_fresh_copy"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OperatorInfo:
    """One operator's traits."""

    name: str  # "aten.mul.Tensor"
    packet: str  # "mul"
    is_view: bool  # every result is a view of an argument: nothing is computed
    mutated: tuple[tuple[int, str], ...]  # position and name of the arguments it writes to
    random: bool  # draws from a generator: the re-check must reuse the real result
    uninitialised: bool


@cache
def operator_info(func: OpOverload) -> OperatorInfo:
    """Traits of `func`, from its schema and tags."""
    schema = func._schema
    packet = schema.name.split("::")[-1]
    mutated = tuple(
        (position, argument.name)
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    returns = schema.returns
    aliases = [r.alias_info is not None and not r.alias_info.is_write for r in returns]
    is_view = bool(returns) and all(aliases) and not mutated
    name = str(func)
    return OperatorInfo(
        name=name,
        packet=packet,
        is_view=is_view,
        mutated=mutated,
        random=torch.Tag.nondeterministic_seeded in func.tags,
        uninitialised=packet in _UNINITIALISED,
    )
