"""The raw low-precision run: tensors stay float32, and every operation's result is rounded to a narrower grid.

No script dies of a dtype mismatch this way, and every number is one that FP16 (or BF16) can hold: too large becomes
Inf, too small becomes 0.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from nanprobe.formats import FP16, FloatFormat
from nanprobe.precision.half_operators import written_arguments

_CHUNK = 1 << 19  # elements rounded at a time: the FP16 half of the round trip then stays in the core's cache


class _Scratch(threading.local):
    """One buffer a thread and dtype, used again and again: fresh large allocations cost more than the rounding."""

    def __init__(self) -> None:
        self.buffers: dict[torch.dtype, Tensor] = {}

    def holding(self, count: int, dtype: torch.dtype) -> Tensor:
        """A flat buffer of at least `count` elements; its content is undefined."""
        buffer = self.buffers.get(dtype)
        if buffer is None or buffer.numel() < count:
            buffer = self.buffers[dtype] = torch.empty(max(count, _CHUNK), dtype=dtype)
        return buffer


_SCRATCH = _Scratch()


def round_to_grid_(tensor: Tensor, fmt: FloatFormat = FP16) -> Tensor:
    """Round a float32 or complex64 tensor of any shape, in place, to the numbers of `fmt`; others stay as they are."""
    _round(tensor, getattr(torch, fmt.name))
    return tensor


def _round(tensor: Tensor, narrow: torch.dtype) -> None:
    """Round `tensor` through `narrow` and back, in place."""
    if tensor.dtype is not torch.float32:
        if tensor.dtype is torch.complex64:
            _round(torch.view_as_real(tensor.conj() if tensor.is_conj() else tensor), narrow)
        return
    count = tensor.numel()
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        tensor.copy_(tensor.to(narrow))
    elif tensor.is_contiguous():
        buffer = _SCRATCH.holding(_CHUNK, narrow)
        for chunk in (tensor,) if count <= _CHUNK else tensor.view(-1).split(_CHUNK):
            chunk.copy_(buffer.as_strided(chunk.size(), chunk.stride()).copy_(chunk))
    else:
        extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
        if extent <= 2 * count:  # the same strides, so that both copies run in memory order
            narrowed = _SCRATCH.holding(extent, narrow).as_strided(tensor.size(), tensor.stride())
        else:
            narrowed = _SCRATCH.holding(count, narrow)[:count].view(tensor.size())
        tensor.copy_(narrowed.copy_(tensor))


@dataclass(frozen=True, slots=True)
class Rule:
    """What of an operator's results and arguments is to be rounded."""

    results: tuple[int, ...] | None  # positions of results that are newly made; None: there is only one, and it is new
    mutated: tuple[int, ...] = ()  # positions of arguments that it writes
    mutated_names: tuple[str, ...] = ()  # the same among keyword-only arguments (out=)
    owned_only: bool = False  # results in foreign memory are left: torch.as_tensor shares a numpy array, or a file


_STATISTICS = "mean and rstd stay FP32 on CUDA, for the backward pass"
_LOGSUMEXP = "the row's log-sum-exp stays FP32 on CUDA, for the backward pass"

# operators of whose results only some are rounded: aten name -> (positions, why)
EXEMPTIONS: dict[str, tuple[tuple[int, ...], str]] = {
    "native_layer_norm": ((0,), _STATISTICS),
    "native_group_norm": ((0,), _STATISTICS),
    "_fused_rms_norm": ((0,), _STATISTICS),
    "native_batch_norm": ((0,), _STATISTICS),
    "_native_batch_norm_legit": ((0,), _STATISTICS),
    "_native_batch_norm_legit_no_training": ((0,), _STATISTICS),
    "_native_batch_norm_legit_functional": ((0, 3, 4), _STATISTICS),
    "_batch_norm_with_update": ((0,), _STATISTICS),
    "_batch_norm_no_update": ((0,), _STATISTICS),
    "_scaled_dot_product_flash_attention_for_cpu": ((0,), _LOGSUMEXP),
    "mkldnn_rnn_layer": ((0, 1, 2), "the last is a workspace with a layout of its own"),
    "_ctc_loss": ((0,), "the table of log-probabilities stays FP32: there is no FP16 CTC, on CUDA either"),
}

_UNWRITTEN = ("empty", "new_empty", "_empty", "resize", "set_", "_resize")  # what they give has no values yet
# fmt: off
_MOVES = frozenset({  # they only move numbers, or write 0 and 1; whatever computes with the result rounds
    "clone", "cat", "stack", "_reshape_copy", "select_backward", "slice_backward", "unfold_backward", "zeros",
    "zeros_like", "new_zeros", "zero_", "ones", "ones_like", "new_ones", "_efficientzerotensor",
})
# fmt: on
_ENTERING = ("lift_fresh", "lift")  # views by their schema, but this is how torch.tensor([...]) comes in


def _rule_for(func: OpOverload) -> Rule | None:
    """What to round after `func`, from its schema; None when there is nothing."""
    schema = func._schema
    name = schema.name.partition("::")[2]
    if name.startswith(_UNWRITTEN) or name in _MOVES:
        return None
    mutated, names = written_arguments(func)
    fresh = [
        index
        for index, result in enumerate(schema.returns)
        if (result.alias_info is None or name in _ENTERING) and "Tensor" in str(result.type)
    ]
    if name in EXEMPTIONS:
        fresh = [index for index in fresh if index in EXEMPTIONS[name][0]]
    results = None if len(schema.returns) == 1 and fresh else tuple(fresh)
    return Rule(results, mutated, names, name in _ENTERING) if results != () or mutated or names else None


class RoundingMode(TorchDispatchMode):
    """Rounds what every operation makes or writes to the grid of a narrow format, NaN and Inf included.

    Float32 and complex64 only; float64, integers and booleans pass. `enabled = False` lets everything pass, for work
    that is not the run's own. While `in_update` is true 0-dimensional tensors stay FP32: an optimizer's scalars, such
    as Adam's step counter, are FP32 in an FP16 run too. In a forked process (a DataLoader worker) it does nothing.
    """

    def __init__(self, fmt: FloatFormat = FP16) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.enabled = True
        self.in_update = False
        self._narrow: torch.dtype = getattr(torch, fmt.name)
        self._rules: dict[OpOverload, Rule | None] = {}
        self._process = os.getpid()

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self.enabled or os.getpid() != self._process:
            return result
        try:
            rule = self._rules[func]
        except KeyError:
            rule = self._rules[func] = _rule_for(func)
        if rule is not None:
            self._apply(rule, result, args, kwargs)
        return result

    def _apply(self, rule: Rule, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Round what `rule` points at."""
        if rule.owned_only and not result.untyped_storage().resizable():
            return
        if rule.results is None:
            self._round(result)
        else:
            for index in rule.results:
                self._round(result[index])
        for index in rule.mutated:
            if index < len(args):
                self._round(args[index])
        for name in rule.mutated_names:
            self._round(kwargs.get(name))

    def _round(self, value: Any) -> None:
        """Round one tensor or each of a list."""
        if isinstance(value, Tensor):
            if not (self.in_update and value.dim() == 0):
                _round(value, self._narrow)
        elif isinstance(value, list | tuple):
            for item in value:
                self._round(item)
