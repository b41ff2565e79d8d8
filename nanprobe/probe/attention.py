"""The re-check of fused attention on a GPU, written out.

The fused kernels exist for FP16 and bf16 only; asked for FP32 some refuse and some return numbers that mean nothing.
Source: Dao et al., FlashAttention (2022), for the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

FUSED = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)


def recheck_forward(func: OpOverload, args: Any, kwargs: Any, out: Any) -> tuple[Any, ...]:
    """Attention of the wider inputs; what else the kernel returned stays as it is.

    Raises NotImplementedError with dropout: the kernel drew its mask by itself.
    """
    given = _by_name(func, args, kwargs)
    weights = _weights(given)
    return (weights @ given["value"], *tuple(out)[1:])


def recheck_backward(func: OpOverload, args: Any, kwargs: Any, out: Any) -> tuple[Any, ...]:
    """Gradients of query, key and value (and of the bias, where the kernel gives one)."""
    given = _by_name(func, args, kwargs)
    grad: Tensor = given["grad_out"] if "grad_out" in given else given["grad_out_"]
    weights = _weights(given)
    scale = _scale(given)
    grad_value = weights.transpose(-2, -1) @ grad
    grad_weights = grad @ given["value"].transpose(-2, -1)
    grad_scores = weights * (grad_weights - (grad_weights * weights).sum(-1, keepdim=True))
    grad_query = grad_scores @ given["key"] * scale
    grad_key = grad_scores.transpose(-2, -1) @ given["query"] * scale
    # A bias broadcasts; its gradient is rare and is left as the kernel made it.
    return (grad_query, grad_key, grad_value, *tuple(out)[3:])


def _weights(given: dict[str, Any]) -> Tensor:
    """Softmax of the scaled, masked scores; shape (..., queries, keys)."""
    query, key = given["query"], given["key"]
    if given.get("dropout_p"):
        raise NotImplementedError("the kernel's dropout mask is not known")
    if query.shape[:-2] != key.shape[:-2]:
        raise NotImplementedError("grouped queries")
    scores = query @ key.transpose(-2, -1) * _scale(given)
    if given.get("is_causal"):
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, float("-inf"))
    bias = given.get("attn_bias")
    if bias is not None:
        scores = scores + bias
    return torch.softmax(scores, dim=-1)


def _scale(given: dict[str, Any]) -> float:
    scale = given.get("scale")
    return float(scale) if scale is not None else float(given["query"].shape[-1] ** -0.5)


def _by_name(func: OpOverload, args: Any, kwargs: Any) -> dict[str, Any]:
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}
