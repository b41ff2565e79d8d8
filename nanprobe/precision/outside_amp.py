"""Autocast and loss scaling put around a script that has none, from outside.

The overflow check is on scaled gradients, before unscaling; after backward the gradients are unscaled, so that
clipping and accumulation in the script stay right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from nanprobe.plan import ScalerSettings

DEFAULT_INIT_SCALE = 65536.0  # Source: torch.amp.GradScaler
DEFAULT_GROWTH_INTERVAL = 2000  # Source: torch.amp.GradScaler
DEFAULT_GROWTH_FACTOR, DEFAULT_BACKOFF_FACTOR = 2.0, 0.5  # Source: torch.amp.GradScaler


class OwnAutocast(torch.autocast):
    """Told apart from the script's own contexts, which the stage's policy may switch off."""

    _nanprobe_own = True


class OutsideAutocast:
    """Autocast from a model's forward to backward, or for the forward alone."""

    def __init__(self, device_type: str, dtype: torch.dtype) -> None:
        self._device_type = device_type
        self._dtype = dtype
        self._context: Any = None

    @property
    def is_on(self) -> bool:
        """Between `enter` and `leave`."""
        return self._context is not None

    def enter(self) -> None:
        """Autocast is on from here; does nothing when it is."""
        if self._context is None:
            self._context = OwnAutocast(self._device_type, self._dtype, enabled=True)
            self._context.__enter__()

    def leave(self) -> None:
        """Autocast is off from here; cached weight casts are dropped."""
        if self._context is not None:
            context, self._context = self._context, None
            context.__exit__(None, None, None)


def in_float32(output: Any) -> Any:
    """A model's output with its FP16 and bf16 tensors in float32, whatever holds them; None when there are none."""
    low = [t for t in pytree.tree_leaves(output) if isinstance(t, Tensor) and t.dtype in _LOW]
    if not low:
        return None
    return pytree.tree_map_only(Tensor, lambda t: t.to(torch.float32) if t.dtype in _LOW else t, output)


_LOW = (torch.float16, torch.bfloat16)


class OutsideScaler:
    """GradScaler's rule, applied by nanprobe: lower after an overflow, raise after N clean steps."""

    def __init__(self, settings: ScalerSettings) -> None:
        self.scale = settings.init_scale or DEFAULT_INIT_SCALE
        self._growth_interval = settings.growth_interval or DEFAULT_GROWTH_INTERVAL
        self._growth_factor = settings.growth_factor or DEFAULT_GROWTH_FACTOR
        self._backoff_factor = settings.backoff_factor or DEFAULT_BACKOFF_FACTOR
        self._clean_steps = 0
        self.found_nonfinite = False

    def scaled(self, tensors: Any) -> Any:
        """What backward starts from, times the scale.

        The scale is an FP32 tensor, as GradScaler's is: an FP16 loss becomes FP32 by it, where a plain number would
        make it Inf.
        """
        if isinstance(tensors, Tensor):
            return tensors * torch.tensor(self.scale, device=tensors.device)
        return [t * torch.tensor(self.scale, device=t.device) for t in tensors]

    def before_backward(self, gradients: Sequence[Tensor]) -> None:
        """Brings gradients of earlier micro-batches back to the scale the new ones will have."""
        _multiply(gradients, self.scale)

    def after_backward(self, gradients: Sequence[Tensor], abs_max: Sequence[float]) -> None:
        """Unscales; `abs_max` are the scaled gradients' figures, in which a NaN or Inf shows."""
        if not all(math.isfinite(v) for v in abs_max):
            self.found_nonfinite = True
        _multiply(gradients, 1.0 / self.scale)

    def end_step(self) -> None:
        """GradScaler.update."""
        if self.found_nonfinite:
            self.scale *= self._backoff_factor
            self._clean_steps = 0
        else:
            self._clean_steps += 1
            if self._clean_steps == self._growth_interval:
                if (
                    self.scale * self._growth_factor <= torch.finfo(torch.float32).max
                ):  # as GradScaler: never an infinite scale
                    self.scale *= self._growth_factor
                self._clean_steps = 0
        self.found_nonfinite = False


def _multiply(gradients: Sequence[Tensor], factor: float) -> None:
    dense = [g for g in gradients if g.layout == torch.strided]
    if dense:
        torch._foreach_mul_(dense, factor)
    for gradient in gradients:
        if gradient.layout != torch.strided:
            gradient.mul_(factor)
