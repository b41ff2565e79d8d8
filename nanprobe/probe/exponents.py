"""Histograms of the exponents of FP16 gradients, taken as backward passes the taps of a sweep.

Exponents, exact powers of two, zeros and the largest magnitude are counted exactly. Large gradients are counted by the
upper 16 bits of each float32 (sign, exponent and seven bits of mantissa): that is one pass over the gradient, and their
sums of squares take each element as the middle of its bin, which is within 2^-8 of it. Magnitudes below 2^-126, which
no loss scale here lifts into any number format, may count as zeros.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nanprobe.formats import format_named
from nanprobe.loss_scale.histograms import ACTIVATION, PARAMETER, ExponentHistogram, is_power_of_two
from nanprobe.precision.gradient_taps import GradientTaps

_EXPONENTS = 256  # of a float32, biased; the last one is Inf and NaN
_BIAS = 127
_MANTISSAS = 1 << 7  # bins an exponent
_BINS = _EXPONENTS * _MANTISSAS  # upper half of a float32 without its sign
_FRACTION = 0x7FFFFF  # bits of a float32's mantissa
_INFINITY = 0x7F800000
_SMALL = 1 << 14  # elements up to which counting each by itself is quicker than filling the bins
_CHUNK = 1 << 17  # elements counted at a time, so that what is made of them stays in the core's cache


def _squares() -> NDArray[np.float64]:
    """The square of each bin's middle value; 0 where it is not finite."""
    upper = np.arange(_BINS, dtype=np.uint32)
    upper[-_MANTISSAS:] = 0
    middle = ((upper << 16) | 0x8000).view(np.float32).astype(np.float64)
    return middle * middle


_SQUARES = _squares()


class _Scratch(threading.local):
    """Buffers of a thread, used again and again: fresh large allocations cost more than the counting."""

    def __init__(self) -> None:
        self.upper = torch.empty(_CHUNK, dtype=torch.int16)
        self.fraction = torch.empty(_CHUNK, dtype=torch.int32)


_SCRATCH = _Scratch()


@dataclass(slots=True)
class _Counts:
    """What was counted in a gradient; arrays have one entry a biased exponent."""

    elements: NDArray[np.int64]
    squares: NDArray[np.float64]
    powers: NDArray[np.int64]  # elements that are exactly a power of two; zeros and infinities too, which have no bits
    abs_max: float  # of finite elements


@dataclass(slots=True)
class _OnDevice:
    """The same while it is still on a device: all bins, then the powers."""

    bins: Tensor  # int32[_BINS + _EXPONENTS]
    abs_max: Tensor

    def brought_over(self, bins: NDArray[np.int64], abs_max: float) -> _Counts:
        """The counts, given what was transferred."""
        counts = _from_bins(bins[:_BINS], bins[_BINS:], abs_max)
        if counts.elements[-1]:  # the largest finite one is not known: its exponent's end stands for it
            used = np.flatnonzero(counts.elements[:-1])
            counts.abs_max = float(2.0 ** (int(used[-1]) + 1 - _BIAS)) if used.size else 0.0
        return counts


@dataclass(slots=True)
class _Seen:
    """A gradient that passed a tap."""

    key: _Key
    counts: _Counts | _OnDevice


@dataclass(slots=True)
class _Key:
    """What a tensor is, decided as it passes forward."""

    name: str
    layer: str
    kind: str


class GradientSweep:
    """Histograms of every gradient that would be in low precision, one set a backward pass.

    Args:
        dtype: the low precision, "float16" or "bfloat16".
        module_name: path of the module that is running.
        parameter_name: name of a parameter, by tensor; None for an activation.
    """

    def __init__(
        self,
        dtype: str,
        module_name: Callable[[], str | None],
        parameter_name: Callable[[Tensor], str | None],
    ) -> None:
        self.taps = GradientTaps(self._describe, self._look)
        self._format = format_named(dtype)
        self._module_name = module_name
        self._parameter_name = parameter_name
        self._met: dict[str, int] = {}
        self._seen: list[_Seen] = []
        self._loss_scale = 1.0
        self._to_power_of_two = 1.0

    def before_backward(self, loss_scale: float) -> None:
        """Backward starts; `loss_scale` is the factor in its gradients."""
        # A power of two moves exponents by whole numbers; any other scale would split the bins.
        nearest = loss_scale if is_power_of_two(loss_scale) else 2.0 ** round(float(np.log2(loss_scale)))
        self._loss_scale, self._to_power_of_two = nearest, nearest / loss_scale
        self._seen.clear()

    def after_backward(self, step: int) -> list[ExponentHistogram]:
        """The histograms of the pass that has ended."""
        seen, self._seen = self._seen, []
        self._met.clear()
        counted = _bring_over([s.counts for s in seen])
        return [_histogram(s.key, counts, step, self._loss_scale) for s, counts in zip(seen, counted, strict=True)]

    def overflows(self, histograms: list[ExponentHistogram]) -> bool:
        """Whether rounding would have made one of these gradients infinite."""
        return any(h.nonfinite or self._format.overflows(h.abs_max / self._to_power_of_two) for h in histograms)

    def _describe(self, op: str, role: str, tensor: Tensor) -> _Key:
        """The key of a tensor that passes a tap forward; the same tensor gets the same key in every step."""
        name = self._parameter_name(tensor) if tensor.is_leaf and tensor.requires_grad else None
        if name is not None:
            return _Key(name, name.rpartition(".")[0], PARAMETER)
        layer = self._module_name() or ""
        label = f"{layer}:{op.removeprefix('aten.')}.{role}".removeprefix(":")
        count = self._met[label] = self._met.get(label, 0) + 1
        return _Key(label if count == 1 else f"{label}#{count}", layer, ACTIVATION)

    def _look(self, key: _Key, gradient: Tensor) -> None:
        """A gradient passes its tap in backward."""
        gradient = gradient.detach()
        if gradient.numel() == 0 or gradient.dtype is not torch.float32:
            return
        if self._to_power_of_two != 1.0:
            gradient = gradient * self._to_power_of_two
        gradient = gradient.contiguous().view(-1)
        self._seen.append(_Seen(key, _count_on_host(gradient) if gradient.is_cpu else _count_on_device(gradient)))


def _count_on_host(gradient: Tensor) -> _Counts:
    """Counts a flat gradient."""
    if gradient.numel() <= _SMALL:
        return _count_one_by_one(gradient.numpy())
    parts = [_count_in_bins(chunk) for chunk in gradient.split(_CHUNK)]
    bins, powers = parts[0]
    for more_bins, more_powers in parts[1:]:
        bins += more_bins
        powers += more_powers
    counts = _from_bins(bins.numpy(), powers.numpy(), 0.0)
    finite = gradient[gradient.isfinite()] if counts.elements[-1] else gradient
    if finite.numel():
        low, high = torch.aminmax(finite)
        counts.abs_max = max(-float(low), float(high))
    return counts


def _count_one_by_one(values: NDArray[np.float32]) -> _Counts:
    bits = values.view(np.uint32) & np.uint32(0x7FFFFFFF)
    exponents = (bits >> 23).astype(np.intp)
    squares = values.astype(np.float64) ** 2
    largest = bits.max()
    if largest >= _INFINITY:
        squares[bits >= _INFINITY] = 0.0
        largest = bits[bits < _INFINITY].max(initial=0)
    return _Counts(
        elements=np.bincount(exponents, minlength=_EXPONENTS),
        squares=np.bincount(exponents, weights=squares, minlength=_EXPONENTS).astype(np.float64, copy=False),
        powers=np.bincount(exponents[(bits & _FRACTION) == 0], minlength=_EXPONENTS),
        abs_max=float(largest.view(np.float32)),
    )


def _count_in_bins(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Elements by the upper half of their bits, and powers of two by their exponent, int64[_BINS] and [_EXPONENTS]."""
    count, bits = gradient.numel(), gradient.view(torch.int32)
    # NumPy would make 64-bit indices first, PyTorch counts 16-bit ones: half the time.
    upper = torch.bitwise_and(gradient.view(torch.int16)[1::2], 0x7FFF, out=_SCRATCH.upper[:count])
    bins = torch.bincount(upper, minlength=_BINS)
    fraction = torch.bitwise_and(bits, _FRACTION, out=_SCRATCH.fraction[:count])
    whole = count - np.count_nonzero(fraction.numpy())
    if whole == int(bins[0]):  # only zeros, which are many behind a ReLU: nothing to pick out
        return bins, torch.zeros(_EXPONENTS, dtype=torch.int64)
    return bins, torch.bincount((bits[fraction == 0] >> 23) & 0xFF, minlength=_EXPONENTS)


def _count_on_device(gradient: Tensor) -> _OnDevice:
    bits = gradient.view(torch.int32)
    one = torch.ones((), dtype=torch.int32, device=gradient.device).expand(bits.shape)
    counts = torch.zeros(_BINS + _EXPONENTS, dtype=torch.int32, device=gradient.device)
    counts.scatter_add_(0, ((bits >> 16) & 0x7FFF).long(), one)
    counts.scatter_add_(0, _BINS + ((bits >> 23) & 0xFF).long(), ((bits & _FRACTION) == 0).int())
    low, high = torch.aminmax(gradient)
    return _OnDevice(counts, torch.maximum(-low, high))


def _from_bins(bins: NDArray[np.int64], powers: NDArray[np.int64], abs_max: float) -> _Counts:
    rows = bins.reshape(_EXPONENTS, _MANTISSAS)
    squares = (rows * _SQUARES.reshape(_EXPONENTS, _MANTISSAS)).sum(axis=1)
    elements = rows.sum(axis=1)
    powers = powers.copy()
    powers[0] = rows[0, 0]  # 0, and the subnormals that share its bin
    return _Counts(elements, squares, powers, abs_max)


def _bring_over(counts: list[_Counts | _OnDevice]) -> list[_Counts]:
    """Brings what lies on a device over, all of it in one transfer."""
    away = [c for c in counts if isinstance(c, _OnDevice)]
    if not away:
        return [c for c in counts if isinstance(c, _Counts)]
    largest = torch.stack([c.abs_max for c in away]).view(-1, 1).view(torch.int32)
    table = torch.cat([largest, torch.stack([c.bins for c in away])], dim=1).cpu().numpy()
    rows = iter(table)
    return [c if isinstance(c, _Counts) else _read_row(c, next(rows)) for c in counts]


def _read_row(counts: _OnDevice, row: NDArray[np.int32]) -> _Counts:
    return counts.brought_over(row[1:].astype(np.int64), float(row[:1].view(np.float32)[0]))


def _histogram(key: _Key, counts: _Counts, step: int, loss_scale: float) -> ExponentHistogram:
    zeros, nonfinite = int(counts.powers[0]), int(counts.elements[-1])
    elements = counts.elements[:-1].copy()
    elements[0] -= zeros
    powers = counts.powers.copy()
    powers[0] = 0
    used = np.flatnonzero(elements)
    first, last = (int(used[0]), int(used[-1])) if used.size else (0, -1)
    return ExponentHistogram(
        name=key.name,
        layer=key.layer,
        kind=key.kind,
        step=step,
        loss_scale=loss_scale,
        offset=first - _BIAS if used.size else 0,
        counts=tuple(elements[first : last + 1].tolist()),
        sums_of_squares=tuple(counts.squares[first : last + 1].tolist()),
        zeros=zeros,
        nonfinite=nonfinite,
        abs_max=counts.abs_max,
        powers=tuple(powers[first : last + 1].tolist()),
    )
