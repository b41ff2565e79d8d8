"""The largest magnitude of many tensors at once: one fused reduction, one transfer to the host.

NaN and Inf come through: a NaN element makes the figure NaN, an infinite one makes it Inf.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import cast

import torch
import torch.utils._python_dispatch as python_dispatch
from torch import Tensor
from torch._utils import _flatten_dense_tensors

from nanprobe.precision.views import as_real

# On the CPU, tensors up to this size are laid side by side, so that a thousand biases cost one reduction and not a
# thousand; copying a larger one would cost more than the call it saves.
_SMALL = 4096


class Pending:
    """Figures on their way to the host: ready at once on the CPU, when the stream gets there on an accelerator."""

    def __init__(self, figures: list[tuple[list[int], Tensor]], count: int) -> None:
        self._figures = figures
        self._count = count

    def read(self) -> list[float]:
        """The figures, in the order the tensors were given; waits for the device if it has to."""
        values = [0.0] * self._count
        for positions, figures in self._figures:
            for position, value in zip(positions, figures.tolist(), strict=True):
                values[position] = value
        return values


@torch.no_grad()
def abs_max(tensors: Sequence[Tensor]) -> Pending:
    """Starts measuring; any shapes, any float dtypes, dense or sparse. An empty tensor counts as 0.

    No dispatch mode sees it: measuring is no part of the run.
    """
    with python_dispatch._disable_current_modes():
        return _start(tensors)


def _start(tensors: Sequence[Tensor]) -> Pending:
    groups: dict[torch.device, list[tuple[int, Tensor]]] = defaultdict(list)
    for position, tensor in enumerate(tensors):
        real = as_real(tensor)
        if real.element_size() == 1:
            real = real.float()  # the float8 formats have next to no kernels
        if real.numel():
            groups[real.device].append((position, real))
    figures: list[tuple[list[int], Tensor]] = []
    for device, members in groups.items():
        figures += _on_cpu(members) if device.type == "cpu" else [_on_accelerator(members)]
    return Pending(figures, len(tensors))


def _on_cpu(members: list[tuple[int, Tensor]]) -> list[tuple[list[int], Tensor]]:
    alike: dict[tuple[int, torch.dtype], list[tuple[int, Tensor]]] = defaultdict(list)
    figures: list[tuple[list[int], Tensor]] = []
    single: list[tuple[int, Tensor]] = []
    for position, tensor in members:
        if tensor.numel() <= _SMALL:
            alike[(tensor.numel(), tensor.dtype)].append((position, tensor))
        else:
            single.append((position, tensor))
    for (numel, _), group in alike.items():
        if len(group) == 1:
            single += group
            continue
        rows = _flatten_dense_tensors([t for _, t in group]).view(len(group), numel)
        figures.append(([p for p, _ in group], _largest(*torch.aminmax(rows, dim=1)).double()))
    if single:
        ends = [torch.aminmax(t) for _, t in single]
        low = torch.stack([e.min.double() for e in ends])
        high = torch.stack([e.max.double() for e in ends])
        figures.append(([p for p, _ in single], _largest(low, high)))
    return figures


def _largest(low: Tensor, high: Tensor) -> Tensor:
    return torch.maximum(high, -low)  # NaN comes through


def _on_accelerator(members: list[tuple[int, Tensor]]) -> tuple[list[int], Tensor]:
    by_dtype: dict[torch.dtype, list[tuple[int, Tensor]]] = defaultdict(list)
    for position, tensor in members:
        by_dtype[tensor.dtype].append((position, tensor))
    positions: list[int] = []
    norms: list[Tensor] = []
    for members_alike in by_dtype.values():
        positions += [p for p, _ in members_alike]
        group = [t for _, t in members_alike]
        norms += [n if n.dtype == torch.float64 else n.float() for n in torch._foreach_norm(group, float("inf"))]
    wide = any(n.dtype == torch.float64 for n in norms)
    figures = torch.stack([n.double() for n in norms] if wide else norms)
    if figures.device.type == "cuda":
        # The copy runs beside whatever the device does next; the host waits for it only when the figures are read.
        host = torch.empty(figures.shape, dtype=figures.dtype, pin_memory=True)
        host.copy_(figures, non_blocking=True)
        return positions, _Arriving.make(host)
    return positions, figures


class _Arriving:
    """A pinned tensor that a copy is still filling."""

    def __init__(self, host: Tensor) -> None:
        self._host = host
        self._event = torch.cuda.Event()
        self._event.record()

    @staticmethod
    def make(host: Tensor) -> Tensor:
        return cast(Tensor, _Arriving(host))

    def tolist(self) -> list[float]:
        self._event.synchronize()
        return list(self._host.tolist())
