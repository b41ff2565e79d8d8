"""A loss scale that a script makes itself: seen where it is taken out of the gradients again, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from builders import Step, half_step, parameters, run, stats, step_record, trace
from nanprobe.diagnosis import diagnose
from nanprobe.diagnosis.handmade import handmade_scale, with_handmade_scale
from nanprobe.diagnosis.trail import Trail
from nanprobe.records import ExternalKind, Phase, StageName
from stages import run_stage


def scaled(
    factor: float,
    undone: float | None,
    op: str = "div",
    step: int = 0,
    *,
    of_gradient: bool = True,
    constant: bool = False,
) -> Step:
    """A step that multiplies the loss by `factor`, and a gradient by 1 / `undone` after backward."""
    deep = half_step(step)
    loss = deep.op("mse_loss", deep.external(), out=stats(()))
    held = deep.external(ExternalKind.CONSTANT, made_of=stats((), peak=factor))
    product = (
        deep.op("mul", loss, held, out=stats(()))
        if constant
        else deep.op("mul", loss, out=stats(()), scalars=(factor,))
    )
    deep.loss_writers = (product,)
    grad = deep.op("mm", deep.external(), out=stats(dtype="float16"), phase=Phase.BACKWARD, node="MmBackward0")
    if undone is not None:
        deep.op(op, grad if of_gradient else loss, phase=Phase.UPDATE, scalars=(undone,))
    deep.grad("a.weight", grad)
    return deep


@pytest.mark.parametrize(
    ("step", "scale"),
    [
        (scaled(256.0, None), 256.0),  # large enough to be one anyhow
        (scaled(0.5, None), 1.0),  # the weight of a loss term
        (scaled(0.5, 0.5), 0.5),
        (scaled(2.0, 0.5, "mul"), 2.0),
        (scaled(2.0, 2.0, "mul"), 1.0),  # multiplied once more
        (scaled(0.5, 0.25), 1.0),
        (scaled(0.5, 0.5, of_gradient=False), 1.0),  # a number for the log
        (scaled(0.5, 0.5, constant=True), 0.5),
    ],
)
def test_a_factor_is_a_scale_where_it_is_taken_out_of_the_gradients(step: Step, scale: float) -> None:
    assert handmade_scale(Trail(step.done())) == scale


def test_the_layers_are_shown_without_it() -> None:
    steps = tuple(
        step_record(k, grads=(64.0 / 4**k, 0.25), loss=32.0 / 4**k, loss_factor=64.0 / 4**k) for k in range(3)
    )
    infos = (*parameters("a.weight", dtype="float16"), replace(parameters("a.weight@master")[0], master_of="a.weight"))
    stage = trace(StageName.FP16, scaled(64.0, 64.0), steps=steps, parameters=infos)
    assert [s.loss for s in with_handmade_scale(run(stage)).stages[0].steps] == [0.5] * 3
    low, master = diagnose(run(stage)).layers
    assert low.grad_abs_max == {"fp16": 1.0}
    assert master.grad_abs_max == {"fp16": 0.25}


def test_a_factor_that_nothing_takes_out_is_left_in() -> None:
    steps = (step_record(0, grads=(64.0, 0.25), loss_factor=64.0),)
    stage = trace(StageName.FP16, scaled(64.0, None), steps=steps)
    assert with_handmade_scale(run(stage)).stages == (stage,)


def test_the_scale_of_a_gradscaler_is_left_alone() -> None:
    steps = (step_record(0, loss_scale=1024.0, loss_factor=1024.0),)
    stage = trace(StageName.AMP, scaled(64.0, 64.0), steps=steps)
    assert with_handmade_scale(run(stage)).stages == (stage,)


# The probe reads the factor off the graph.


def train(scale: object, *, divided: bool = False) -> object:
    def loop() -> None:
        torch.manual_seed(0)
        net = nn.Linear(3, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            loss = net(torch.randn(4, 3)).pow(2).mean()
            opt.zero_grad()
            (loss / scale if divided else loss * scale).backward()  # type: ignore[operator]
            for p in net.parameters():
                p.grad.div_(scale)  # type: ignore[union-attr]
            opt.step()

    return loop


@pytest.mark.parametrize("stage", list(StageName))
@pytest.mark.parametrize("scale", [64.0, torch.tensor(64.0)])
def test_a_factor_is_recorded_in_every_step(stage: StageName, scale: object) -> None:
    done = run_stage(train(scale), stage, deep=(0,))  # type: ignore[arg-type]
    assert done.error is None
    assert [s.loss_factor for s in done.steps] == [64.0, 64.0]
    if stage is not StageName.AMP:  # there a scaler's own factor comes last
        assert handmade_scale(Trail(done.deep_steps[0])) == 64.0


def test_a_quotient_is_no_factor() -> None:
    done = run_stage(train(64.0, divided=True))  # type: ignore[arg-type]
    assert [s.loss_factor for s in done.steps] == [None, None]
