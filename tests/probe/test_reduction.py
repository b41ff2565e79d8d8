"""The fused largest magnitude against one tensor at a time."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nanprobe.precision.reduction import abs_max

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.float8_e5m2]
VALUES = st.sampled_from([0.0, -0.0, 1.0, -2.5, 65504.0, -3e38, 1e-45, math.inf, -math.inf, math.nan])
SHAPES = st.sampled_from([(), (0,), (1,), (3,), (3,), (2, 3), (4097,), (64, 65)])


def naive(tensor: Tensor) -> float:
    if tensor.is_sparse:
        tensor = tensor.to_dense()
    values = [abs(v) for v in torch.view_as_real(tensor).flatten().tolist()] if tensor.is_complex() else None
    values = [abs(v) for v in tensor.flatten().tolist()] if values is None else values
    return math.nan if any(math.isnan(v) for v in values) else max(values, default=0.0)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape, dtype = draw(SHAPES), draw(st.sampled_from(DTYPES))
    tensor = torch.full(shape, draw(VALUES), dtype=torch.float32).to(dtype)
    if tensor.numel() > 1:
        tensor.view(-1)[-1] = draw(VALUES)
    if tensor.dim() == 2 and draw(st.booleans()):
        tensor = tensor.t() if draw(st.booleans()) else tensor[:, ::2]
    if tensor.dim() == 2 and dtype == torch.float32 and draw(st.booleans()):
        tensor = tensor.to_sparse()
    return tensor


@settings(max_examples=80, deadline=None)
@given(st.lists(tensors(), max_size=8))
def test_abs_max(given: list[Tensor]) -> None:
    got = abs_max(given).read()
    assert len(got) == len(given)
    for value, tensor in zip(got, given, strict=True):
        expected = naive(tensor)
        assert value == expected or (math.isnan(value) and math.isnan(expected))


def test_double_is_not_cut_to_the_range_of_float() -> None:
    assert abs_max([torch.tensor([1e300], dtype=torch.float64)] * 2).read() == [1e300] * 2


def test_parts_of_a_sparse_gradient_that_meet_are_added() -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([2.0, 3.0]), (3,), check_invariants=True)
    assert abs_max([sparse]).read() == [5.0]
