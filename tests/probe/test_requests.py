"""What the script asks for and what it gets: float32 for half in the fp32 stage, the CPU for CUDA."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nanprobe.patching import Patches
from nanprobe.precision.requests import Requests
from nanprobe.records import StageName
from probe.sessions import watch


@contextmanager
def requests(keep_low: bool = False, map_cuda: bool = True) -> Iterator[Requests]:
    patches = Patches()
    made = Requests(keep_low, map_cuda)
    made.install(patches)
    try:
        yield made
    finally:
        patches.undo()


HALF: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.half(),
    lambda x: x.bfloat16(),
    lambda x: x.to(torch.float16),
    lambda x: x.to(dtype=torch.bfloat16),
    lambda x: x.to("cpu", torch.half),
    lambda x: x.type(torch.float16),
    lambda x: x.type("torch.HalfTensor"),
    lambda x: torch.zeros(2, dtype=torch.float16),
    lambda x: torch.tensor([1.0], dtype=torch.bfloat16),
    lambda x: torch.ones_like(x, dtype=torch.half),
    lambda x: x.new_zeros(2, dtype=torch.half),
    lambda x: torch.from_numpy(np.ones(2, dtype=np.float16)),
    lambda x: torch.as_tensor(np.ones(2, dtype=np.float16)),
    lambda x: nn.Linear(2, 2).half().weight,
    lambda x: nn.Linear(2, 2, dtype=torch.bfloat16).weight,
    lambda x: nn.Linear(2, 2).to(torch.float16).weight,
    lambda x: nn.Linear(2, 2).to("cpu", dtype=torch.float16).bias,
]


@pytest.mark.parametrize("ask", HALF)
def test_half_becomes_float32_and_is_noted(ask: Callable[[Tensor], Tensor]) -> None:
    with requests() as r:
        got = ask(torch.ones(2))
        assert got.dtype == torch.float32
        assert r.low_dtype(got) in ("float16", "bfloat16")
    with requests(keep_low=True) as r:
        assert ask(torch.ones(2)).dtype in (torch.float16, torch.bfloat16)


def test_what_is_not_asked_for_is_not_noted() -> None:
    with requests() as r:
        x = torch.ones(2)
        half = x.half()
        assert r.low_dtype(x) is None
        assert r.low_dtype(half) == "float16"
        # A conversion makes a copy, and so does the one that stands in for it.
        half.mul_(2)
        assert x.tolist() == [1, 1]
        back = half.float()
        back.mul_(2)
        assert half.tolist() == [2, 2]
        assert r.low_dtype(back) is None
        assert x.float() is x
        assert x.to(torch.float32) is x


def test_gradients_flow_through_what_stands_in() -> None:
    with requests():
        x = torch.ones(2, requires_grad=True)
        (x.half() * 3).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [3, 3]


def test_the_default_dtype() -> None:
    before = torch.get_default_dtype()
    try:
        with requests():
            torch.set_default_dtype(torch.float16)
            assert torch.get_default_dtype() == torch.float32
            torch.set_default_dtype(torch.float64)
            assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("low", [None, "inputs", "casts", "weights"])
def test_weights_alone_make_a_half_precision_script(low: str | None) -> None:
    def loop() -> None:
        net = nn.Linear(2, 2)
        if low == "weights":
            net = net.half()
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.ones(1, 2)
        if low == "inputs":
            x = x.half()
        out = nn.functional.linear(x.half(), net.weight.half()) if low == "casts" else net(x)
        out.sum().backward()
        opt.step()

    assert watch(loop).facts["low_weights"] == ("float16" if low == "weights" else None)


CUDA: list[Callable[[], Any]] = [
    lambda: torch.ones(2).cuda(),
    lambda: torch.ones(2).to("cuda"),
    lambda: torch.ones(2).to("cuda:1", non_blocking=True),
    lambda: torch.ones(2).to(torch.device("cuda")),
    lambda: torch.zeros(2, device="cuda"),
    lambda: torch.zeros(2, device=torch.device("cuda", 0)),
    lambda: torch.tensor([1.0], device="cuda:0"),
    lambda: nn.Linear(2, 2).cuda().weight,
    lambda: nn.Linear(2, 2).to("cuda").weight,
    lambda: nn.Linear(2, 2, device="cuda").weight,
    lambda: torch.ones(2).type("torch.cuda.FloatTensor"),
    lambda: torch.ones(2).new_zeros(2, device="cuda"),
    lambda: torch.ones(2).pin_memory(),
]


@pytest.mark.parametrize("ask", CUDA)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_becomes_the_cpu(ask: Callable[[], Any]) -> None:
    with requests(keep_low=True) as r:
        assert ask().device.type == "cpu"
        assert r.mapped_cuda or "pin_memory" in ask.__code__.co_names


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_device_contexts() -> None:
    with requests() as r:
        with torch.device("cuda"):
            assert torch.zeros(2).device.type == "cpu"
        assert r.mapped_cuda


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("stage", list(StageName))
def test_autocast_for_cuda_is_autocast_for_the_cpu(stage: StageName) -> None:
    def loop() -> torch.dtype:
        net = nn.Linear(2, 2)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        with torch.autocast("cuda"):
            out = net(torch.ones(1, 2))
            assert torch.is_autocast_enabled("cuda") == torch.is_autocast_enabled("cpu")
        out.float().sum().backward()
        opt.step()
        return out.dtype

    watched = watch(loop, stage, facts={"autocast_dtype": "float16"})
    assert watched.result == (torch.float16 if stage is StageName.AMP else torch.float32)


def test_pytorchs_own_questions_are_none_of_the_scripts() -> None:
    with requests() as r:
        torch.is_autocast_enabled("cuda")
        torch.get_autocast_dtype("cuda")
        assert not r.asked_cuda


def test_nothing_is_touched_when_all_is_kept() -> None:
    with requests(keep_low=True, map_cuda=False) as r:
        x = torch.ones(2).half()
        assert x.dtype == torch.float16
        assert r.low_dtype(x) == "float16"
        assert x.half() is x
        assert not r.mapped_cuda
