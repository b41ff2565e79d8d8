"""FP16 and BF16 tensors on a CPU, computed as a GPU computes them: FP32 inside, the result rounded once.

For scripts that hold half tensors themselves (`model.half()`). PyTorch's own CPU kernels are up to 200 times slower
in FP16 than in FP32, and some operators have none.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from nanprobe.precision.half_operators import (
    NORMALISATIONS,
    PRODUCTS,
    REFUSALS,
    RESULT_DTYPES,
    group_of,
    written_arguments,
)

_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}


def _low_dtypes(values: Any, found: list[torch.dtype]) -> list[torch.dtype]:
    """The dtypes of the floating CPU tensors among an operator's arguments, in order."""
    for value in values:
        if isinstance(value, Tensor):
            if value.is_cpu and (value.is_floating_point() or value.is_complex()):
                found.append(value.dtype)
        elif isinstance(value, list | tuple):
            _low_dtypes(value, found)
    return found


def _widen(value: Any) -> Any:
    """An argument with its low-precision tensors, and low-precision dtypes asked for, in FP32."""
    if isinstance(value, Tensor):
        return value.to(_WIDE[value.dtype]) if value.dtype in _WIDE and value.is_cpu else value
    if isinstance(value, torch.dtype):
        return _WIDE.get(value, value)
    if isinstance(value, list | tuple):
        return [_widen(item) for item in value]
    return value


def _narrow(value: Any, dtype: torch.dtype) -> Any:
    """A result in `dtype`; what is not FP32 stays as it is."""
    if isinstance(value, Tensor):
        if value.dtype is torch.float32 and dtype in (torch.float16, torch.bfloat16):
            return value.to(dtype)
        if value.dtype is torch.complex64 and dtype in (torch.float16, torch.complex32):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # "ComplexHalf support is experimental": it is what CUDA gives
                return value.to(torch.complex32)
        return value
    if isinstance(value, list | tuple):
        return type(value)(_narrow(item, dtype) for item in value)
    return value


def _copy_back(original: Any, computed: Any) -> None:
    """Write what was computed in FP32 into the tensors that the caller passed."""
    if isinstance(original, Tensor):
        if original is not computed:
            original.copy_(computed)
    elif isinstance(original, list | tuple):
        for one, other in zip(original, computed, strict=True):
            _copy_back(one, other)


def _compute_wide(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], lead: torch.dtype) -> Any:
    """`func` in FP32, its results rounded to the dtypes they would have had, `lead` where nothing else is said."""
    wide_args = [_widen(arg) for arg in args]
    wide_kwargs = {key: _widen(arg) for key, arg in kwargs.items()}
    result = func(*wide_args, **wide_kwargs)
    positions, names = written_arguments(func)
    originals = [args[index] for index in positions if index < len(args)]
    originals += [kwargs[name] for name in names if name in kwargs]
    computed = [wide_args[index] for index in positions if index < len(args)]
    computed += [wide_kwargs[name] for name in names if name in kwargs]
    _copy_back(originals, computed)
    if any(returned.alias_info is not None for returned in func._schema.returns):
        # in-place and out= return the very tensors they wrote
        return originals[0] if len(func._schema.returns) == 1 else tuple(originals)
    likes = RESULT_DTYPES.get(func._schema.name.partition("::")[2])
    if likes is None:
        return _narrow(result, lead)
    return tuple(
        value if like is None or args[like] is None else _narrow(value, args[like].dtype)
        for value, like in zip(result, likes, strict=True)
    )


class HalfComputeMode(TorchDispatchMode):
    """Computes products, convolutions, attention, recurrent layers and batch norm of half CPU tensors in FP32.

    The result is rounded to the input's dtype: what a GPU gives, at about the price of FP32. Operators that PyTorch
    has no half kernel for on a CPU are computed the same way. Everything else, other dtypes, other devices and forked
    processes (DataLoader workers) pass.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._unimplemented: set[OpOverload] = set()  # found to have no half kernel
        self._kinds: dict[OpOverload, frozenset[str] | None] = {}
        self._process = os.getpid()

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            kind = self._kinds[func]
        except KeyError:
            kind = self._kinds[func] = group_of(func)
        if kind is None and func not in self._unimplemented:
            return self._try_native(func, args, kwargs)
        lead = self._lead(kind, args, kwargs)
        return func(*args, **kwargs) if lead is None else _compute_wide(func, args, kwargs, lead)

    def _lead(self, kind: frozenset[str] | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
        """The low-precision dtype results are to have; None when the operation is not one to be computed in FP32."""
        if os.getpid() != self._process:
            return None
        dtypes = _low_dtypes((args, tuple(kwargs.values())), [])
        if not any(dtype in _WIDE for dtype in dtypes):
            return None
        if kind is NORMALISATIONS:
            return next(dtype for dtype in dtypes if dtype in _WIDE)
        if len(set(dtypes)) == 1:
            return dtypes[0]
        return None if kind is PRODUCTS else _promoted(dtypes)

    def _try_native(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """PyTorch's own kernel; where it has none for a half dtype, FP32 instead, and from then on."""
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:  # NotImplementedError is one
            if not any(refusal in str(error) for refusal in REFUSALS):
                raise
            lead = self._lead(None, args, kwargs) or _low_dtype_asked(kwargs)
            if lead is None:
                raise
            self._unimplemented.add(func)
        return _compute_wide(func, args, kwargs, lead)


def _promoted(dtypes: list[torch.dtype]) -> torch.dtype:
    """The dtype PyTorch promotes `dtypes` to."""
    result = dtypes[0]
    for dtype in dtypes[1:]:
        result = torch.promote_types(result, dtype)
    return result


def _low_dtype_asked(kwargs: dict[str, Any]) -> torch.dtype | None:
    """The low-precision dtype that a call asks its result to have."""
    dtype = kwargs.get("dtype")
    return dtype if dtype in _WIDE else None
