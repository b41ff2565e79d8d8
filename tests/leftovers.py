"""What a run can leave behind in this process: patched functions, hooks, modes and switches of torch.

`snapshot()` before, `changed(before)` after: each line of the answer names one thing that was not put back.
"""

from __future__ import annotations

import builtins
import math
import os
import random
import runpy
import sys
from collections.abc import Callable, Iterator

import torch
import torch._dynamo  # replaces torch.manual_seed when it is first imported, by checkpoint for one
import torch.nn.modules.module as module_hooks
import torch.optim.optimizer as optimizer_hooks
from torch.amp import autocast_mode, grad_scaler

# Everything that is patched anywhere is an attribute of one of these; a new patch on another object belongs here too.
OWNERS: tuple[tuple[str, object], ...] = (
    ("builtins", builtins),
    ("os", os),
    ("random", random),
    ("runpy", runpy),
    ("torch", torch),
    ("torch.Tensor", torch.Tensor),
    ("torch.amp", torch.amp),
    ("torch.amp.autocast", autocast_mode.autocast),
    ("torch.amp.GradScaler", grad_scaler.GradScaler),
    ("torch.cuda", torch.cuda),
    ("torch.cuda.amp", torch.cuda.amp),
    ("torch.cuda.amp.autocast", torch.cuda.amp.autocast),
    ("torch.cuda.amp.GradScaler", torch.cuda.amp.GradScaler),
    ("torch.cpu.amp", torch.cpu.amp),
    ("torch.cpu.amp.autocast", torch.cpu.amp.autocast),
    ("torch.cpu.amp.GradScaler", torch.cpu.amp.GradScaler),
    ("torch.autograd", torch.autograd),
    ("torch.autograd.graph", torch.autograd.graph),
    ("torch.autograd.Function", torch.autograd.Function),
    ("torch.nn.Module", torch.nn.Module),
    ("torch.nn.Parameter", torch.nn.Parameter),
    ("torch.nn.functional", torch.nn.functional),
    ("torch.nn.init", torch.nn.init),
    ("torch.nn.utils", torch.nn.utils),
    ("torch.nn.utils.clip_grad", torch.nn.utils.clip_grad),
    ("torch.optim.Optimizer", torch.optim.Optimizer),
    ("torch.optim.LBFGS", torch.optim.LBFGS),
    ("torch.optim.lr_scheduler.LRScheduler", torch.optim.lr_scheduler.LRScheduler),
    ("torch.random", torch.random),
    ("torch.serialization", torch.serialization),
    ("torch.utils.checkpoint", torch.utils.checkpoint),
    ("torch.utils.data.DataLoader", torch.utils.data.DataLoader),
)

SWITCHES: tuple[tuple[str, Callable[[], object]], ...] = (
    ("dispatch modes on the stack", torch._C._len_torch_dispatch_stack),
    ("function modes on the stack", torch._C._len_torch_function_stack),
    ("autocast on the CPU", lambda: torch.is_autocast_enabled("cpu")),
    ("autocast on CUDA", lambda: torch.is_autocast_enabled("cuda")),
    ("autocast dtype on the CPU", lambda: torch.get_autocast_dtype("cpu")),
    ("grad mode", torch.is_grad_enabled),
    ("inference mode", torch.is_inference_mode_enabled),
    ("anomaly mode", torch.is_anomaly_enabled),
    ("default dtype", torch.get_default_dtype),
    ("default device", torch.get_default_device),
    ("deterministic algorithms", torch.are_deterministic_algorithms_enabled),
    ("float32 matmul precision", torch.get_float32_matmul_precision),
    ("threads", torch.get_num_threads),
    # torch.set_flush_denormal sets a flag of the processor, so Python's own arithmetic shows it.
    ("subnormal numbers kept", lambda: math.ldexp(sys.float_info.min, -1) != 0.0),
    ("autocast kernels", lambda: tuple(torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU"))),
    ("fused attention path", torch.backends.mha.get_fastpath_enabled),
    ("sys.argv", lambda: tuple(sys.argv)),
    ("sys.path", lambda: tuple(sys.path)),
    ("sys.excepthook", lambda: sys.excepthook),
    ("sys.stdout", lambda: sys.stdout),
    ("working directory", os.getcwd),
)

Snapshot = dict[str, object]


def snapshot() -> Snapshot:
    """Everything that has to be the same again after a run, by the name a developer would look for."""
    return {**dict(_callables()), **dict(_hooks()), **{name: read() for name, read in SWITCHES}}


def changed(before: Snapshot, after: Snapshot | None = None) -> list[str]:
    """One line for each thing that differs from `before`, sorted; empty when all was put back."""
    after = snapshot() if after is None else after
    lines = [f"{name} is now {after.get(name)!r}" for name in before if not _same(before[name], after.get(name))]
    # What is new in an owner is a patch too (a subclass that did not define the method); an imported submodule is not.
    lines += [f"{name} was added" for name in after.keys() - before.keys()]
    return sorted(lines)


def _callables() -> Iterator[tuple[str, object]]:
    for owner_name, owner in OWNERS:
        for name, value in list(vars(owner).items()):
            # Modules import lazily, so they may grow names; a class may not.
            if callable(value) or (
                isinstance(owner, type) and isinstance(value, (staticmethod, classmethod, property))
            ):
                yield f"{owner_name}.{name}", value


def _hooks() -> Iterator[tuple[str, object]]:
    for module in (module_hooks, optimizer_hooks):
        for name, hooks in vars(module).items():
            if name.startswith("_global_") and isinstance(hooks, dict):
                yield f"{module.__name__}.{name}", tuple(hooks.values())


def _same(a: object, b: object) -> bool:
    return a is b or (not callable(a) and a == b)
