"""Measuring one tensor: is it finite, how large, where does it break.

`torch.aminmax` reads a tensor once, carries NaN through and shows Inf: a finite result settles everything, and only a
tensor that is not finite is looked at again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from nanprobe.precision.views import as_real
from nanprobe.records import InputRecord, Specimen, TensorStats

ABSURD = 1e15  # no sensor, image or sound delivers a finite number this large: our choice
MAX_PLACES = 16  # rows and columns kept of a tensor that is not finite
MAX_SPECIMENS = 4

Counts = tuple[int, int, float]  # NaN, Inf, largest finite magnitude


def counts(tensor: Tensor) -> Counts:
    """NaN count, Inf count, largest finite magnitude; any shape, any float or complex dtype. Waits for the device."""
    real = as_real(tensor)
    if real.element_size() == 1:
        real = real.float()  # the float8 formats have next to no kernels
    if real.numel() == 0:
        return 0, 0, 0.0
    if real.numel() == 1:
        return _count_one(real.item())
    low, high = torch.aminmax(in_memory_order(real))
    smallest, largest = float(low), float(high)
    if math.isfinite(smallest) and math.isfinite(largest):
        return 0, 0, max(-smallest, largest, 0.0)
    return count_nonfinite(real)


def in_memory_order(tensor: Tensor) -> Tensor:
    """The same elements, in the order they lie in memory where that is possible: reading across them is slow."""
    if tensor.is_contiguous():
        return tensor
    extent = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != extent:
            return tensor  # it has gaps, or overlaps itself
        extent *= size
    return tensor.as_strided((tensor.numel(),), (1,))


def count_nonfinite(real: Tensor) -> Counts:
    """The same for a tensor known not to be finite."""
    nan = int(torch.isnan(real).sum())
    inf = int(torch.isinf(real).sum())
    if nan + inf == real.numel():
        return nan, inf, 0.0
    finite = torch.where(torch.isfinite(real), real, torch.zeros((), dtype=real.dtype, device=real.device))
    return nan, inf, float(finite.abs().amax())


def _count_one(value: float) -> Counts:
    if math.isnan(value):
        return 1, 0, 0.0
    if math.isinf(value):
        return 0, 1, 0.0
    return 0, 0, abs(value)


def zeros(tensor: Tensor) -> int:
    """How many elements are exactly 0."""
    return tensor.numel() - int(torch.count_nonzero(in_memory_order(tensor)))


def stats(tensor: Tensor, dtype: str, shadow: Tensor | None, low_precision: bool) -> TensorStats:
    """`TensorStats` of a tensor and its re-check (same shape); flushes are counted in low precision only."""
    nan, inf, largest = counts(tensor)
    if shadow is None:
        return TensorStats(dtype, tuple(tensor.shape), nan, inf, largest)
    shadow_nan, shadow_inf, shadow_largest = counts(shadow)
    zero_count, flushed = None, 0
    if low_precision:
        zero_count = zeros(tensor)
        if zero_count:
            # Elements that are 0 in both cancel out; one that is 0 only in the re-check is too rare to matter here.
            flushed = max(0, zero_count - zeros(shadow))
    return TensorStats(
        dtype, tuple(tensor.shape), nan, inf, largest, shadow_nan, shadow_inf, shadow_largest, flushed, zero_count
    )


def inspect_input(record: InputRecord, tensor: Tensor, shadow: Tensor | None) -> InputRecord:
    """The record with exact counts of the tensor filled in."""
    nan, inf, largest = counts(tensor)
    s_nan, s_inf, s_largest, s_zero = None, None, None, None
    if shadow is not None:
        s_nan, s_inf, s_largest = counts(shadow)
        s_zero = zeros(shadow)
    return InputRecord(
        record.writers,
        record.external,
        record.shape,
        record.dtype,
        nan,
        inf,
        zeros(tensor),
        largest,
        s_nan,
        s_inf,
        s_zero,
        s_largest,
    )


def places(tensor: Tensor, bad: int, largest: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Rows and columns of what is wrong with a tensor from outside: `bad` elements, or a magnitude beyond reason."""
    if not bad and largest < ABSURD:
        return (), ()
    return bad_places(tensor, math.inf if bad else largest)


def bad_places(tensor: Tensor, limit: float = math.inf) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Rows (dim 0) and columns (last dim) that hold NaN, or a magnitude of `limit` or more; at most 16 each."""
    if tensor.dim() == 0 or tensor.numel() == 0:
        return (), ()
    bad = ~(as_real(tensor).abs() < limit)
    if tensor.is_complex():
        bad = bad.any(-1)
    rows = bad.reshape(bad.shape[0], -1).any(1)
    row_list = tuple(torch.nonzero(rows).flatten()[:MAX_PLACES].tolist())
    if bad.dim() == 1:
        return row_list, ()
    columns = bad.reshape(-1, bad.shape[-1]).any(0)
    return row_list, tuple(torch.nonzero(columns).flatten()[:MAX_PLACES].tolist())


def specimens(
    output: Tensor, shadow: Tensor | None, inputs: list[tuple[Tensor, Tensor | None]], wrong: Callable[[Tensor], Tensor]
) -> tuple[Specimen, ...]:
    """A few elements of `output` for which `wrong` is true, with what they were made from."""
    if output.is_complex() or output.numel() == 0:
        return ()
    positions = torch.nonzero(wrong(output))[:MAX_SPECIMENS].tolist()
    return tuple(_specimen(tuple(p), output, shadow, inputs) for p in positions)


def _specimen(
    position: tuple[int, ...], output: Tensor, shadow: Tensor | None, inputs: list[tuple[Tensor, Tensor | None]]
) -> Specimen:
    made_from = []
    for tensor, other in inputs:
        value = _value_at(tensor, output, position)
        if value is not None:
            made_from.append((value, None if other is None else _value_at(other, output, position)))
    return Specimen(
        position,
        float(output[position]),
        None if shadow is None or shadow.shape != output.shape else float(shadow[position]),
        tuple(made_from),
    )


def _value_at(tensor: Tensor, output: Tensor, position: tuple[int, ...]) -> float | None:
    """The element of an input that broadcasts to `position` of the output; None when the shapes do not broadcast."""
    if tensor.is_complex() or tensor.dim() > output.dim():
        return None
    offset = output.dim() - tensor.dim()
    index = []
    for dim, size in enumerate(tensor.shape):
        if size == output.shape[offset + dim]:
            index.append(position[offset + dim])
        elif size == 1:
            index.append(0)
        else:
            return None
    return float(tensor[tuple(index)])
