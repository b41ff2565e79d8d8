"""`RoundingMode` leaves only numbers that the narrow format can hold, wherever an operation wrote them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from nanprobe.formats import BF16, FP16, FloatFormat
from nanprobe.precision import RoundingMode, round_to_grid_
from nanprobe.precision.rounding import EXEMPTIONS

INF = float("inf")


def on_grid(tensor: Tensor, narrow: torch.dtype = torch.float16) -> bool:
    """Whether every element is a number that `narrow` can hold."""
    return torch.equal(tensor.detach().to(narrow).to(tensor.dtype).nan_to_num(7), tensor.detach().nan_to_num(7))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda fmt: fmt.name)
@given(values=st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_rounding_is_the_cast_there_and_back(fmt: FloatFormat, values: list[float]) -> None:
    x = torch.tensor(values)
    expected = x.to(getattr(torch, fmt.name)).float()
    assert round_to_grid_(x, fmt) is x
    assert torch.equal(x.nan_to_num(7), expected.nan_to_num(7))
    assert torch.equal(x.isnan(), expected.isnan())


@given(x=st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_rounding_overflows_and_flushes_at_the_formats_thresholds(x: float) -> None:
    rounded = round_to_grid_(torch.tensor([x])).item()
    assert (abs(rounded) == INF) is FP16.overflows(x)
    assert (x != 0.0 and rounded == 0.0) is FP16.flushes(x)


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "scalar": lambda: torch.randn(()),
    "empty": lambda: torch.randn(0, 3),
    "contiguous": lambda: torch.randn(3, 5),
    "larger-than-a-chunk": lambda: torch.randn(1200, 1000),
    "transposed": lambda: torch.randn(3, 5).t(),
    "transposed-large": lambda: torch.randn(1200, 1000).t(),
    "channels-last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "strided": lambda: torch.randn(40, 40)[::7, ::9],
    "complex": lambda: torch.randn(3, 5, dtype=torch.complex64),
}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_every_layout_is_rounded_in_place(make: Callable[[], Tensor]) -> None:
    x = make()
    if x.is_complex():
        expected = torch.view_as_complex(torch.view_as_real(x).half().float())
    else:
        expected = x.half().float()
    assert torch.equal(round_to_grid_(x), expected)


def test_other_dtypes_stay_as_they_are() -> None:
    for x in (torch.tensor([1.0001], dtype=torch.float64), torch.tensor([70001]), torch.tensor([True])):
        assert torch.equal(round_to_grid_(x.clone()), x)


def test_results_overflow_and_flush() -> None:
    with RoundingMode():
        assert (torch.full((2,), 300.0) * 300.0).tolist() == [INF, INF]
        assert (torch.full((2,), 2.0**-13) * 2.0**-13).tolist() == [0.0, 0.0]
        assert torch.full((1,), 2048.0).add(1.0).item() == 2048.0
        assert torch.tensor([1e-8]).item() == 0.0


def test_only_the_written_elements_of_a_view_are_rounded() -> None:
    x = torch.full((4,), 1.0001)
    with RoundingMode():
        view = x[:2]
        view.mul_(1.0001)
    assert on_grid(x[:2]) and not on_grid(x[2:])


def test_views_are_not_written() -> None:
    x = torch.full((4,), 1.0001)
    with RoundingMode():
        x.view(2, 2), x.t(), x.detach(), x[1:], x.unbind()
    assert not on_grid(x)


def test_foreign_memory_is_not_written() -> None:
    array = np.array([1.0001], dtype=np.float32)
    with RoundingMode():
        shared = [torch.from_numpy(array), torch.as_tensor(array), torch.asarray(array)]
        copied = torch.tensor(array)
    assert array[0] != 1.0 and copied.item() == 1.0
    assert all(tensor.data_ptr() == shared[0].data_ptr() for tensor in shared)


def test_lists_and_out_arguments_are_rounded() -> None:
    parameters, out = [torch.ones(2), torch.ones(3)], torch.empty(2)
    with RoundingMode():
        torch._foreach_add_(parameters, 1e-4)
        products = torch._foreach_mul(parameters, 1.0001)
        torch.add(torch.ones(2), 1e-4, out=out)
    assert all(on_grid(tensor) for tensor in (*parameters, *products, out))


def test_training_leaves_only_numbers_of_the_grid() -> None:
    model = nn.Sequential(nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.GELU(), nn.Flatten(), nn.Linear(48, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    seen: list[Tensor] = []
    for module in model:
        module.register_forward_hook(lambda module, inputs, output: seen.append(output.detach().clone()))
    with torch.no_grad():
        for parameter in model.parameters():
            round_to_grid_(parameter)
    with RoundingMode():
        for _ in range(2):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(torch.randn(5, 3, 8)), torch.tensor([0, 1, 2, 3, 0]))
            loss.backward()
            seen += [p.grad.clone() for p in model.parameters() if p.grad is not None]
            optimizer.step()
    state = [buffer["momentum_buffer"] for buffer in optimizer.state.values()]
    everything = [loss, *seen, *model.parameters(), *model.buffers(), *state]
    assert all(on_grid(tensor) for tensor in everything if tensor.is_floating_point())


def test_sparse_gradients_and_conjugate_views_are_rounded() -> None:
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters())
    z = torch.randn(3, dtype=torch.complex64)
    with RoundingMode():
        (embedding(torch.tensor([1, 1, 2])) * 1.0001).sum().backward()
        optimizer.step()
        z.conj().mul_(1.0)
    assert embedding.weight.grad is not None and on_grid(embedding.weight.grad.coalesce().values())
    assert on_grid(embedding.weight[1:3]) and on_grid(torch.view_as_real(z))


def test_statistics_for_the_backward_pass_stay_fp32() -> None:
    x = torch.randn(6, 16) + 3
    with RoundingMode():
        out, mean, rstd = torch.native_layer_norm(x, [16], None, None, 1e-5)
        q = torch.randn(1, 2, 8, 4)
        attention, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)
    assert on_grid(out) and not on_grid(mean) and not on_grid(rstd)
    assert on_grid(attention) and not on_grid(logsumexp)


def test_every_exemption_names_an_operator_and_a_reason() -> None:
    for name, (positions, reason) in EXEMPTIONS.items():
        if not hasattr(torch.ops.aten, name):
            continue  # newer than this PyTorch
        overload = getattr(torch.ops.aten, name).overloads()[0]
        returns = getattr(getattr(torch.ops.aten, name), overload)._schema.returns
        assert reason and max(positions) < len(returns)


def test_adams_step_counter_stays_fp32_in_an_update() -> None:
    parameter = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.Adam([parameter], lr=0.1)
    parameter.grad = torch.ones(2)
    optimizer.step()
    counter = optimizer.state[parameter]["step"]
    counter.fill_(2048.0)
    with RoundingMode() as mode:
        mode.in_update = True
        optimizer.step()
        mode.in_update = False
        assert counter.item() == 2049.0  # which FP16 cannot hold
        counter.fill_(2048.0)
        optimizer.step()
    assert counter.item() == 2048.0
    assert on_grid(parameter)


def test_disabled_it_changes_nothing() -> None:
    with RoundingMode() as mode:
        mode.enabled = False
        assert (torch.ones(1) + 1e-4).item() != 1.0
        mode.enabled = True
        assert (torch.ones(1) + 1e-4).item() == 1.0


def test_a_recorder_above_sees_rounded_results() -> None:
    seen: list[Tensor] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func(*args, **(kwargs or {})))
            return seen[-1]

    with RoundingMode(), Recorder():
        torch.ones(3) * 1.0001
    assert seen and all(on_grid(tensor) for tensor in seen)


def test_bf16_has_its_own_grid() -> None:
    with RoundingMode(BF16):
        x = torch.full((3,), 300.0) * 300.0
    assert on_grid(x, torch.bfloat16) and x.isfinite().all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_it_does_nothing_in_a_forked_process() -> None:
    with RoundingMode():
        child = os.fork()
        if child == 0:
            os._exit(0 if torch.ones(1).add(1e-4).item() != 1.0 else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_leaf_parameters_and_autograd_are_undisturbed() -> None:
    parameter = torch.ones(3, requires_grad=True)
    with RoundingMode():
        y = (parameter * 1.0001).exp()
        y.sum().backward()
    assert parameter.is_leaf and parameter._version == 0
    assert parameter.grad is not None and on_grid(parameter.grad)
