"""Scripts that train bare tensors by hand, and scripts whose optimizers share a backward."""

from __future__ import annotations

import math

import torch
from torch import nn

from nanprobe.records import ExternalKind, StageName
from probe.sessions import watch


def by_hand(steps: int = 6) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    w = torch.randn(3, 2, requires_grad=True)
    b = torch.zeros(2, requires_grad=True)
    x, y = torch.randn(8, 3), torch.randn(8, 2)
    for _ in range(steps):
        ((x @ w + b - y) ** 2).mean().backward()
        with torch.no_grad():
            w = (w - 0.1 * w.grad).requires_grad_()
            b -= 0.1 * b.grad
            b.grad.zero_()
    return {"w": w.detach(), "b": b.detach()}


def test_bare_tensors_are_watched_by_their_names() -> None:
    watched = watch(by_hand, deep=(1,))
    assert {p.name for p in watched.of(tuple)[-1]} == {"w", "b"}
    assert all(len([g for g in step.grad_abs_max if g]) == 2 for step in watched.steps)
    kinds = {e.name: e.kind for e in watched.deep[0].externals if e.kind is not ExternalKind.GRADIENT and e.name}
    assert kinds == {"w": ExternalKind.PARAMETER, "b": ExternalKind.PARAMETER}


def test_a_scale_put_around_bare_tensors_is_taken_out_again() -> None:
    plain = by_hand()
    scaled = watch(by_hand, StageName.AMP).result
    for name, value in plain.items():
        torch.testing.assert_close(scaled[name], value, atol=2e-2, rtol=2e-2)


def two_optimizers() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    first = torch.optim.SGD(net[0].parameters(), lr=0.1)
    second = torch.optim.SGD(net[1].parameters(), lr=0.1)
    for _ in range(6):
        net.zero_grad()
        (1e3 * net(torch.randn(16, 4)).pow(2)).mean().backward()
        first.step()
        second.step()
    return net


def test_all_optimizers_skip_what_one_backward_left_infinite() -> None:
    watched = watch(two_optimizers, StageName.AMP, init_scale=2.0**24)
    assert {step.skipped for step in watched.steps[:2]} == {True}
    assert all(bool(torch.isfinite(p).all()) for p in watched.result.parameters())
    by_backward = [(a.skipped, b.skipped) for a, b in zip(watched.steps[::2], watched.steps[1::2], strict=True)]
    assert all(a == b for a, b in by_backward)
    assert math.isfinite(watched.steps[-1].loss or 0.0)


def test_a_low_precision_tensor_is_noted_as_asked_for() -> None:
    def loop() -> None:
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.rand(4, 2, dtype=torch.bfloat16).float()).sum().backward()
        optimizer.step()

    facts = watch(loop).facts
    assert (facts["asked_low"], facts["low_weights"], facts["as_written"]) == ("bfloat16", None, False)


def test_the_raw_stage_labels_its_numbers_with_its_own_format() -> None:
    def loop() -> None:
        net = nn.Linear(4, 1)
        nn.init.ones_(net.weight)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        (net(torch.full((2, 4), 300.0)) * 1e4).sum().backward()
        optimizer.step()

    watched = watch(loop, StageName.FP16, deep=(0,))
    scaled = next(s for op in watched.ops("mul") for s in op.outputs if s.inf_count)
    assert scaled.dtype == "float16"
    assert scaled.inf_count and scaled.shadow_abs_max is not None and scaled.shadow_abs_max > 65504
