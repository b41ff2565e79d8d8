"""One stage under watch: everything the probe installs, and what it writes as the script runs.

`StageSession` only puts the parts together: the conduct carries the stage's policy out, the watchers say what
happened, the timeline counts the steps, and deep looks are switched on for the steps that were asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from nanprobe.patching import Patches
from nanprobe.plan import StageRequest
from nanprobe.precision.conduct import StageConduct
from nanprobe.precision.outside_amp import OwnAutocast
from nanprobe.precision.policy import Who, policy_for
from nanprobe.precision.requests import Requests
from nanprobe.probe.batches import BatchWatch
from nanprobe.probe.calls import CallWatch
from nanprobe.probe.deep import DeepLook
from nanprobe.probe.elements import ElementWatch
from nanprobe.probe.exponents import GradientSweep
from nanprobe.probe.identity import Identity
from nanprobe.probe.modules import ModuleWatch
from nanprobe.probe.names import ModelNames, Watched
from nanprobe.probe.schedule import DeepSchedule
from nanprobe.probe.sources import SourceFinder
from nanprobe.probe.steps import StepLedger
from nanprobe.probe.timeline import Timeline

__all__ = ["StageDone", "StageSession"]


class StageDone(BaseException):
    """Unwinds the user's script when the stage has all it needs; no `Exception`, so that no `except` swallows it."""


class StageSession:
    """Watches a stage from `with` to `finish`; every hook and patch is gone afterwards.

    Args:
        request: what to run and which steps to look at closely.
        write: takes each record as it is made.
    """

    def __init__(self, request: StageRequest, write: Callable[[object], None]) -> None:
        plan = request.plan
        self.policy = policy_for(request)
        self._write = write
        self._on_cuda = torch.cuda.is_available() and plan.device != "cpu"
        self._schedule = DeepSchedule(request)
        self._timeline = Timeline()
        self._sources = SourceFinder()
        self._names = ModelNames()
        half_weights = bool(request.facts.get("low_weights") or request.facts.get("asked_low"))
        self._sweep = (
            GradientSweep(self.policy.dtype, self._module_name, self._names.name_of) if request.sweep else None
        )
        self._conduct = StageConduct(
            self.policy, self._on_cuda, half_weights, plan.scaler,
            None if self._sweep is None else self._sweep.taps,
        )  # fmt: skip
        self._requests = Requests(self.policy.keep_low_requests, map_cuda=not self._on_cuda)
        self._batches = BatchWatch(self._timeline, write, self._begin_training)
        self._modules = ModuleWatch(self._timeline, self._enter_root, self._conduct.leave_forward)
        self._calls = CallWatch(
            self.policy,
            self._requests,
            self._timeline,
            self._sources,
            self,
            write,
            plan.scaler,
        )
        self._ledger = StepLedger(self._timeline, self._names, write)
        self._identity = Identity(self._timeline, self._names, self._modules, self._batches, self._conduct)
        self._elements = ElementWatch(request.sampled_elements) if request.sampled_elements else None
        self._deep: DeepLook | None = None
        self._training = False
        self._unfinished_forward = False  # a model was called for training, and no backward has followed yet
        self._low_weights: str | None = None
        self._optimizer_steps = 0  # to tell whether GradScaler left the optimizer alone
        self._stack = ExitStack()
        self._finished = False

    def __enter__(self) -> StageSession:
        try:
            self._install()
        except BaseException:
            self._stack.close()  # nothing stays behind of a session that could not be set up
            raise
        return self

    def _install(self) -> None:
        patches = Patches()
        self._stack.callback(patches.undo)
        for part in (self._requests, self._calls, self._batches):
            part.install(patches)
        _run_eagerly(patches)
        if self.policy.autocast is Who.NANPROBE:
            _allow_bce(patches, "cuda" if self._on_cuda else "cpu")
        for handle in (
            register_optimizer_step_pre_hook(self._before_optimizer),
            register_optimizer_step_post_hook(self._after_optimizer),
        ):
            self._stack.callback(handle.remove)
        self._stack.callback(self._modules.watch, False)
        self._conduct.install(self._stack)
        self._stack.callback(self._stop_deep)
        self._modules.watch(True)
        if self._schedule.from_the_start:
            self._training = True
            self._start_deep()

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def finish(self, error: BaseException | None = None) -> None:
        """The script has ended: writes what is still held, and what the script was seen to use."""
        if self._finished:
            return
        self._finished = True
        self._calls.give_loss_up()
        self._stop_deep()
        self._write({"type": "facts", "facts": self.facts()})

    def facts(self) -> dict[str, object]:
        """What the script was seen to use; later stages are run accordingly."""
        asked = self._calls.autocast_dtype
        containment = self._conduct.containment
        return {
            "steps": self._timeline.step,
            "backward_passes": self._timeline.backward_passes,
            "autocast_dtype": None if asked is None else str(asked).removeprefix("torch."),
            "scaler_enabled": self._calls.scaler_enabled,
            "low_weights": self._low_weights,
            "asked_low": None
            if self._requests.asked_low is None
            else str(self._requests.asked_low).removeprefix("torch."),
            "masters": any(w.master_of for w in self._names.watched),
            "mapped_cuda": self._requests.mapped_cuda,
            "as_written": self.policy.as_written
            and not (self.policy.dtype == "float32" and (asked or self._low_weights or self._requests.asked_low)),
            "dtype": self.policy.dtype,
            "autocast": self.policy.autocast.value,
            "scaler": self.policy.scaler.value,
            "unfinished_forward": self._unfinished_forward,
            "contained_update": None if containment is None else containment.since,
            "device": "cuda" if self._on_cuda else "cpu",
            "models": [self._names.module_name(m) for m in self._names.roots if next(m.parameters(), None) is not None],
        }

    def name_module(self, module: Module) -> str:
        """The module's path, once its root has been called."""
        return self._names.module_name(module)

    # What the watchers report.

    def optimizer_made(self, optimizer: Optimizer) -> None:
        """An optimizer exists: training is about to start, and steps are counted by it."""
        self._ledger.has_optimizer = True
        self._names.expect(optimizer, self._sources.frame())
        self._identity.forget()
        self._begin_training()

    def nonfinite_loss(self, tensor: Tensor) -> None:
        """The script has read a loss that is not finite, and may leave it at that."""
        if self._deep is not None:
            self._deep.note_loss(tensor)

    def before_backward(self, tensors: Any) -> Any:
        """Backward is called; returns what it is to start from."""
        self._begin_training()
        self._unfinished_forward = False
        self._calls.take_loss_further()
        self._refresh_names()
        self._meet(self._names.add_leaves(tensors, self._sources.frame()))
        self._ledger.note_loss(tensors)
        tensors = self._conduct.before_backward(tensors, self._ledger.gradients)
        if self._deep is not None:
            self._deep.note_loss(tensors)
        if self._sweep is not None:
            self._sweep.before_backward(self._loss_scale())
        return tensors

    def after_backward(self, tensors: Any, failed: bool) -> None:
        """Backward has returned, or raised."""
        if failed:
            return
        if self._sweep is not None:
            self._write_histograms(self._sweep)
        if self._elements is not None:
            self._elements.note_backward(self._names.watched)
        if self._deep is not None:
            trained = [w for w in self._names.watched if w.master_of is None]
            self._deep.note_gradients(trained, self._timeline.backward_in_step - 1)
        self._ledger.measure(self._calls.scaler, self._conduct.loss_scale)
        skip = self._conduct.after_backward(self._ledger.gradients, self._ledger.gradient_figures)
        if skip and self._timeline.optimizer_depth:  # a closure: the optimizer reads the gradients next
            self._conduct.hold_back([w.tensor for w in self._names.watched])
        if not self._ledger.has_optimizer:
            self._end_step(skipped=False)

    @property
    def _watches_forward(self) -> bool:
        return self._conduct.watches_forward or self._sweep is not None

    def _write_histograms(self, sweep: GradientSweep) -> None:
        histograms = sweep.after_backward(self._timeline.step)
        for histogram in histograms:
            self._write({"type": "histogram", **histogram.to_plain()})
        # Gradients were kept from rounding: where one would have overflowed, the scaler must see it all the same.
        gradient = next((g for g in self._ledger.gradients() if g.layout == torch.strided and g.numel()), None)
        if gradient is not None and sweep.overflows(histograms):
            # No view makes a channels-last gradient flat.
            gradient[(0,) * gradient.dim()].fill_(float("inf"))

    def _loss_scale(self) -> float:
        scale = getattr(self._calls.scaler, "_scale", None)
        return float(scale) if scale is not None else self._conduct.loss_scale or 1.0

    def _module_name(self) -> str | None:
        """Path of the running module, "" for a root whose parameters have no prefix either."""
        name, module = self._identity.module_name(), self._modules.innermost
        return "" if module in self._names.roots and name == type(module).__name__ else name

    def scaler_step(self, scaler: GradScaler, optimizer: Optimizer, original: Callable[[], Any]) -> Any:
        """GradScaler.step: runs it, and sees whether it left the optimizer alone."""
        before = self._optimizer_steps
        self._ledger.place = self._sources.here()
        result = original()
        if self._optimizer_steps == before:
            self._meet_optimizer(optimizer)
            self._end_step(skipped=True)
        return result

    def _enter_root(self, module: Module, args: Any) -> Any:
        if not self._names.is_known(module):
            self._names.add_root(module, self._sources.frame())
            self._ledger.note_buffers()
            self._identity.forget()
        self._timeline.forward()
        self._batches.note_given(args)
        self._calls.give_loss_up()
        self._unfinished_forward = self._training and module.training and torch.is_grad_enabled()
        if self._watches_forward:
            self._refresh_names()
        return self._conduct.enter_forward(args, next(module.parameters(), None) is not None)

    # Optimizer hooks.

    def _before_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._timeline.optimizer_depth += 1
        if self._timeline.optimizer_depth > 1:  # an optimizer that wraps another
            return
        self._begin_training()
        label = self._meet_optimizer(optimizer)
        self._calls.note("optimizer.step", optimizer=label, autocast=self._calls.autocast_on())
        self._ledger.place = self._sources.here()
        if self._timeline.backward_in_step == 0:  # gradients that did not come from `backward`
            self._ledger.measure(self._calls.scaler, None)
        masters = [w for w in self._names.watched if w.master_of is not None]
        if masters:
            self._ledger.measure_masters()
            if self._deep is not None:
                self._deep.note_gradients(masters)
        self._conduct.before_update(_parameters(optimizer), self._ledger.gradients_finite)
        if self._deep is not None:
            self._deep.before_update([w for w in self._names.watched if w.optimizer == label])

    def _after_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._timeline.optimizer_depth -= 1
        if self._timeline.optimizer_depth:
            return
        self._optimizer_steps += 1
        if self._deep is not None:
            self._deep.after_update()
        skipped = self._conduct.after_update(_parameters(optimizer), optimizer, self._timeline.step)
        self._end_step(skipped)

    def _meet_optimizer(self, optimizer: Optimizer) -> str:
        label = self._calls.optimizer_label(optimizer)
        self._names.add_optimizer(optimizer, label)
        self._refresh_names()
        self._ledger.note_optimizer(optimizer, label)
        return label

    def _end_step(self, skipped: bool) -> None:
        ended = self._timeline.step
        broken = self._ledger.end_step(skipped)
        if self._elements is not None:
            for update in self._elements.end_step(ended, self._names.watched):
                self._write({"type": "element_update", **asdict(update)})
        self._conduct.end_step()
        if self._deep is not None:
            deep, self._deep = self._deep, None
            self._write(deep.finish(ended, self._ledger.loss_scale))
        self._identity.forget()
        if (broken and not self.policy.rounding) or not self._schedule.wanted(ended + 1):
            raise StageDone
        if self._schedule.is_deep(ended + 1):
            self._start_deep()
        else:
            self._modules.watch(self._watches_forward)

    def _begin_training(self) -> None:
        if self._training:
            return
        self._training = True
        if self._schedule.is_deep(0):
            self._start_deep()

    def _start_deep(self) -> None:
        self._deep = DeepLook(
            self._identity, self._sources, self.policy.low_precision, self._schedule.rerun, self._conduct.pause
        )
        self._identity.forget()
        self._modules.watch(True)
        self._deep.start()

    def _stop_deep(self) -> None:
        if self._deep is not None:
            deep, self._deep = self._deep, None
            self._write(deep.finish(self._timeline.step, self._ledger.loss_scale))

    def _refresh_names(self) -> None:
        self._meet(self._names.refresh(self._sources.frame()))

    def _meet(self, new: list[Watched]) -> None:
        if not new:
            return
        watched = self._names.watched
        self._low_weights = next(filter(None, (self._requests.low_dtype(w.tensor) for w in watched)), None)
        self._write(self._names.infos(watched))
        self._identity.forget()
        for w in new:
            self._conduct.start_parameter(w.tensor)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.is_floating_point()]


def _run_eagerly(patches: Patches) -> None:
    """torch.compile hands the model back as it is: a fused kernel has no operations to look at."""

    def compile_(model: Any = None, **kwargs: Any) -> Any:
        if model is None:
            return lambda function: function
        if isinstance(model, Module):
            object.__setattr__(model, "_orig_mod", model)
        return model

    patches.wrap(torch, "compile", lambda original: compile_)
    patches.wrap(Module, "compile", lambda original: lambda module, *a, **k: None)


def _allow_bce(patches: Patches, device_type: str) -> None:
    """BCELoss runs in FP32 under an autocast that the script did not ask for: to refuse it would be our doing."""

    def allowing(original: Callable[..., Any]) -> Callable[..., Any]:
        def binary_cross_entropy(input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            with OwnAutocast(device_type, enabled=False):
                result: Tensor = original(input.float(), target.float(), *args, **kwargs)
            return result

        return binary_cross_entropy

    patches.wrap(torch.nn.functional, "binary_cross_entropy", allowing)
