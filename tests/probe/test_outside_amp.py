"""Autocast and scaling put around a script that has none; the raw stage that goes on after its weights broke."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nanprobe.plan import ScalerSettings
from nanprobe.precision.outside_amp import OutsideScaler
from nanprobe.records import StageName
from probe.sessions import watch


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.booleans(), max_size=30),
    st.integers(1, 4),
    st.sampled_from([1.0, 2.0**16, 2.0**126]),
    st.sampled_from([(2.0, 0.5), (4.0, 0.5), (1.5, 0.75)]),
)
def test_the_scale_moves_as_grad_scalers_does(
    overflows: list[bool], interval: int, init_scale: float, factors: tuple[float, float]
) -> None:
    w = torch.zeros(1, requires_grad=True)
    opt = torch.optim.SGD([w], lr=0.0)
    chosen = ScalerSettings(init_scale, *factors, interval)
    theirs = torch.amp.GradScaler("cpu", **chosen.given())
    ours = OutsideScaler(chosen)
    for overflow in overflows:
        w.grad = torch.full_like(w, math.inf if overflow else 0.0)
        theirs.scale(torch.zeros(()))
        theirs.step(opt)
        theirs.update()
        ours.after_backward([], [math.inf if overflow else 0.0])
        ours.end_step()
        assert ours.scale == pytest.approx(theirs.get_scale(), rel=1e-5)  # theirs is an FP32 number


def test_an_fp16_loss_is_scaled_as_grad_scaler_does() -> None:
    loss = torch.tensor(2.0, dtype=torch.float16)
    expected = torch.amp.GradScaler("cpu", init_scale=65536.0).scale(loss)
    got = OutsideScaler(ScalerSettings(65536.0)).scaled(loss)
    assert got.dtype == expected.dtype
    assert got == expected


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def grads(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("deep", [(), (0,)])
def test_accumulated_gradients_and_clipping_see_no_scale(deep: tuple[int, ...]) -> None:
    def loop(native: bool) -> tuple[list[Tensor], float]:
        model = net()
        opt = torch.optim.SGD(model.parameters(), lr=0.0)
        for i in range(3):
            with torch.autocast("cpu", torch.float16, enabled=native):
                out = model(torch.full((2, 3), i / 3))
            out.float().pow(2).mean().backward()
        before = grads(model)
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1e-3))
        opt.step()
        return before, norm

    expected, expected_norm = loop(False)
    got, norm = watch(lambda: loop(False), StageName.AMP, init_scale=1024.0, deep=deep).result
    assert norm == pytest.approx(expected_norm, rel=1e-2)
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(g, e, rtol=2e-2, atol=1e-4)


def test_autocast_is_on_in_the_models_forward() -> None:
    def loop() -> tuple[torch.dtype, torch.dtype]:
        model = net()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        out = model(torch.ones(2, 3))
        out.sum().backward()
        opt.step()
        with torch.no_grad():
            model(torch.ones(2, 3))
            outside = torch.ones(2, 3) @ torch.ones(3, 2)
        return out.dtype, outside.dtype

    assert watch(loop, StageName.AMP).result == (torch.float16, torch.float32)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_skipped_step_leaves_the_weights(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    def loop() -> list[bool]:
        model = net()
        opt = optimizer(model.parameters(), lr=0.1, weight_decay=0.1)
        unchanged = []
        for i in range(4):
            before = [p.detach().clone() for p in model.parameters()]
            opt.zero_grad()
            (model(torch.ones(2, 3)).float().mean() * (1e38 if i == 1 else 1.0)).backward()
            opt.step()
            unchanged.append(all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)))
        return unchanged

    watched = watch(loop, StageName.AMP, init_scale=256.0, growth_interval=2, deep=(1,))
    assert watched.result == [False, True, False, False]
    assert [s.skipped for s in watched.steps] == watched.result
    assert [s.loss_scale for s in watched.steps] == [256.0, 256.0, 128.0, 128.0]
    assert watched.deep[0].loss_scale == 256.0


def test_the_raw_stage_goes_on_after_adams_eps_was_flushed() -> None:
    def loop() -> list[Tensor]:
        w = nn.Parameter(torch.tensor([1.0, 2.0]))
        dead = nn.Parameter(torch.ones(2))
        opt = torch.optim.Adam([w, dead], lr=1e-2)
        module = nn.Module()
        module.w, module.dead = w, dead
        module.forward = lambda x: (x * module.w).sum() + (module.dead * 0.0).sum()  # type: ignore[method-assign]
        for _ in range(6):
            opt.zero_grad()
            module(torch.ones(2)).backward()
            opt.step()
        return [w.detach().clone(), dead.detach().clone()]

    watched = watch(loop, StageName.FP16)
    assert watched.facts["contained_update"] == 0
    assert [s.index for s in watched.steps] == list(range(6))
    assert all(torch.isfinite(t).all() for t in watched.result)
    assert watched.result[0][0] < 1.0
    assert all(t.half().float().equal(t) for t in watched.result)  # what the model sees is on FP16's grid
