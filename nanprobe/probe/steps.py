"""The ledger of steps: measures gradients after backward and weights after the update, and writes one record a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from nanprobe.precision.conduct import without_modes
from nanprobe.precision.reduction import Pending, abs_max
from nanprobe.probe.names import ModelNames
from nanprobe.probe.timeline import Timeline
from nanprobe.records import Source, StepRecord

# With more parameters than this, reading every weight in every step would cost more than the gradients do; then they
# are read in every eighth step, and whenever a gradient or the loss is not finite.
_MANY = 256
_EVERY = 8


class StepLedger:
    """Figures of the step under way, and its record when it is over."""

    def __init__(self, timeline: Timeline, names: ModelNames, write: Callable[[object], None]) -> None:
        self._timeline = timeline
        self._names = names
        self._write = write
        self.has_optimizer = False
        self.place: Source | None = None
        self.loss_scale: float | None = None
        self._optimizer: Optimizer | None = None
        self._label: str | None = None
        self._loss_factor: float | None = None
        self._losses: list[Tensor] = []  # of every backward pass of the step
        self._owners: list[int] = []  # position in `watched` of each gradient measured
        self._pending: Pending | None = None
        self._figures: list[float] | None = None
        self._master_owners: list[int] = []
        self._master_figures: Pending | None = None
        self._outside_scale: float | None = None
        self._with_scale = False
        self._measured_losses = 0
        self._signed_losses: list[float] = []  # on a CPU, where reading them costs nothing
        self._infinite: set[str] = set()  # buffers that held Inf from the beginning, as masks do
        self._met_buffers: set[str] = set()

    def note_buffers(self) -> None:
        """A model is met: an Inf that its buffers hold already is meant."""
        new = [(n, b) for n, b in self._names.buffers() if n not in self._met_buffers]
        self._met_buffers.update(n for n, _ in new)
        values = abs_max([b for _, b in new]).read()
        self._infinite.update(n for (n, _), v in zip(new, values, strict=True) if math.isinf(v))

    def note_optimizer(self, optimizer: Optimizer, label: str) -> None:
        """This optimizer makes the step."""
        self._optimizer, self._label = optimizer, label

    def note_loss(self, tensors: Any) -> None:
        """Backward starts from these."""
        first = tensors if isinstance(tensors, Tensor) else next((t for t in tensors if isinstance(t, Tensor)), None)
        if first is None or first.numel() != 1:
            self._loss_factor = None
            return
        self._losses.append(first.detach())
        self._loss_factor = _last_factor(first)

    def gradients(self) -> list[Tensor]:
        """The gradients that exist now, sparse ones too."""
        return [w.tensor.grad for w in self._names.watched if w.tensor.grad is not None]

    def measure(self, scaler: GradScaler | None, outside_scale: float | None) -> None:
        """Starts reading every gradient, the loss and the scale: one pass, one transfer."""
        owners, tensors = [], []
        for position, w in enumerate(self._names.watched):
            grad = w.tensor.grad
            # A master copy gets its gradient from the script, after backward: what it holds now is the last step's.
            if grad is not None and w.master_of is None:
                owners.append(position)
                tensors.append(grad.detach())
        self._owners = owners
        self._measured_losses = len(self._losses)
        tensors += self._losses
        scale = getattr(scaler, "_scale", None) if scaler is not None else None
        self._with_scale = scale is not None
        if scale is not None:
            tensors.append(scale)
        self._outside_scale = outside_scale
        self._signed_losses = [float(x) for x in self._losses if x.device.type == "cpu"]
        self._pending = abs_max(tensors)
        self._figures = None

    def measure_masters(self) -> None:
        """Starts reading the gradients that the script has given its FP32 master copies; the optimizer steps next."""
        masters = [(k, w) for k, w in enumerate(self._names.watched) if w.master_of is not None]
        held = [(k, w.tensor.grad) for k, w in masters if w.tensor.grad is not None]
        self._master_owners = [k for k, _ in held]
        self._master_figures = abs_max([g.detach() for _, g in held])

    def gradient_figures(self) -> list[float]:
        """Largest magnitude of each gradient that was measured; waits for the device."""
        return self._read()[: len(self._owners)]

    def gradients_finite(self) -> bool:
        """Whether every gradient of the last backward was finite."""
        return all(math.isfinite(v) for v in self.gradient_figures())

    def _read(self) -> list[float]:
        if self._figures is None:
            self._figures = [] if self._pending is None else self._pending.read()
        return self._figures

    def end_step(self, skipped: bool) -> bool:
        """Writes the step's record; True when a weight is no longer finite and the run is beyond saving."""
        figures = self._read()
        grads: list[float | None] = [None] * len(self._names.watched)
        for position, value in zip(self._owners, figures, strict=False):
            grads[position] = value
        if self._master_figures is not None:
            for position, value in zip(self._master_owners, self._master_figures.read(), strict=True):
                grads[position] = value
        loss, self.loss_scale = self._loss_and_scale(figures)
        weights, bad_weights, bad_buffers = self._weights(figures)
        index = self._timeline.step
        record = StepRecord(
            index=index,
            backward_passes=self._timeline.backward_in_step,
            optimizer=self._label,
            loss=loss,
            loss_scale=self.loss_scale,
            skipped=skipped,
            grad_abs_max=tuple(grads),
            weight_abs_max=tuple(weights),
            nonfinite_weights=tuple(bad_weights),
            nonfinite_buffers=tuple(bad_buffers),
            learning_rates=_learning_rates(self._optimizer),
            source=self.place,
            nonfinite_settings=_nonfinite_settings(self._optimizer),
            loss_factor=self._loss_factor,
        )
        self._timeline.end_step()
        self._write(record)
        self._pending, self._figures, self._owners, self._losses = None, None, [], []
        self._loss_factor = None
        self._master_figures = None
        self._measured_losses, self._with_scale = 0, False
        self.place = None
        return bool(bad_weights or bad_buffers)

    def _loss_and_scale(self, figures: Sequence[float]) -> tuple[float | None, float | None]:
        rest = list(figures[len(self._owners) :])
        magnitudes, rest = rest[: self._measured_losses], rest[self._measured_losses :]
        scale = rest.pop(0) if self._with_scale and rest else self._outside_scale
        losses = self._signed_losses if len(self._signed_losses) == len(magnitudes) else magnitudes
        # Of several backward passes the last one counts, but for a loss that was not finite.
        loss = next((x for x in losses if not math.isfinite(x)), losses[-1] if losses else None)
        if loss is not None and scale and self._with_scale:
            loss /= scale  # GradScaler.scale came before backward; nanprobe's own scale is put on afterwards
        return loss, scale

    def _weights(self, figures: Sequence[float]) -> tuple[list[float | None], list[str], list[str]]:
        watched = self._names.watched
        suspicious = not all(math.isfinite(v) for v in figures)
        few = len(watched) <= _MANY
        if not (few or suspicious or self._timeline.step % _EVERY == 0):
            return [], [], []
        buffers = list(self._names.buffers())
        values = abs_max([w.tensor.detach() for w in watched] + [b for _, b in buffers]).read()
        weights: list[float | None] = list(values[: len(watched)])
        bad = [w.name for w, v in zip(watched, values, strict=False) if not math.isfinite(v)]
        by_buffer = zip(buffers, values[len(watched) :], strict=True)
        bad_buffers = [n for (n, _), v in by_buffer if math.isnan(v) or (math.isinf(v) and n not in self._infinite)]
        return weights, bad, bad_buffers


def _last_factor(loss: Tensor) -> float | None:
    """The constant of a product that the loss is, `loss * 256`; None for another operation, or a factor on a device.

    Read off the autograd node, which keeps the factor that it multiplies the gradient by.
    """
    node = loss.grad_fn
    if type(node).__name__ != "MulBackward0":
        return None
    with without_modes():
        for name in ("_saved_other", "_saved_self"):
            factor = getattr(node, name, None)
            if _is_plain_number(factor):
                return float(factor)
    return None


def _is_plain_number(value: object) -> TypeGuard[Tensor]:
    if not isinstance(value, Tensor) or value.requires_grad:
        return False
    return value.numel() == 1 and value.device.type == "cpu" and value.is_floating_point()


def _learning_rates(optimizer: Optimizer | None) -> tuple[float, ...]:
    if optimizer is None:
        return ()
    return tuple(float(g["lr"]) for g in optimizer.param_groups if "lr" in g)


def _nonfinite_settings(optimizer: Optimizer | None) -> tuple[str, ...]:
    """Hyper-parameters of an optimizer, the learning rate aside, that are NaN or Inf."""
    if optimizer is None:
        return ()
    found = [
        f"{key} = {number}"
        for group in optimizer.param_groups
        for key, value in group.items()
        if key not in ("params", "lr")
        for number in (value if isinstance(value, (tuple, list)) else (value,))
        if isinstance(number, float) and not math.isfinite(number)
    ]
    return tuple(dict.fromkeys(found))
