"""Autocast for a sweep over loss scales: FP16 values forward, unrounded gradients backward, and a look at each of them.

The gradient of every tensor that would be FP16 passes a tap. It goes on as FP32, so that what a tap sees is free of
the flushes and overflows of any one loss scale, and stands for all of them: backward is linear in the gradient it
receives. Tensors keep dtype float32 and hold FP16 values.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.library import Library, fallthrough_kernel

from nanprobe.formats import format_named
from nanprobe.precision.cast_lists import Policy, cpu_only_ops, cuda_entries, find_op
from nanprobe.precision.emulation import CURRENT
from nanprobe.precision.kernels import build_kernel
from nanprobe.precision.rounding import round_to_grid_
from nanprobe.precision.weight_casts import WeightCasts, is_cacheable

# Told of a gradient: what it is the gradient of (a key that `describe` gave at forward time), and the gradient.
Look = Callable[[Any, Tensor], None]
# Asked at forward time: a key for this tensor, from the operator's name and "input"/"output"; None for "do not tap".
Describe = Callable[[str, str, Tensor], Any]


class _Tap(torch.autograd.Function):
    """Rounds forward, looks backward."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dtype: torch.dtype, key: Any, look: Look) -> Tensor:
        ctx.key, ctx.look = key, look
        return _rounded_copy(tensor, dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.look(ctx.key, grads[0])
        return grads[0], None, None, None


def _rounded_copy(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return round_to_grid_(tensor.detach().clone(), format_named(str(dtype).removeprefix("torch.")))


class GradientTaps:
    """The taps of one run.

    Args:
        describe: names a tensor as it passes forward.
        look: is shown its gradient.
    """

    device_type = "cpu"

    def __init__(self, describe: Describe, look: Look) -> None:
        self._describe = describe
        self._look = look
        self._weights: dict[int, tuple[Tensor, Tensor]] = {}

    def tap(self, op: str, role: str, tensor: Tensor) -> Tensor:
        """The tensor on autocast's grid, with a tap in its gradient's way; a weight is cast once a step."""
        if role == "input" and is_cacheable(tensor):
            held = self._weights.get(id(tensor))
            if held is None:
                with torch.enable_grad():  # a copy first made under no_grad must serve training too
                    held = self._weights[id(tensor)] = (tensor, self._tapped(op, role, tensor))
            return held[1]
        return self._tapped(op, role, tensor)

    def forget_weights(self) -> None:
        """Autocast was left: weights may change now."""
        self._weights.clear()

    def _tapped(self, op: str, role: str, tensor: Tensor) -> Tensor:
        if tensor.dtype is not torch.float32:
            return tensor
        dtype = torch.get_autocast_dtype(self.device_type)
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return _rounded_copy(tensor, dtype)
        key = self._describe(op, role, tensor)
        apply: Callable[..., Tensor] = _Tap.apply
        return apply(tensor, dtype, key, self._look)


@contextmanager
def tapped_autocast(taps: GradientTaps, device_type: str) -> Iterator[None]:
    """While active, autocast of the device type uses CUDA's cast lists, with a tap at every FP16 tensor."""
    taps.device_type = device_type
    library = Library("aten", "IMPL", f"Autocast{device_type.upper()}")
    unused = cpu_only_ops() if device_type == "cpu" else ()
    clear = torch.clear_autocast_cache

    def clear_both() -> None:
        taps.forget_weights()
        clear()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they are overridden is the purpose
        for entry in cuda_entries():
            op = find_op(entry.op)
            if entry.policy is Policy.LOWER_PRECISION and op is not None:
                library.impl(entry.op, _kernel(op, taps))
            elif device_type == "cpu":  # a GPU has these rules already
                library.impl(entry.op, build_kernel(entry, WeightCasts()))
        for name in unused:
            library.impl(name, fallthrough_kernel)
    fast_attention = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    torch.clear_autocast_cache = clear_both
    try:
        yield
    finally:
        torch.clear_autocast_cache = clear
        torch.backends.mha.set_fastpath_enabled(fast_attention)
        library._destroy()
        taps.forget_weights()


_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA
)


def _kernel(op: OpOverload, taps: GradientTaps) -> Callable[..., Any]:
    label = f"aten.{op._schema.name.removeprefix('aten::')}"

    def enter(tensor: Tensor) -> Tensor:
        return taps.tap(label, "input", tensor.float() if tensor.dtype is not torch.float32 else tensor)

    def leave(value: Any) -> Any:
        if isinstance(value, Tensor):
            return taps.tap(label, "output", value) if value.is_floating_point() else value
        if isinstance(value, (list, tuple)):
            return type(value)(leave(v) for v in value)
        return value

    def kernel(*args: Any, **kwargs: Any) -> Any:
        outer, CURRENT.op = CURRENT.op, label
        try:
            with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
                return leave(op(*_mapped(args, enter), **{k: _mapped(v, enter) for k, v in kwargs.items()}))
        finally:
            CURRENT.op = outer

    return kernel


def _mapped(value: Any, cast: Callable[[Tensor], Tensor]) -> Any:
    """`value` with `cast` applied to what autocast may cast: floating tensors, float64 excepted."""
    if isinstance(value, Tensor):
        return cast(value) if value.is_floating_point() and value.dtype is not torch.float64 else value
    if isinstance(value, (list, tuple)):
        return [_mapped(item, cast) for item in value]
    return value
