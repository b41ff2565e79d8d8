"""Which module is running, by PyTorch's global forward hooks; on only while somebody needs to know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn import Module
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from nanprobe.probe.timeline import Timeline


class ModuleWatch:
    """The stack of running modules.

    Args:
        timeline: told how deep the stack is.
        entered: called with a module called from outside any module, and its arguments; may return new arguments.
        left: called with the output when that module has returned; may return another one.
    """

    def __init__(self, timeline: Timeline, entered: Callable[[Module, Any], Any], left: Callable[[Any], Any]) -> None:
        self._timeline = timeline
        self._entered = entered
        self._left = left
        self._stack: list[Module] = []
        self._again: list[bool] = []  # entered inside backward: a checkpointed block is run again
        self._handles: list[Any] = []

    @property
    def innermost(self) -> Module | None:
        """The module whose forward is running."""
        return self._stack[-1] if self._stack else None

    @property
    def recomputing(self) -> bool:
        """Whether that module was called inside a backward pass."""
        return bool(self._again) and self._again[-1]

    def watch(self, on: bool) -> None:
        """Puts the hooks in, or takes them out."""
        if on and not self._handles:
            self._handles = [
                register_module_forward_pre_hook(self._enter),
                register_module_forward_hook(self._leave, always_call=True),
            ]
        elif not on and self._handles:
            for handle in self._handles:
                handle.remove()
            self._handles = []
            self._stack.clear()
            self._again.clear()
            self._timeline.module_depth = 0

    def _enter(self, module: Module, args: Any) -> Any:
        # A module called inside backward is a checkpointed block being run again, not a new root.
        root = not self._stack and not self._timeline.in_backward
        replaced = self._entered(module, args) if root else None
        self._stack.append(module)
        self._again.append(self._timeline.in_backward)
        self._timeline.module_depth += 1
        return replaced

    def _leave(self, module: Module, args: Any, output: Any) -> Any:
        if not self._stack:
            return None
        while self._stack and self._stack.pop() is not module:
            pass  # a forward that raised before its own hook could run
        del self._again[len(self._stack) :]
        self._timeline.module_depth = len(self._stack)
        return None if self._stack else self._left(output)
