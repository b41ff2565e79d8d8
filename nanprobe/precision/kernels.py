"""The kernels that stand in for CUDA's autocast on the CPU: one small function a policy, made for each operator.

Each runs below autocast and above autograd, and is a composition of casts and the operator itself. So the backward
pass is autograd's own and rounds gradients to FP16 wherever CUDA's would be FP16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from nanprobe.precision.argument_casts import is_eligible, map_arguments, round_results, widest
from nanprobe.precision.cast_lists import Entry, Policy, Variant, find_op
from nanprobe.precision.emulation import CURRENT
from nanprobe.precision.half_operators import BROKEN
from nanprobe.precision.weight_casts import WeightCasts, is_cacheable

Kernel = Callable[..., Any]

_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_BELOW_AUTOCAST = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.AutocastCPU)


def _below_autocast() -> torch._C._ExcludeDispatchKeyGuard:
    """A context in which autocast is not applied, as inside CUDA's own kernels."""
    return torch._C._ExcludeDispatchKeyGuard(_AUTOCAST)


def _unlabelled(kernel: Kernel) -> Kernel:
    """`kernel`, run below autocast; what it runs is the operator itself, so it needs no label."""

    def unlabelled(*args: Any, **kwargs: Any) -> Any:
        with _below_autocast():
            return kernel(*args, **kwargs)

    return unlabelled


def _labelled(op: OpOverload, kernel: Kernel) -> Kernel:
    """`kernel`, run below autocast and with `emulated_op()` telling which operator it stands for."""
    label = f"aten.{op._schema.name.removeprefix('aten::')}"

    def labelled(*args: Any, **kwargs: Any) -> Any:
        outer, CURRENT.op = CURRENT.op, label
        try:
            with _below_autocast():
                return kernel(*args, **kwargs)
        finally:
            CURRENT.op = outer

    return labelled


def _narrowing(casts: WeightCasts, cached: bool) -> Callable[[Tensor], Tensor]:
    """A function that casts an eligible tensor to autocast's dtype, weights through the cache where `cached`."""

    def narrow(tensor: Tensor) -> Tensor:
        dtype = torch.get_autocast_dtype("cpu")
        if tensor.dtype is dtype:
            return tensor
        if cached and tensor.dtype is torch.float32 and is_cacheable(tensor):
            return casts.cast(tensor, dtype)
        return tensor.to(dtype)

    return narrow


def lower_precision(op: OpOverload, casts: WeightCasts, variant: Variant | None) -> Kernel:
    """FP16 inputs, FP32 inside, FP16 result: what tensor cores and cuDNN do."""
    narrow = _narrowing(casts, cached=variant is not Variant.UNCACHED)

    def round_through(tensor: Tensor) -> Tensor:
        return narrow(tensor).to(torch.float32)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        args32, kwargs32 = map_arguments(args, kwargs, round_through)
        return round_results(op(*args32, **kwargs32), torch.get_autocast_dtype("cpu"))

    return _labelled(op, kernel)


def inner_rounding(op: OpOverload, casts: WeightCasts, variant: Variant | None) -> Kernel:
    """FP16 inputs, and autocast left on inside, so that each product the operator is made of is emulated by itself."""
    narrow = _narrowing(casts, cached=True)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _below_autocast():
            narrow_args, kwargs = map_arguments(args, kwargs, narrow)
        result = op.redispatch(_keys_below_autocast(narrow_args), *narrow_args, **kwargs)
        with _below_autocast():  # sums of FP16 inside come out as FP32 while autocast is on
            return round_results(result, torch.get_autocast_dtype("cpu"))

    return kernel


def _keys_below_autocast(args: list[Any]) -> torch._C.DispatchKeySet:
    """The dispatch keys that are left for an operator with these arguments once autocast had its turn."""
    keys = torch._C._dispatch_tls_local_include_set()
    for arg in args:
        for tensor in arg if isinstance(arg, list) else [arg]:
            if isinstance(tensor, Tensor):
                keys = keys | torch._C._dispatch_keys(tensor)
    return (keys - torch._C._dispatch_tls_local_exclude_set()) & _BELOW_AUTOCAST


def fp32(op: OpOverload, casts: WeightCasts, variant: Variant | None) -> Kernel:
    """Inputs to FP32."""

    def widen(tensor: Tensor) -> Tensor:
        return tensor.to(torch.float32)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        args32, kwargs32 = map_arguments(args, kwargs, widen)
        return op(*args32, **kwargs32)

    return _unlabelled(kernel)


def fp32_set_opt_dtype(op: OpOverload, casts: WeightCasts, variant: Variant | None) -> Kernel:
    """An FP32 result, unless the caller named a dtype; inputs are left to the operator, which widens as it reads.

    `cross_entropy` names its input's, so that its log_softmax is FP16 on CUDA too; where the CPU's kernel is wrong in
    FP16 the result is computed in FP32 and rounded.
    """
    position = [argument.name for argument in op._schema.arguments].index("dtype")
    wrong_in_half = f"_{op._schema.name.removeprefix('aten::')}" in BROKEN

    def in_fp32(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return op(*args[:position], **{**kwargs, "dtype": torch.float32})

    def rounded(asked: torch.dtype, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return round_results(in_fp32(args, kwargs), asked)

    widened, plain, emulated = _unlabelled(in_fp32), _unlabelled(op), _labelled(op, rounded)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        asked = args[position] if len(args) > position else kwargs.get("dtype")
        if asked is None and is_eligible(args[0]):
            return widened(args, kwargs)
        if wrong_in_half and asked in (torch.float16, torch.bfloat16):
            return emulated(asked, args, kwargs)
        return plain(*args, **kwargs)

    return kernel


def fp32_append_dtype(op: OpOverload, casts: WeightCasts, variant: Variant | None) -> Kernel:
    """The overload with a dtype, told FP32; a first argument that autocast leaves alone keeps its own dtype."""
    name = op._schema.name.removeprefix("aten::")
    overload = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
    with_dtype = find_op(overload[f"{name}.{op._schema.overload_name}"])
    assert with_dtype is not None
    defaults = [argument.default_value for argument in op._schema.arguments if argument.has_default_value()]
    count = len(op._schema.arguments)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        args += tuple(defaults[len(defaults) - (count - len(args)) :]) if len(args) < count else ()
        dtype = torch.float32 if is_eligible(args[0]) else args[0].dtype
        return with_dtype(*args, dtype=dtype, **kwargs)

    return _unlabelled(kernel)


def promote(op: OpOverload, casts: WeightCasts, variant: Variant | None) -> Kernel:
    """Inputs to the widest dtype among them; where that is FP16, computed in FP32 and rounded, as CUDA's kernels do."""
    native = variant is Variant.NATIVE_HALF

    def in_dtype(dtype: torch.dtype, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        cast_args, cast_kwargs = map_arguments(args, kwargs, lambda tensor: tensor.to(dtype))
        return op(*cast_args, **cast_kwargs)

    def rounded(dtype: torch.dtype, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return round_results(in_dtype(torch.float32, args, kwargs), dtype)

    plain, emulated = _unlabelled(in_dtype), _labelled(op, rounded)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = widest(args, torch.get_autocast_dtype("cpu"))
        return (plain if native or dtype is torch.float32 else emulated)(dtype, args, kwargs)

    return kernel


def banned(op: OpOverload, casts: WeightCasts, variant: Variant | None) -> Kernel:
    """An error, as on CUDA."""
    name = op._schema.name.removeprefix("aten::")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"{name} is unsafe under autocast: its FP16 input can be exactly 0 or 1, where the logarithm is not "
            "finite. Leave out the sigmoid and use binary_cross_entropy_with_logits (BCEWithLogitsLoss) instead."
        )

    return kernel


_BUILDERS = {
    Policy.LOWER_PRECISION: lower_precision,
    Policy.FP32: fp32,
    Policy.FP32_SET_OPT_DTYPE: fp32_set_opt_dtype,
    Policy.FP32_APPEND_DTYPE: fp32_append_dtype,
    Policy.PROMOTE: promote,
    Policy.BANNED: banned,
}


def build_kernel(entry: Entry, casts: WeightCasts) -> Kernel:
    """The kernel that treats one operator as CUDA's autocast does."""
    op = find_op(entry.op)
    assert op is not None  # `cuda_entries` lists only operators that exist
    if entry.variant is Variant.INNER_ROUNDING:
        return inner_rounding(op, casts, entry.variant)
    return _BUILDERS[entry.policy](op, casts, entry.variant)
