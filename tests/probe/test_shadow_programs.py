"""Random small programs: what they compute under shadow execution, and its shadow, are exactly what they should be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from probe.shadowing import check

MASK = torch.tensor([[True, False, True], [False, False, True], [True, True, False]])
ORDER = torch.tensor([2, 0, 1])

# Each makes one 3×3 tensor from two, or writes into the first; none compares, so the wide program takes the same path.
OPERATIONS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda a, b: a + b,
    lambda a, b: a * b,
    lambda a, b: a - 0.1 * b,
    lambda a, b: a @ b,
    lambda a, b: a / (b.abs() + 0.3),
    lambda a, b: (a * 0.1).exp(),
    lambda a, b: a.t(),
    lambda a, b: a.t().contiguous(),
    lambda a, b: a[ORDER],
    lambda a, b: a[1].expand(3, 3),
    lambda a, b: torch.cat([a[:2], b[1:2]]),
    lambda a, b: torch.where(MASK, a, b),
    lambda a, b: torch.stack([a[0], b[1], a.sum(0)]),
    lambda a, b: a.softmax(1),
    lambda a, b: torch.addmm(a, a, b, beta=0.3),
    lambda a, b: a.cumsum(1),
    lambda a, b: a.masked_fill(MASK, 0.1),
    lambda a, b: torch.nn.functional.layer_norm(a, (3,), eps=0.1),
    lambda a, b: a.clone().add_(b, alpha=0.3),
    lambda a, b: a.clone().t().mul_(b),
    lambda a, b: put(a.clone(), (slice(None), 1), b[0] * 0.1),
    lambda a, b: put(a.clone(), (ORDER, ORDER), b[2]),
    lambda a, b: put(a.clone().reshape(-1)[3:6], (slice(0, 2),), b[0, :2] * 0.7).expand(3, 3),
    lambda a, b: a.clone().index_add_(0, ORDER, b, alpha=0.3),
    lambda a, b: a.clone().masked_fill_(MASK, 0.3),
    lambda a, b: a.clone().copy_(b[0] / 3),
    lambda a, b: torch.mul(a, b, out=torch.empty_like(a)),
    lambda a, b: torch.addcmul(a, a, b, value=0.1, out=a.new_empty(0)),
    lambda a, b: torch._foreach_mul([a, b], [b, a])[1],
    lambda a, b: torch.as_strided(a.clone(), (3, 3), (1, 2), 0) * 0.3,
    lambda a, b: gradient(a, b),
    lambda a, b: own(a).add_(b.clone(), alpha=0.3),
    lambda a, b: own(a).t().mul_(0.9),
    lambda a, b: put(own(a), (1,), b[0].clone()),
]  # fmt: skip


def put(a: Tensor, where: Any, value: Tensor) -> Tensor:
    a[where] = value
    return a


def own(a: Tensor) -> Tensor:
    """The tensor itself, to be written in place, with everything that shares its storage."""
    return a if a.is_contiguous() or a.t().is_contiguous() else a.clone()


def gradient(a: Tensor, b: Tensor) -> Tensor:
    a = a.detach().requires_grad_()
    return torch.autograd.grad((a.tanh() * b).sum() + a[0].expand(2, 3).sum(), a)[0]


def program(steps: list[tuple[int, int, int]]) -> Callable[[Tensor, Tensor], list[Tensor]]:
    def run(a: Tensor, b: Tensor) -> list[Tensor]:
        made = [a, b]
        for operation, first, second in steps:
            made.append(OPERATIONS[operation](made[first % len(made)], made[second % len(made)]))
        return made

    return run


steps = st.lists(
    st.tuples(st.integers(0, len(OPERATIONS) - 1), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=8
)


@pytest.mark.parametrize(
    ("dtype", "low_precision"), [(torch.float32, False), (torch.float16, True), (torch.bfloat16, True)], ids=str
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=steps, seed=st.integers(0, 3))
def test_programs(dtype: torch.dtype, low_precision: bool, steps: list[tuple[int, int, int]], seed: int) -> None:
    a, b = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(seed)).to(dtype)
    check(program(steps), a, b, low_precision=low_precision)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=steps)
def test_programs_with_nonfinite_numbers(steps: list[tuple[int, int, int]]) -> None:
    a = torch.tensor([[1.0, float("nan"), 0.0], [float("inf"), 2.0, 1e38], [-1.0, -float("inf"), 1e-44]])
    check(program(steps), a, a.flip(0) * 2)
