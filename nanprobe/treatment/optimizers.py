"""Optimizers made to step otherwise, by the hooks that each of them has."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from nanprobe.patching import Patches

Change = Callable[[Optimizer], None]


class OptimizerWatch:
    """Applies changes to every optimizer the script makes, as soon as it is made."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._depth = 0

    def add(self, change: Change) -> None:
        """One more change."""
        self._changes.append(change)

    def install(self, patches: Patches) -> None:
        """Puts the patch in, where there is something to change."""
        if self._changes:
            patches.wrap(Optimizer, "__init__", self._init)

    def _init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def init(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            for change in self._changes:
                change(optimizer)

        return init


def clip(max_norm: float) -> Change:
    """Clips what the optimizer steps on; GradScaler has unscaled it by then."""

    def change(optimizer: Optimizer) -> None:
        def before(stepping: Optimizer, args: Any, kwargs: Any) -> None:
            grads = [p.grad for g in stepping.param_groups for p in g["params"] if p.grad is not None]
            if not grads:
                return
            norms = [torch.linalg.vector_norm(grad.float()).to(grads[0].device) for grad in grads]
            total = torch.linalg.vector_norm(torch.stack(norms))
            factor = (max_norm / (total + 1e-6)).clamp(max=1.0)  # Source: torch.nn.utils.clip_grad_norm_
            for grad in grads:
                grad.mul_(factor.to(grad.device))

        optimizer.register_step_pre_hook(before)

    return change


def scale_rate(factor: float) -> Change:
    """Multiplies every learning rate for the length of each step."""
    return _with_rates(lambda done: factor)


def warm_up(updates: int) -> Change:
    """Raises every learning rate from 1/updates of it to all of it."""
    return _with_rates(lambda done: min(1.0, (done + 1) / updates))


def _with_rates(factor: Callable[[int], float]) -> Change:
    def change(optimizer: Optimizer) -> None:
        done, rates = 0, list[Any]()

        def before(stepping: Optimizer, args: Any, kwargs: Any) -> None:
            rates[:] = [group.get("lr") for group in stepping.param_groups]
            for group, rate in zip(stepping.param_groups, rates, strict=True):
                if rate is not None:
                    group["lr"] = rate * factor(done)

        def after(stepping: Optimizer, args: Any, kwargs: Any) -> None:
            nonlocal done
            done += 1
            for group, rate in zip(stepping.param_groups, rates, strict=True):
                if rate is not None:
                    group["lr"] = rate

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)

    return change


def raise_eps(eps: float) -> Change:
    """At least this eps in every group that has one."""

    def change(optimizer: Optimizer) -> None:
        def before(stepping: Optimizer, args: Any, kwargs: Any) -> None:
            for group in stepping.param_groups:
                if isinstance(group.get("eps"), float) and not math.isnan(group["eps"]):
                    group["eps"] = max(group["eps"], eps)

        optimizer.register_step_pre_hook(before)

    return change


def keep_masters(optimizer: Optimizer) -> None:
    """The optimizer owns FP32 copies of its half weights; each step is copied back into the model."""
    pairs: list[tuple[Tensor, Tensor]] = []
    zero_grad = optimizer.zero_grad
    for group in optimizer.param_groups:
        masters = [_master(w) for w in group["params"]]
        pairs += [(w, m) for w, m in zip(group["params"], masters, strict=True) if w is not m]
        group["params"] = masters

    def before(stepping: Optimizer, args: Any, kwargs: Any) -> None:
        for weight, master in pairs:
            master.grad = None if weight.grad is None else weight.grad.float()

    def after(stepping: Optimizer, args: Any, kwargs: Any) -> None:
        with torch.no_grad():
            for weight, master in pairs:
                weight.copy_(master)

    def clear(set_to_none: bool = True) -> None:
        zero_grad(set_to_none)
        for weight, _ in pairs:
            weight.grad = None

    if pairs:
        optimizer.zero_grad = clear  # type: ignore[method-assign]
        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)


def _master(weight: Tensor) -> Tensor:
    if weight.dtype not in (torch.float16, torch.bfloat16):
        return weight
    return weight.detach().float().clone().requires_grad_(weight.requires_grad)
