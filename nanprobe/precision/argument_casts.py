"""Casts of an operator's arguments and results, by autocast's rules for what may be cast at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def is_eligible(value: object) -> bool:
    """Whether autocast may cast `value`: a floating CPU tensor, float64 excepted."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype is not torch.float64 and value.is_cpu


def _map_eligible(value: Any, cast: Callable[[Tensor], Tensor]) -> Any:
    """`value` with `cast` applied to the eligible tensors in it; lists and tuples one level deep, as operators take."""
    if isinstance(value, Tensor):
        return cast(value) if is_eligible(value) else value
    if isinstance(value, list | tuple):
        return [_map_eligible(item, cast) for item in value]
    return value


def map_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], cast: Callable[[Tensor], Tensor]
) -> tuple[list[Any], dict[str, Any]]:
    """All arguments of an operator with `cast` applied to the eligible tensors."""
    return [_map_eligible(arg, cast) for arg in args], {key: _map_eligible(arg, cast) for key, arg in kwargs.items()}


def round_results(results: Any, dtype: torch.dtype) -> Any:
    """FP32 results in `dtype`; others (float64, integers) as they are."""
    if isinstance(results, Tensor):
        return results.to(dtype) if results.dtype is torch.float32 else results
    if isinstance(results, list | tuple):
        return type(results)(round_results(item, dtype) for item in results)
    return results


def widest(values: Any, dtype: torch.dtype) -> torch.dtype:
    """The widest dtype that autocast's promotion sees among `values`, not below `dtype`."""
    for value in values:
        if isinstance(value, list | tuple):
            dtype = widest(value, dtype)
        elif is_eligible(value) and value.dtype is not dtype:
            if value.dtype is not torch.float32 and dtype is not torch.float32:
                raise RuntimeError(f"autocast cannot promote {value.dtype} together with {dtype}; cast one of them")
            dtype = torch.float32
    return dtype
