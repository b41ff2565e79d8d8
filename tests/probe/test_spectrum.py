"""Exponents of a deep step's gradients: exact, of any layout, and in the step's records."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nanprobe.loss_scale.histograms import histogram_of
from nanprobe.probe.spectrum import count_exponents, with_exponents
from nanprobe.records import GradRecord, StageName, TensorStats
from probe.sessions import watch

FLOATS = st.floats(width=32, allow_subnormal=False)


def record(name: str = "w") -> GradRecord:
    return GradRecord(name, TensorStats("float32", (1,), 0, 0, 1.0), (), 0.0, 0.0)


def counted(tensor: torch.Tensor) -> GradRecord:
    (found,) = with_exponents([record()], {"w": count_exponents(tensor)})
    return found


@given(st.lists(FLOATS, max_size=50))
@settings(max_examples=60, deadline=None)
def test_exponents_are_those_of_plain_numbers(values: list[float]) -> None:
    found, expected = counted(torch.tensor(values, dtype=torch.float32)), histogram_of(values, name="w", layer="")
    assert found.exponent_counts == expected.counts
    assert found.exponent_offset == (expected.offset if expected.counts else 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_and_layouts(dtype: torch.dtype) -> None:
    values = torch.tensor([[0.25, -3.0], [0.0, math.inf], [1.0, math.nan]], dtype=dtype).t()
    found = counted(values)
    assert (found.exponent_offset, found.exponent_counts) == (-2, (1, 0, 1, 1))


def test_sparse_and_complex_gradients() -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[1, 3]]), torch.tensor([0.5, 2.0]), (5,), check_invariants=True)
    assert counted(sparse).exponent_counts == (1, 0, 1)
    assert counted(torch.tensor([3 + 0.5j])).exponent_counts == (1, 0, 1)


def test_what_was_not_counted_stays_as_it_is() -> None:
    assert with_exponents([record("a")], {}) == (record("a"),)
    assert counted(torch.zeros(3)).exponent_counts == ()


@pytest.mark.parametrize("stage", [StageName.FP32, StageName.FP16])
def test_a_deep_step_counts_the_recheck_of_every_gradient(stage: StageName) -> None:
    def loop() -> None:
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        out = model(torch.ones(2, 4))
        ((out[:, 0] * 1e-9).sum() + out[:, 1:].sum()).backward()
        optimizer.step()

    (deep,) = watch(loop, stage, deep=(0,)).deep
    weight = next(g for g in deep.grads if g.name.endswith("weight"))
    assert sum(weight.exponent_counts) == 12, "the re-check has no zeros, whatever FP16 made of them"
    assert weight.exponent_offset == math.frexp(2e-9)[1] - 1
    assert weight.exponent_counts[0] == 4 and weight.exponent_counts[-1] == 8
