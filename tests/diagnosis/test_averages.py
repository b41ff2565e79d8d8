"""What a script changes in place in half precision: averages that stand still, and changes that are none of those."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from nanprobe.diagnosis import findings_of
from nanprobe.findings import Finding, Severity
from nanprobe.records import StageName
from probe.sessions import AMP_FACTS
from stages import run_stage

STEPS = 6


def found(after_step: Callable[[nn.Module], Callable[[], Any]]) -> dict[str, Finding]:
    """Findings about a small training under autocast; `after_step(model)` gives what follows each step."""

    def loop() -> None:
        torch.manual_seed(0)
        model = nn.Linear(16, 16)
        follow = after_step(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for _ in range(STEPS):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(torch.randn(8, 16)).float().pow(2).mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            with torch.no_grad():
                follow()

    trace = run_stage(loop, StageName.AMP, steps=STEPS, deep=(STEPS - 1,), facts=AMP_FACTS)
    return {f.code: f for f in findings_of(trace)}


def half_copy(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone().half() for p in model.parameters()]


def pairs(average: list[Tensor], model: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(average, (p.detach().half() for p in model.parameters()), strict=True)


def keeping(decay: float) -> Callable[[nn.Module], Callable[[], Any]]:
    def after_step(model: nn.Module) -> Callable[[], Any]:
        average = half_copy(model)
        return lambda: [a.mul_(decay).add_(p, alpha=1 - decay) for a, p in pairs(average, model)]

    return after_step


def test_an_average_in_half_stands_still() -> None:
    finding = found(keeping(0.9999))["NP207"]
    assert (finding.severity, finding.source and finding.source.code[:20]) == (Severity.WARNING, "return lambda: [a.mu")
    assert "FP32" in finding.remedies[0].text and finding.evidence["parameters"] == 2


def test_the_same_by_lerp_and_by_copy() -> None:
    def lerp(model: nn.Module) -> Callable[[], Any]:
        average = half_copy(model)
        return lambda: [a.lerp_(p, 1e-4) for a, p in pairs(average, model)]

    def copy(model: nn.Module) -> Callable[[], Any]:
        average = half_copy(model)
        return lambda: [a.copy_(0.9999 * a + 1e-4 * p) for a, p in pairs(average, model)]

    assert "NP207" in found(lerp) and "NP207" in found(copy)


def test_an_average_that_moves_is_silent() -> None:
    assert "NP207" not in found(keeping(0.5))


def test_an_average_in_fp32_is_silent() -> None:
    def after_step(model: nn.Module) -> Callable[[], Any]:
        average = [p.detach().clone() for p in model.parameters()]
        return lambda: [a.lerp_(p, 1e-4) for a, p in zip(average, model.parameters(), strict=True)]

    assert "NP207" not in found(after_step)


def test_a_half_copy_of_the_weights_is_silent() -> None:
    def after_step(model: nn.Module) -> Callable[[], Any]:
        copy = half_copy(model)

        def follow() -> None:
            assert all(torch.isfinite(c).all() for c in copy)  # read before it is overwritten
            for c, p in zip(copy, model.parameters(), strict=True):
                c.copy_(p)

        return follow

    assert "NP207" not in found(after_step)


def test_a_sum_for_the_log_is_silent() -> None:
    def after_step(model: nn.Module) -> Callable[[], Any]:
        totals = torch.full((3,), 4096.0).half()
        return lambda: totals.add_(1e-3)

    assert "NP207" not in found(after_step)


def test_a_hand_made_update_of_half_weights_is_an_update() -> None:
    def loop() -> None:
        torch.manual_seed(0)
        model = nn.Linear(16, 16).half()
        for _ in range(STEPS):
            for p in model.parameters():
                p.grad = None
            model(torch.randn(8, 16).half()).float().pow(2).mean().backward()
            for p in model.parameters():
                p.data.sub_(p.grad, alpha=1e-5)

    facts = {"low_weights": "float16"}
    trace = run_stage(loop, StageName.FP16, steps=STEPS, deep=(STEPS - 1,), facts=facts)
    (finding,) = [f for f in findings_of(trace) if f.code == "NP202"]
    assert finding.severity is Severity.ERROR and set(finding.parameters) == {"weight", "bias"}
