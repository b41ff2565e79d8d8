"""Histograms of the exponents of FP16 gradients, taken as backward passes the taps of a sweep.

Counted by the upper 16 bits of each float32: sign, exponent and seven bits of mantissa. That is one pass over the
gradient, exact in the exponent, and within 2^-8 of each element in the sums of squares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nanprobe.formats import format_named
from nanprobe.loss_scale.histograms import ACTIVATION, PARAMETER, ExponentHistogram, is_power_of_two
from nanprobe.precision.gradient_taps import GradientTaps

_BINS = 1 << 15  # upper half of a float32 without its sign
_MANTISSAS = 1 << 7
_BIAS = 127
_NOT_FINITE = 255 * _MANTISSAS  # from this bin on: Inf and NaN


def _squares() -> np.ndarray[Any, np.dtype[np.float64]]:
    """The square of each bin's middle value, in float64; 0 where it is not finite."""
    upper = np.arange(_BINS, dtype=np.uint32)
    upper[_NOT_FINITE:] = 0
    middle = ((upper << 16) | 0x8000).view(np.float32).astype(np.float64)
    return middle * middle


_SQUARES = _squares()


@dataclass(slots=True)
class _Seen:
    """A gradient that passed a tap."""

    name: str
    layer: str
    kind: str
    counts: Any  # int64[_BINS], NumPy on the CPU, a tensor on a device
    abs_max: Any
    numel: int


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
        return [_histogram(s, step, self._loss_scale) for s in _on_host(seen)]

    def overflows(self, histograms: list[ExponentHistogram]) -> bool:
        """Whether rounding would have made one of these gradients infinite."""
        return any(h.nonfinite or self._format.overflows(h.abs_max / self._to_power_of_two) for h in histograms)

    def _describe(self, op: str, role: str, tensor: Tensor) -> _Key:
        """The key of a tensor that passes a tap forward; the same tensor gets the same key in every step."""
        name = self._parameter_name(tensor) if tensor.is_leaf and tensor.requires_grad else None
        if name is not None:
            return _Key(name, name.rpartition(".")[0], PARAMETER)
        layer = self._module_name() or ""
        label = f"{layer}:{op.removeprefix('aten.')}.{role}"
        count = self._met[label] = self._met.get(label, 0) + 1
        return _Key(label if count == 1 else f"{label}#{count}", layer, ACTIVATION)

    def _look(self, key: _Key, gradient: Tensor) -> None:
        """A gradient passes its tap in backward."""
        gradient = gradient.detach()
        if gradient.numel() == 0 or gradient.dtype is not torch.float32:
            return
        if self._to_power_of_two != 1.0:
            gradient = gradient * self._to_power_of_two
        count = _count_on_host if gradient.device.type == "cpu" else _count_on_device
        counts, abs_max = count(gradient.contiguous())
        self._seen.append(_Seen(key.name, key.layer, key.kind, counts, abs_max, gradient.numel()))


def _count_on_host(gradient: Tensor) -> tuple[Any, float]:
    values = gradient.numpy().reshape(-1)
    upper = values.view(np.uint16)[1::2] & 0x7FFF
    counts = np.bincount(upper, minlength=_BINS)
    low, high = torch.aminmax(gradient)
    return counts, max(-float(low), float(high))


def _count_on_device(gradient: Tensor) -> tuple[Tensor, Tensor]:
    upper = (gradient.view(torch.int32).reshape(-1) >> 16) & 0x7FFF
    counts = torch.zeros(_BINS, dtype=torch.int32, device=gradient.device)
    counts.scatter_add_(0, upper.long(), torch.ones((), dtype=torch.int32, device=gradient.device).expand(upper.shape))
    low, high = torch.aminmax(gradient)
    return counts, torch.maximum(-low, high)


def _on_host(seen: list[_Seen]) -> list[_Seen]:
    """Brings what lies on a device over, all of it in one transfer."""
    away = [s for s in seen if isinstance(s.counts, Tensor)]
    if away:
        counts = torch.stack([s.counts for s in away]).cpu().numpy()
        largest = torch.stack([s.abs_max for s in away]).tolist()
        for s, row, value in zip(away, counts, largest, strict=True):
            s.counts, s.abs_max = row.astype(np.int64), value
    return seen


def _histogram(seen: _Seen, step: int, loss_scale: float) -> ExponentHistogram:
    counts = seen.counts
    zeros = int(counts[0]) if seen.numel else 0
    nonfinite = int(counts[_NOT_FINITE:].sum())
    finite = counts.copy()
    finite[0] = 0  # bin 0 holds 0 and the smallest subnormals, below 2^-133: as good as 0 at every loss scale
    finite[_NOT_FINITE:] = 0
    by_exponent = finite.reshape(-1, _MANTISSAS).sum(axis=1)
    squares = (finite * _SQUARES).reshape(-1, _MANTISSAS).sum(axis=1)
    used = np.flatnonzero(by_exponent)
    first, last = (int(used[0]), int(used[-1])) if used.size else (0, -1)
    finite_max = seen.abs_max if nonfinite == 0 else _finite_max(by_exponent)
    return ExponentHistogram(
        name=seen.name,
        layer=seen.layer,
        kind=seen.kind,
        step=step,
        loss_scale=loss_scale,
        offset=first - _BIAS,
        counts=tuple(int(n) for n in by_exponent[first : last + 1]),
        sums_of_squares=tuple(float(v) for v in squares[first : last + 1]),
        zeros=zeros,
        nonfinite=nonfinite,
        abs_max=float(finite_max),
    )


def _finite_max(by_exponent: Any) -> float:
    used = np.flatnonzero(by_exponent)
    return float(2.0 ** (int(used[-1]) + 1 - _BIAS)) if used.size else 0.0
