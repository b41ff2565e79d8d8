"""The casts of FP32 weights that autocast keeps while it is on, so that every use of a weight shares one FP16 copy.

Sharing matters for more than speed: the gradients of all uses meet in FP16 at the shared copy, and a copy outlives an
optimizer step taken inside the autocast context. Both are what CUDA's autocast does.
"""

from __future__ import annotations

import torch
from torch import Tensor


class WeightCasts:
    """FP16 (or BF16) copies of leaf weights, until autocast is left.

    Source: ATen/autocast_mode.cpp, cached_cast.
    """

    def __init__(self) -> None:
        self._casts: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}

    def cast(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """`weight` in `dtype`: the kept copy, or a new one."""
        key = (id(weight), dtype)
        found = self._casts.get(key)
        if found is not None:
            return found[1]
        if torch.is_grad_enabled():
            copy = weight.to(dtype)
        else:
            with torch.enable_grad():  # a copy first made under no_grad must serve training too
                copy = weight.to(dtype)
        self._casts[key] = (weight, copy)  # holding the weight keeps its id from being given to another
        return copy

    def clear(self) -> None:
        """Forget every copy."""
        self._casts.clear()


def is_cacheable(tensor: Tensor) -> bool:
    """Whether autocast would keep the cast of this FP32 tensor: a leaf that is trained, and no view."""
    return (
        tensor.requires_grad
        and tensor.is_leaf
        and not tensor._is_view()
        and torch.is_autocast_cache_enabled()
        and not torch.is_inference_mode_enabled()
    )
