"""The written-out attention against PyTorch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from nanprobe.probe.attention import recheck_backward, recheck_forward

FORWARD = torch.ops.aten._scaled_dot_product_cudnn_attention.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_backward.default


def tensors(requires_grad: bool = False) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=requires_grad) for _ in range(3)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_forward(causal: bool, scale: float | None) -> None:
    query, key, value = tensors()
    args = (query, key, value, None, True, 0.0, causal)
    out, rest = recheck_forward(FORWARD, args, {"scale": scale}, (None, "logsumexp"))
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)
    assert rest == "logsumexp"
    torch.testing.assert_close(out, expected)


def test_forward_with_a_bias() -> None:
    query, key, value = tensors()
    bias = torch.zeros(5, 5, dtype=torch.float64).masked_fill(torch.eye(5) > 0, float("-inf"))
    out, *_ = recheck_forward(FORWARD, (query, key, value, bias, True), {}, (None,))
    torch.testing.assert_close(out, F.scaled_dot_product_attention(query, key, value, attn_mask=bias))


@pytest.mark.parametrize("causal", [False, True])
def test_backward(causal: bool) -> None:
    query, key, value = tensors(requires_grad=True)
    out = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
    grad = torch.randn_like(out)
    expected = torch.autograd.grad(out, (query, key, value), grad)
    plain = [t.detach() for t in (grad, query, key, value)]
    args = (*plain, out.detach(), None, None, None, 5, 5, 0.0, causal, None, None)
    found = recheck_backward(BACKWARD, args, {}, (None, None, None))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_dropout_is_refused() -> None:
    query, key, value = tensors()
    with pytest.raises(NotImplementedError):
        recheck_forward(FORWARD, (query, key, value, None, True, 0.1), {}, (None,))
