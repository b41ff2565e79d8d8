"""Keeping the raw FP16 stage going after its weights broke.

Adam's eps of 1e-8 is 0 in FP16, so the first update can already make a weight Inf. That is recorded once; the weights
are put back, and from then on the optimizer works on FP32 copies whose rounded values the model sees, so that the
stage still shows the gradients of all its steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from nanprobe.precision.reduction import abs_max


class Containment:
    """FP32 master weights for the raw stage, once it needs them.

    Args:
        round_: rounds a tensor to the stage's grid, in place.
    """

    def __init__(self, round_: Callable[[Tensor], object]) -> None:
        self._round = round_
        self._masters: dict[int, Tensor] = {}
        self.since: int | None = None  # the step whose update broke the weights

    @torch.no_grad()
    def before_update(self, parameters: Sequence[Tensor]) -> None:
        """Remembers the weights; once contained, hands the optimizer the FP32 ones."""
        for p in parameters:
            if self.since is None or id(p) not in self._masters:
                self._masters[id(p)] = p.detach().clone()
            else:
                p.copy_(self._masters[id(p)])

    @torch.no_grad()
    def after_update(self, parameters: Sequence[Tensor], optimizer: Optimizer, step: int) -> list[float]:
        """Looks at the weights and puts them back when they broke; their largest magnitudes as the update left them."""
        figures = abs_max(parameters).read()
        if self.since is None and not all(math.isfinite(v) for v in figures):
            self.since = step
            # Moments computed in FP16 are as broken as the weights were: start them afresh.
            optimizer.state.clear()
            for p in parameters:
                p.copy_(self._masters[id(p)])
        elif self.since is not None:
            for p in parameters:
                self._masters[id(p)].copy_(p)
                self._round(p)
        return figures
