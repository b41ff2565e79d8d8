"""The calls whose order AMP depends on, recorded as they happen."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.utils.clip_grad
from torch import Tensor
from torch.amp.autocast_mode import autocast
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from nanprobe.patching import Patches
from nanprobe.plan import ScalerSettings
from nanprobe.precision.policy import StagePolicy, Who
from nanprobe.precision.requests import Requests
from nanprobe.probe.sources import SourceFinder
from nanprobe.probe.timeline import Timeline
from nanprobe.records import CallRecord

MAX_CALLS = 20_000  # a run of thousands of micro-batches repeats itself long before this


class StepListener(Protocol):
    """Who is told of the calls that make up a step."""

    def optimizer_made(self, optimizer: Optimizer) -> None:
        """An optimizer was made."""

    def before_backward(self, tensors: Any) -> Any:
        """Backward is called; what it is to start from."""

    def after_backward(self, tensors: Any, failed: bool) -> None:
        """Backward has returned, or raised."""

    def nonfinite_loss(self, tensor: Tensor) -> None:
        """The script has read a loss that is not finite."""

    def scaler_step(self, scaler: GradScaler, optimizer: Optimizer, original: Callable[[], Any]) -> Any:
        """GradScaler.step is called; runs `original`."""


class CallWatch:
    """Patches the calls and keeps a record of each; also where the stage's policy meets autocast and GradScaler."""

    def __init__(
        self,
        policy: StagePolicy,
        requests: Requests,
        timeline: Timeline,
        sources: SourceFinder,
        listener: StepListener,
        write: Callable[[object], None],
        settings: ScalerSettings,
    ) -> None:
        self._policy = policy
        self._requests = requests
        self._timeline = timeline
        self._sources = sources
        self._listener = listener
        self._write = write
        self._settings = settings
        self._count = 0
        self._bad_loss_in: int | None = None  # the step in which the script last read a loss that is not finite
        self._bad_loss: CallRecord | None = None
        self._in_scaler_step = False
        self._made: list[weakref.ref[Optimizer]] = []
        self._optimizers: list[int] = []
        self._scalers: weakref.WeakKeyDictionary[GradScaler, int] = weakref.WeakKeyDictionary()
        self.scaler: GradScaler | None = None  # the one that last scaled a loss
        self.autocast_dtype: torch.dtype | None = None  # what the script's enabled autocast asked for
        self.scaler_enabled = False

    def install(self, patches: Patches) -> None:
        """Puts the patches in."""
        patches.wrap(torch.autograd, "backward", self._backward)
        patches.wrap(autocast, "__init__", self._autocast_init)
        patches.wrap(autocast, "__enter__", self._autocast_enter)
        patches.wrap(autocast, "__exit__", self._autocast_exit)
        for name in ("__init__", "scale", "unscale_", "step", "update"):
            patches.wrap(GradScaler, name, getattr(self, f"_scaler_{name.strip('_')}"))
        patches.wrap(GradScaler, "load_state_dict", self._scaler_load)
        patches.wrap(Optimizer, "load_state_dict", self._optimizer_load)
        patches.wrap(torch, "load", self._load)
        for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
            for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm"):
                patches.wrap(owner, name, partial(self._clip, name))
        patches.wrap(Optimizer, "__init__", self._optimizer_init)
        patches.wrap(Optimizer, "zero_grad", lambda original: self._plain("optimizer.zero_grad", original))
        patches.wrap(torch.nn.Module, "zero_grad", lambda original: self._plain("module.zero_grad", original))
        patches.wrap(LRScheduler, "step", lambda original: self._plain("lr_scheduler.step", original))
        for name in ("item", "__float__"):
            patches.wrap(Tensor, name, self._reading)
        for name in ("isnan", "isinf", "isfinite"):
            patches.wrap(torch, name, self._reading)
            patches.wrap(Tensor, name, self._reading)

    def note(self, name: str, **details: object) -> None:
        """Records a call."""
        self._count += 1
        if self._count > MAX_CALLS:
            return
        timeline = self._timeline
        self._write(CallRecord(timeline.step, timeline.backward_passes, name, self._sources.here(), details))

    def optimizer_number(self, optimizer: Optimizer) -> int:
        """A number for the optimizer, in the order they were met."""
        if id(optimizer) not in self._optimizers:
            self._optimizers.append(id(optimizer))
        return self._optimizers.index(id(optimizer))

    def optimizer_label(self, optimizer: Optimizer) -> str:
        """Class name, numbered when there are several."""
        number = self.optimizer_number(optimizer)
        name = type(optimizer).__name__
        return name if number == 0 else f"{name}#{number + 1}"

    def autocast_on(self) -> bool:
        """Whether an autocast context is active now."""
        return torch.is_autocast_enabled("cpu") or (torch.cuda.is_initialized() and torch.is_autocast_enabled("cuda"))

    def _plain(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def called(owner: Any, *args: Any, **kwargs: Any) -> Any:
            details: dict[str, object] = {}
            if isinstance(owner, Optimizer):
                details["optimizer"] = self.optimizer_label(owner)
            self.note(name, **details)
            return original(owner, *args, **kwargs)

        return called

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            timeline = self._timeline
            nested = timeline.in_backward
            if not nested:
                autocast_on = self.autocast_on()
                tensors = self._listener.before_backward(tensors)
                self.note("backward", autocast=autocast_on)
            timeline.enter_backward(self._sources.frame(2))
            failed = True
            try:
                result = original(tensors, *args, **kwargs)
                failed = False
            finally:
                if timeline.leave_backward():
                    self._listener.after_backward(tensors, failed)
            return result

        return backward

    def _autocast_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def init(
            context: Any,
            device_type: str,
            dtype: torch.dtype | None = None,
            enabled: bool = True,
            cache_enabled: bool | None = None,
        ) -> None:
            asked = str(device_type).partition(":")[0]
            device_type = self._requests.device_type(asked)
            if dtype is None and asked != device_type:
                dtype = torch.float16
            if dtype is None and device_type == "cpu" and self._requests.asked_cuda:
                # The script took the CPU because there is no GPU here; on a GPU it would have got FP16.
                dtype = torch.float16
            if self._policy.autocast is Who.NOBODY:
                context._nanprobe_asked = (dtype or torch.bfloat16) if enabled else None
                enabled = False
            elif self._policy.autocast is Who.NANPROBE and not _own(context):
                enabled, dtype = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
            elif enabled and not _own(context):
                context._nanprobe_asked = dtype or torch.get_autocast_dtype(device_type)
            original(context, device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

        return init

    def _autocast_enter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def enter(context: Any) -> Any:
            asked = getattr(context, "_nanprobe_asked", None)
            if asked is not None and self.autocast_dtype is None:
                self.autocast_dtype = asked
            if getattr(context, "_enabled", False) and not _own(context):
                self.note("autocast.enter")
            return original(context)

        return enter

    def _autocast_exit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def leave(context: Any, *exc: Any) -> Any:
            result = original(context, *exc)
            if getattr(context, "_enabled", False) and not _own(context):
                self.note("autocast.exit")
            return result

        return leave

    def _reading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A look at a single number that leads back to the graph: a loss that is not finite may go no further."""

        def read(value: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(value, *args, **kwargs)
            if isinstance(value, Tensor) and value.requires_grad and value.grad_fn is not None and value.numel() == 1:
                self._note_loss(value, result)
            return result

        return read

    def _note_loss(self, tensor: Tensor, result: Any) -> None:
        number = result if isinstance(result, float) else float(tensor.detach())
        if math.isfinite(number) or self._timeline.in_backward or self._bad_loss_in == self._timeline.step:
            return
        self._bad_loss_in = self._timeline.step
        self._bad_loss = CallRecord(
            self._timeline.step,
            self._timeline.backward_passes,
            "nonfinite_loss",
            self._sources.here(),
            {"value": number},
        )
        self._listener.nonfinite_loss(tensor)

    def take_loss_further(self) -> None:
        """Backward is called: a loss that was read is not given up."""
        self._bad_loss = None

    def give_loss_up(self) -> None:
        """The next forward starts, or the script has ended: a bad loss that saw no backward was given up."""
        if self._bad_loss is not None:
            self._write(self._bad_loss)
            self._bad_loss = None

    def _scaler_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def init(scaler: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
            names = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")
            kwargs.update(zip(names, args, strict=False))
            device = self._requests.device_type(str(device).partition(":")[0])
            enabled = bool(kwargs.get("enabled", True))
            self.scaler_enabled |= enabled
            if self._policy.scaler is not Who.SCRIPT:
                kwargs["enabled"] = False
            kwargs.update(self._settings.given())
            known = {k: v for k, v in kwargs.items() if k != "enabled"}
            self.note("scaler.init", enabled=enabled, scaler=self._scaler_number(scaler), **known)
            original(scaler, device, **kwargs)

        return init

    def _scaler_scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: GradScaler, outputs: Any) -> Any:
            result = original(scaler, outputs)
            if scaler.is_enabled():
                self.scaler = scaler
                self.note("scaler.scale", autocast=self.autocast_on(), scaler=self._scaler_number(scaler))
            return result

        return scale

    def _scaler_load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load_state_dict(scaler: GradScaler, state_dict: Any) -> None:
            original(scaler, state_dict)
            if scaler.is_enabled():
                self.note("scaler.load_state_dict", scaler=self._scaler_number(scaler), scale=_scale_in(state_dict))

        return load_state_dict

    def _optimizer_load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load_state_dict(optimizer: Optimizer, state_dict: Any) -> None:
            # Only what has stepped has a state: settings alone make no resumed run.
            stepped = bool(state_dict.get("state")) if isinstance(state_dict, dict) else False
            original(optimizer, state_dict)
            self.note("optimizer.load_state_dict", optimizer=self.optimizer_label(optimizer), stepped=stepped)

        return load_state_dict

    def _load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load(*args: Any, **kwargs: Any) -> Any:
            loaded = original(*args, **kwargs)
            self.note("torch.load", scale=_scale_in(loaded))
            return loaded

        return load

    def _scaler_number(self, scaler: GradScaler) -> int:
        """A number for the scaler, in the order they were made."""
        return self._scalers.setdefault(scaler, len(self._scalers))

    def _scaler_unscale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def unscale_(scaler: GradScaler, optimizer: Optimizer) -> None:
            if scaler.is_enabled() and not self._in_scaler_step:  # GradScaler.step unscales by itself
                self.note("scaler.unscale_", optimizer=self.optimizer_label(optimizer))
            original(scaler, optimizer)

        return unscale_

    def _scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scaler: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if not scaler.is_enabled():
                return original(scaler, optimizer, *args, **kwargs)
            self.note("scaler.step", optimizer=self.optimizer_label(optimizer), autocast=self.autocast_on())
            self._in_scaler_step = True
            try:
                return self._listener.scaler_step(
                    scaler, optimizer, lambda: original(scaler, optimizer, *args, **kwargs)
                )
            finally:
                self._in_scaler_step = False

        return step

    def _scaler_update(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def update(scaler: GradScaler, *args: Any, **kwargs: Any) -> None:
            before = _scale_of(scaler)
            original(scaler, *args, **kwargs)
            if scaler.is_enabled():
                self.note("scaler.update", before=before, after=_scale_of(scaler))

        return update

    def _clip(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def clip(parameters: Any, limit: float, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(parameters, Tensor):
                parameters = list(parameters)
            result = original(parameters, limit, *args, **kwargs)
            self.note(name, limit=float(limit), norm=_cpu_number(result), optimizers=self._owners(parameters))
            return result

        return clip

    def _owners(self, parameters: Any) -> list[str]:
        """Labels of the optimizers that own these parameters; those without a gradient do not count."""
        alive = [o for o in (ref() for ref in self._made) if o is not None]
        given = [parameters] if isinstance(parameters, Tensor) else parameters
        clipped = {id(p) for p in given if p.grad is not None}
        return [
            self.optimizer_label(o) for o in alive if any(id(p) in clipped for g in o.param_groups for p in g["params"])
        ]

    def _optimizer_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def init(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self._made.append(weakref.ref(optimizer))
            self._listener.optimizer_made(optimizer)

        return init


def _own(context: Any) -> bool:
    return bool(getattr(context, "_nanprobe_own", False))


def _cpu_number(value: Any) -> float | None:
    """A number that is at hand without waiting for a device."""
    if isinstance(value, Tensor):
        return float(value) if value.device.type == "cpu" and value.numel() == 1 else None
    return float(value) if isinstance(value, (int, float)) else None


def _scale_in(state: Any, depth: int = 0) -> float | None:
    """The loss scale of the GradScaler state that a checkpoint is or holds; None when it holds none."""
    if not isinstance(state, dict):
        return None
    if {"scale", "growth_factor", "backoff_factor", "growth_interval"} <= state.keys():
        return float(state["scale"])
    if depth >= 2:
        return None
    found = (_scale_in(value, depth + 1) for value in list(state.values())[:64] if isinstance(value, dict))
    return next((scale for scale in found if scale is not None), None)


def _scale_of(scaler: GradScaler) -> float | None:
    scale = getattr(scaler, "_scale", None)  # a disabled scaler has none
    return float(scale) if scale is not None and scale.device.type == "cpu" else None
