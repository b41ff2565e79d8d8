"""One tensor seen as plain real numbers."""

from __future__ import annotations

import torch
from torch import Tensor


def as_real(tensor: Tensor) -> Tensor:
    """The tensor without gradient tracking, complex numbers as pairs, sparse ones as their values."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.coalesce().values() if tensor.layout == torch.sparse_coo else tensor.values()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
