"""A few single weights, step by step: their gradient, the update, the weight before and after."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from nanprobe.loss_scale.result import WeightUpdate
from nanprobe.probe.names import Watched


class ElementWatch:
    """Follows the first `count` elements of every parameter that has a gradient.

    Costs one transfer for each parameter and step: for small models and short runs.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: dict[str, tuple[list[float], list[float]]] = {}  # gradients and weights after backward

    def note_backward(self, watched: Iterable[Watched]) -> None:
        """Backward is over; the loss scale is still in the gradients."""
        for w in watched:
            if w.tensor.grad is not None and w.tensor.grad.layout == torch.strided:
                self._held[w.name] = self._first(w.tensor.grad), self._first(w.tensor)

    def end_step(self, step: int, watched: Iterable[Watched]) -> list[WeightUpdate]:
        """The step is over, also when its update was skipped."""
        updates = []
        for w in watched:
            if w.name not in self._held or w.tensor.grad is None:
                continue
            gradients, before = self._held[w.name]
            rows = zip(gradients, self._first(w.tensor.grad), before, self._first(w.tensor), strict=False)
            for flat, (gradient, unscaled, old, new) in enumerate(rows):
                index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), w.tensor.shape))
                updates.append(WeightUpdate(w.name, index, step, gradient, unscaled, new - old, old, new))
        self._held.clear()
        return updates

    def _first(self, tensor: Tensor) -> list[float]:
        return tensor.detach().reshape(-1)[: self._count].tolist()
