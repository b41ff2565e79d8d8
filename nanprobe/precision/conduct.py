"""Carrying a stage's policy out: what is switched on and off around the parts of a training step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
import torch.utils._python_dispatch as python_dispatch
from torch import Tensor
from torch.optim import Optimizer

from nanprobe.formats import format_named
from nanprobe.plan import ScalerSettings
from nanprobe.precision.autocast import cuda_autocast_on_cpu
from nanprobe.precision.containment import Containment
from nanprobe.precision.gradient_taps import GradientTaps, tapped_autocast
from nanprobe.precision.half_compute import HalfComputeMode
from nanprobe.precision.outside_amp import OutsideAutocast, OutsideScaler, in_float32
from nanprobe.precision.policy import StagePolicy, Who
from nanprobe.precision.rounding import RoundingMode, round_to_grid_
from nanprobe.records import StageName


class StageConduct:
    """Autocast, scaling and rounding that nanprobe puts around the script; each part does nothing where the policy
    does not ask for it.

    Args:
        policy: what to carry out.
        on_cuda: the stage runs on a GPU, whose FP16 needs no emulation.
        half_weights: the script holds FP16 or bf16 weights, whose arithmetic a CPU is slow at.
        settings: of nanprobe's own scaler.
        taps: look at every gradient that would be FP16, and leave it unrounded.
    """

    def __init__(
        self,
        policy: StagePolicy,
        on_cuda: bool,
        half_weights: bool,
        settings: ScalerSettings,
        taps: GradientTaps | None = None,
    ) -> None:
        self.policy = policy
        self._taps = taps
        self._on_cuda = on_cuda
        self._half_weights = half_weights
        self._format = format_named(policy.dtype)
        self._rounding = RoundingMode(self._format) if policy.rounding else None
        self.containment = Containment(self.round_) if policy.rounding else None
        self._autocast: OutsideAutocast | None = None
        self.scaler = OutsideScaler(settings) if policy.scaler is Who.NANPROBE else None
        self._on_grid = False  # numbers are on the stage's grid now, also while rounding pauses for the re-check
        self._step_ended = False
        self._held_back: list[tuple[Tensor, Tensor]] = []  # gradients hidden from an optimizer whose step is skipped

    @property
    def watches_forward(self) -> bool:
        """Something is to be switched on when a model is called."""
        return self._rounding is not None or self.policy.autocast is Who.NANPROBE

    @property
    def loss_scale(self) -> float | None:
        """The scale put on by nanprobe, where it scales."""
        return None if self.scaler is None else self.scaler.scale

    def install(self, stack: ExitStack) -> None:
        """Switches on what holds for the whole stage; `stack` switches it off."""
        if self.policy.stage is StageName.FP32:
            stack.enter_context(_without_tf32())
        elif self._taps is not None:
            stack.enter_context(tapped_autocast(self._taps, "cuda" if self._on_cuda else "cpu"))
        elif not self._on_cuda:
            stack.enter_context(cuda_autocast_on_cpu())
            if self._half_weights and self.policy.keep_low_requests:
                stack.enter_context(HalfComputeMode())
        if self._rounding is not None:
            self._rounding.enabled = False
            stack.enter_context(self._rounding)
        if self.policy.autocast is Who.NANPROBE:
            self._autocast = OutsideAutocast("cuda" if self._on_cuda else "cpu", getattr(torch, self.policy.dtype))
            stack.callback(self._autocast.leave)

    def grid(self, tensor: Tensor) -> str:
        """The format a tensor's numbers are in now."""
        if self._on_grid and tensor.dtype == torch.float32:
            return self.policy.dtype
        return str(tensor.dtype).removeprefix("torch.")

    def enter_forward(self, args: Any, has_parameters: bool = True) -> Any:
        """A model is called; its inputs on the stage's grid, as copies, or None to leave them alone."""
        if self._autocast is not None and (has_parameters or not self.policy.narrow):
            self._autocast.enter()
        if self._rounding is None:
            return None
        self._rounding.enabled = self._on_grid = True
        return tuple(self._rounded_copy(a) for a in args)

    def leave_forward(self, output: Any) -> Any:
        """A model has returned; what to return in its place, or None for the same.

        What follows an evaluation is not part of a step's forward.
        """
        if self._autocast is None:
            return None
        narrow = self.policy.narrow and self._autocast.is_on
        if narrow or not torch.is_grad_enabled():
            self._autocast.leave()
        return in_float32(output) if narrow else None

    def before_backward(self, tensors: Any, gradients: Callable[[], list[Tensor]]) -> Any:
        """Backward is called; what it is to start from."""
        if self._autocast is not None:
            self._autocast.leave()
        if self.scaler is None:
            return tensors
        if self._step_ended:  # not at the step's end: several optimizers may step after one backward
            self._step_ended = False
            self.scaler.end_step()
        self.scaler.before_backward(gradients())
        return self.scaler.scaled(tensors)

    def after_backward(self, gradients: Callable[[], list[Tensor]], figures: Callable[[], list[float]]) -> bool:
        """Backward has returned; True when a scaled gradient is not finite and the step must be skipped."""
        if self.scaler is None:
            return False
        self.scaler.after_backward(gradients(), figures())
        return self.scaler.found_nonfinite

    def before_update(self, parameters: Sequence[Tensor], gradients_finite: Callable[[], bool]) -> None:
        """The optimizer is about to step."""
        contained = self.containment is not None and self.containment.since is not None
        overflowed = self.scaler is not None and self.scaler.found_nonfinite
        if overflowed or (contained and not gradients_finite()):
            self.hold_back(parameters)
        if self.containment is not None:
            with without_modes():
                self.containment.before_update(parameters)
        if self._rounding is not None:
            self._rounding.in_update = True
            self._rounding.enabled = self._on_grid = self._on_grid and not contained

    def after_update(self, parameters: Sequence[Tensor], optimizer: Optimizer, step: int) -> bool:
        """The optimizer has stepped; True when it was made to skip."""
        if self._rounding is not None:
            self._rounding.in_update = False
        skipped = bool(self._held_back)
        self._give_back()
        if self.containment is not None:
            with without_modes():
                self.containment.after_update(parameters, optimizer, step)
        return skipped

    def end_step(self) -> None:
        """The step is over."""
        self._step_ended = True
        if self._rounding is not None:
            self._rounding.enabled = self._on_grid = False

    def hold_back(self, parameters: Sequence[Tensor]) -> None:
        """Hides gradients, so that an optimizer leaves the parameters alone."""
        for p in parameters:
            if p.grad is not None:
                self._held_back.append((p, p.grad))
                p.grad = None

    def start_parameter(self, tensor: Tensor) -> None:
        """A parameter is met for the first time: brings it to the stage's grid."""
        if self._rounding is not None and tensor.is_floating_point():
            with without_modes(), torch.no_grad():
                self.round_(tensor.data)

    def round_(self, tensor: Tensor) -> None:
        """Rounds to the stage's grid, in place."""
        round_to_grid_(tensor, self._format)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """No rounding in here: the FP32 re-check is running."""
        if self._rounding is None:
            yield
            return
        enabled, self._rounding.enabled = self._rounding.enabled, False
        try:
            yield
        finally:
            self._rounding.enabled = enabled

    def _rounded_copy(self, value: Any) -> Any:
        # The script's own tensors stay as they are; one that needs a gradient must stay the same tensor.
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.requires_grad:
            return value
        if value.layout != torch.strided:
            return value
        copy = value.detach().clone()
        self.round_(copy)
        return copy

    def _give_back(self) -> None:
        for p, grad in self._held_back:
            if p.grad is None:
                p.grad = grad
        self._held_back.clear()


def without_modes() -> AbstractContextManager[Any]:
    """No dispatch mode sees what happens in here."""
    return python_dispatch._disable_current_modes()


@contextmanager
def _without_tf32() -> Iterator[None]:
    """TF32 keeps 10 bits of mantissa: not what the fp32 stage is for."""
    cudnn = torch.backends.cudnn
    matmul = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with cudnn.flags(cudnn.enabled, cudnn.benchmark, deterministic=cudnn.deterministic, allow_tf32=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = matmul
