"""Modules that compute in FP32 whatever is around them: autocast off, half inputs and half weights as float."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_pre_hook

from nanprobe.precision.outside_amp import OwnAutocast

_HALF = (torch.float16, torch.bfloat16)


class IslandWatch:
    """Wraps the forward of the named modules when their root is first called.

    Args:
        paths: the modules' paths.
        name_module: gives a module's path.
        device: "cpu" or "cuda", whose autocast is switched off.
    """

    def __init__(self, paths: tuple[str, ...], name_module: Callable[[Module], str], device: str) -> None:
        self._paths = frozenset(paths)
        self._name_module = name_module
        self._device = device
        self._known: set[int] = set()
        self._wrapped: list[Module] = []
        self._handle = register_module_forward_pre_hook(self._enter)

    def stop(self) -> None:
        """Takes the wrappers back."""
        self._handle.remove()
        for module in self._wrapped:
            vars(module).pop("forward", None)

    def seen(self) -> dict[str, object]:
        """The classes of the modules that were wrapped, with the file and line of their forward."""
        found = {}
        for module in self._wrapped:
            code = getattr(type(module).forward, "__code__", None)
            if code is not None:
                found[self._name_module(module)] = [type(module).__qualname__, code.co_filename, code.co_firstlineno]
        return {"islands": found}

    def _enter(self, module: Module, args: Any) -> None:
        if id(module) in self._known:
            return
        for part in module.modules():
            if id(part) not in self._known:
                self._known.add(id(part))
                if self._name_module(part) in self._paths and "forward" not in vars(part):
                    self._wrapped.append(part)
                    part.forward = self._in_fp32(part, part.forward)

    def _in_fp32(self, module: Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            half = next((a.dtype for a in args if _is_half(a)), None)
            keep = half is None or torch.is_autocast_enabled(self._device)
            weights = [
                (m, n, p) for m in module.modules() for n, p in m._parameters.items() if p is not None and _is_half(p)
            ]
            for owner, name, weight in weights:
                owner._parameters[name] = weight.float()  # type: ignore[assignment]
            try:
                with OwnAutocast(self._device, enabled=False):
                    result = forward(*map(_widened, args), **{k: _widened(v) for k, v in kwargs.items()})
            finally:
                for owner, name, weight in weights:
                    owner._parameters[name] = weight
            return result if keep else _narrowed(result, half)

        return run


def _is_half(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype in _HALF


def _widened(value: Any) -> Any:
    return value.float() if _is_half(value) else value


def _narrowed(value: Any, dtype: torch.dtype | None) -> Any:
    """A half model goes on in half; single numbers, such as a loss, stay FP32."""
    if isinstance(value, (tuple, list)):
        return type(value)(_narrowed(item, dtype) for item in value)
    if isinstance(value, Tensor) and value.dtype == torch.float32 and value.dim():
        return value.to(dtype)
    return value
