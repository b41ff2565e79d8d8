"""The guard itself: it is silent when all was put back, and names what was not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode

import leftovers


@contextmanager
def patched(owner: object, name: str) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: original(*args, **kwargs))
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def module_hook() -> Iterator[None]:
    handle = torch.nn.modules.module.register_module_forward_pre_hook(lambda module, args: None)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def optimizer_hook() -> Iterator[None]:
    handle = register_optimizer_step_post_hook(lambda optimizer, args, kwargs: None)
    try:
        yield
    finally:
        handle.remove()


def test_nothing_changed_is_silent() -> None:
    before = leftovers.snapshot()
    torch.nn.Linear(2, 2)(torch.zeros(1, 2)).sum().backward()
    assert leftovers.changed(before) == []


@pytest.mark.parametrize(
    ("leave", "named"),
    [
        (lambda: patched(torch.Tensor, "backward"), "torch.Tensor.backward"),
        (lambda: patched(torch.autograd, "backward"), "torch.autograd.backward"),
        (lambda: patched(torch.amp.GradScaler, "step"), "torch.amp.GradScaler.step"),
        (lambda: patched(torch.amp.autocast_mode.autocast, "__init__"), "torch.amp.autocast.__init__"),
        (lambda: patched(torch.nn.utils, "clip_grad_norm_"), "torch.nn.utils.clip_grad_norm_"),
        (lambda: patched(torch, "save"), "torch.save"),
        (module_hook, "_global_forward_pre_hooks"),
        (optimizer_hook, "_global_optimizer_post_hooks"),
        (TorchDispatchMode, "dispatch modes on the stack"),
        (lambda: torch.autocast("cpu", torch.bfloat16), "autocast on the CPU"),
        (torch.no_grad, "grad mode"),
    ],
)
def test_what_is_left_is_named(leave: Callable[[], object], named: str) -> None:
    before = leftovers.snapshot()
    with leave():
        during = leftovers.changed(before)
    assert any(named in line for line in during)
    assert leftovers.changed(before) == []
