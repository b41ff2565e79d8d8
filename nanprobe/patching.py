"""Replacing a function for the length of a stage, and putting it back.

Used only where PyTorch has no door of its own (hooks, modes): see the table in DESIGN, "Running the user's code".
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Patches:
    """Attributes replaced on classes and modules; `undo` puts every one back, newest first."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, bool]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replaces `owner.name` by `make(original)`; does nothing when `owner` has no such attribute.

        Other places that hold the same function under the same name (`torch.nn.utils.clip_grad_norm_` and
        `torch.nn.utils.clip_grad.clip_grad_norm_`) need a call each.
        """
        if not hasattr(owner, name):
            return
        original = getattr(owner, name)
        wrapper = make(original)
        functools.update_wrapper(wrapper, original)
        self.replace(owner, name, wrapper)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Sets `owner.name`, remembering whether the class itself or a base held it before."""
        own = name in vars(owner)
        previous = vars(owner)[name] if own else None
        self._undo.append((owner, name, previous, own))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Puts every attribute back as it was."""
        while self._undo:
            owner, name, previous, own = self._undo.pop()
            if own:
                setattr(owner, name, previous)
            else:
                delattr(owner, name)
