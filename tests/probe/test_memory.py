"""Shadow memory: what dies is dropped, an address given out again is a new storage, and no memory is no disaster."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nanprobe.probe.memory import ShadowMemory
from nanprobe.records import StageName
from probe.sessions import AMP_FACTS, watch
from probe.shadowing import assert_same, shadow, shadow_mode


def shadow_bytes(memory: ShadowMemory) -> int:
    return sum(e.flat.nbytes for e in memory._entries.values() if e.flat is not None)


def test_shadows_of_dead_storages_are_dropped() -> None:
    mode = shadow_mode()
    x = torch.ones(1 << 18)  # 1 MiB, its shadow 2
    with mode:
        for _ in range(40):
            x = x * 0.9
    assert shadow_bytes(mode.memory) <= 16 << 20
    assert len(mode.memory._entries) < 20


def test_an_address_that_is_used_again_has_no_shadow_yet() -> None:
    mode = shadow_mode()
    for value in range(30):
        with mode:
            made = torch.full((64,), 1.0) / 3
        assert_same(shadow(mode, made), torch.full((64,), 1.0, dtype=torch.float64) / 3)
        del made
        other = torch.full((64,), float(value))  # outside: nobody tells the memory
        assert mode.memory.find(other) is None


def test_a_small_part_of_a_big_storage_is_converted_by_itself() -> None:
    mode = shadow_mode()
    table = torch.ones(1 << 16, 4)
    with mode:
        table[7] * 2
    assert shadow_bytes(mode.memory) < 1000


def train() -> list[Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(8, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=0.1)
    for _ in range(3):
        opt.zero_grad()
        net(torch.randn(5, 4)).pow(2).mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
    return [p.detach().clone() for p in net.parameters()] + [torch.get_rng_state()]


@pytest.mark.parametrize("where", ["adopt", "write", "read"])
@pytest.mark.parametrize("after", [0, 3, 40, 70])
@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_the_run_goes_on_when_memory_runs_out(
    monkeypatch: pytest.MonkeyPatch, where: str, after: int, error: BaseException
) -> None:
    plain = train()
    original = getattr(ShadowMemory, where)
    calls = 0

    def failing(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise error
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(ShadowMemory, where, failing)
        watched = watch(train, deep=(0, 1))
    assert calls > after
    assert all(torch.equal(a, b) for a, b in zip(plain, watched.result, strict=True))
    assert len(watched.steps) == 3
    assert [d.step for d in watched.deep] == [0, 1]
    assert "memory ran out" in (watched.deep[-1].truncated or "")
    assert watched.deep[-1].updates == ()


def test_a_recheck_that_breaks_does_not_break_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = train()

    def failing(*args: Any) -> Any:
        raise ZeroDivisionError("oops")

    with monkeypatch.context() as patch:
        patch.setattr(ShadowMemory, "adopt", failing)
        watched = watch(train, StageName.FP32, deep=(0,))
    assert all(torch.equal(a, b) for a, b in zip(plain, watched.result, strict=True))
    assert "ZeroDivisionError: oops" in (watched.deep[0].truncated or "")


def test_memory_that_runs_out_for_the_script_itself() -> None:
    """Without the shadows there is room again: the operation is tried once more."""

    class Tight(torch.utils._python_dispatch.TorchDispatchMode):
        failed = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.tanh.default and not self.failed:
                self.failed += 1
                raise torch.OutOfMemoryError
            return func(*args, **(kwargs or {}))

    mode = shadow_mode()
    with Tight(), mode:
        y = (torch.ones(3) / 3).tanh()
    assert mode.stopped is not None
    assert_same(y, (torch.ones(3) / 3).tanh())


def test_amp_facts_reach_the_script() -> None:
    def loop() -> torch.dtype:
        net = nn.Linear(2, 2)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        with torch.autocast("cpu", torch.float16):
            out = net(torch.ones(1, 2))
        out.float().sum().backward()
        opt.step()
        return out.dtype

    assert watch(loop, StageName.AMP, facts=AMP_FACTS).result == torch.float16
    assert watch(loop, StageName.FP32).result == torch.float32
