"""What counts as a step, for the many ways in which people write a training loop."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nanprobe.records import Phase, StageName
from probe.sessions import AMP_FACTS, watch


def model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def test_accumulation_counts_backward_passes() -> None:
    def loop() -> None:
        net = model()
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(6):
            (net(torch.randn(2, 3)).mean() / 3).backward()
            if i % 3 == 2:
                opt.step()
                opt.zero_grad()

    watched = watch(loop, deep=(0, 1))
    assert [s.backward_passes for s in watched.steps] == [3, 3]
    assert [len(d.loss_writers) for d in watched.deep] == [3, 3]


def test_every_update_of_a_gan_is_a_step_of_its_optimizer() -> None:
    def loop() -> None:
        generator, critic = model(), model(1)
        opt_g = torch.optim.Adam(generator.parameters(), lr=0.1)
        opt_d = torch.optim.Adam(critic.parameters(), lr=0.1)
        for _ in range(2):
            fake = generator(torch.randn(2, 3)).expand(2, 3)
            opt_d.zero_grad()
            critic(fake.detach()).mean().backward()
            opt_d.step()
            opt_g.zero_grad()
            critic(fake).mean().backward()
            opt_g.step()

    watched = watch(loop, deep=(0, 1))
    assert [s.optimizer for s in watched.steps] == ["Adam#2", "Adam", "Adam#2", "Adam"] or [
        s.optimizer for s in watched.steps
    ] == ["Adam", "Adam#2", "Adam", "Adam#2"]
    names = [{u.name.partition(".")[0] for u in d.updates} for d in watched.deep]
    assert names == [{"critic"}, {"generator"}]


def test_lbfgs_closures() -> None:
    def loop() -> None:
        net = model()
        opt = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3)
        x = torch.randn(4, 3)

        def closure() -> Tensor:
            opt.zero_grad()
            loss = net(x).pow(2).mean()
            loss.backward()
            return loss

        for _ in range(2):
            opt.step(closure)

    watched = watch(loop, deep=(0, 1))
    assert [s.optimizer for s in watched.steps] == ["LBFGS", "LBFGS"]
    assert all(s.backward_passes >= 3 for s in watched.steps)
    phases = {op.phase for op in watched.deep[1].ops}
    assert {Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE} <= phases
    assert len(watched.deep[0].updates) == 4


def test_steps_that_grad_scaler_skips() -> None:
    def loop() -> None:
        net = model()
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
        for step in range(4):
            opt.zero_grad()
            loss = net(torch.ones(2, 3)).mean() * (float("inf") if step == 1 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()

    watched = watch(loop, StageName.AMP, facts=AMP_FACTS, deep=(0, 1, 2))
    assert [s.skipped for s in watched.steps] == [False, True, False, False]
    assert [s.loss_scale for s in watched.steps] == [2.0**20, 2.0**20, 2.0**19, 2.0**19]
    assert [len(d.updates) for d in watched.deep] == [4, 0, 4]
    assert [d.loss_scale for d in watched.deep] == [2.0**20, 2.0**20, 2.0**19]


def test_no_optimizer_at_all() -> None:
    def loop() -> list[Tensor]:
        net = model()
        for _ in range(3):
            net(torch.ones(2, 3)).mean().backward()
            with torch.no_grad():
                for p in net.parameters():
                    assert p.grad is not None
                    p -= 0.1 * p.grad
                    p.grad = None
        return [p.detach().clone() for p in net.parameters()]

    plain = loop()
    watched = watch(loop, deep=(0, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(plain, watched.result, strict=True))
    assert len(watched.steps) == 3
    assert all(s.optimizer is None for s in watched.steps)
    # A step ends with its backward, so the update is the beginning of the next one.
    assert {op.op for op in watched.deep[1].ops} >= {"aten.sub_.Tensor"}


def test_gradients_from_autograd_grad() -> None:
    def loop() -> None:
        net = model()
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            loss = net(torch.ones(2, 3)).mean()
            for p, g in zip(net.parameters(), torch.autograd.grad(loss, list(net.parameters())), strict=True):
                p.grad = g
            opt.step()

    watched = watch(loop, deep=(0, 1))
    assert len(watched.steps) == 2
    assert all(v is not None and v > 0 for v in watched.steps[0].grad_abs_max)
    assert {op.phase for op in watched.ops("tanh_backward")} == {Phase.BACKWARD}


def test_an_optimizer_inside_an_optimizer() -> None:
    class Averaged(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner = inner
            super().__init__(inner.param_groups, {})

        def step(self, closure: Any = None) -> None:
            self.inner.step()

    def loop() -> None:
        net = model()
        opt = Averaged(torch.optim.SGD(net.parameters(), lr=0.1))
        for _ in range(3):
            opt.zero_grad()
            net(torch.ones(2, 3)).mean().backward()
            opt.step()

    watched = watch(loop, deep=(1,))
    assert [s.optimizer for s in watched.steps] == ["Averaged"] * 3
    assert len(watched.deep[0].updates) == 4


def test_an_optimizer_that_is_no_optimizer() -> None:
    class Own:
        def __init__(self, parameters: Any) -> None:
            self.parameters = list(parameters)

        @torch.no_grad()
        def step(self) -> None:
            for p in self.parameters:
                p.sub_(p.grad, alpha=0.1)

    def loop() -> None:
        net = model()
        opt = Own(net.parameters())
        for _ in range(3):
            net.zero_grad()
            net(torch.ones(2, 3)).mean().backward()
            opt.step()

    watched = watch(loop, deep=(0, 1))
    assert len(watched.steps) == 3
    assert len(watched.deep) == 2


@pytest.mark.parametrize("deep", [(), (0, 1)])
def test_the_session_ends_after_the_steps_asked_for(deep: tuple[int, ...]) -> None:
    def loop() -> None:
        net = model()
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        while True:
            try:
                net(torch.ones(2, 3)).mean().backward()
                opt.step()
            except Exception:
                pytest.fail("swallowed")

    watched = watch(loop, steps=3, deep=deep)
    assert watched.done
    assert len(watched.steps) == 3


def test_a_rerun_stops_after_its_last_deep_step() -> None:
    def loop() -> None:
        net = model()
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(9):
            net(torch.ones(2, 3)).mean().backward()
            opt.step()

    watched = watch(loop, deep=(1, 4), rerun=True)
    assert [s.index for s in watched.steps] == [0, 1, 2, 3, 4]
    assert [d.step for d in watched.deep] == [1, 4]


def test_nonfinite_weights_end_the_stage() -> None:
    def loop() -> None:
        net = model()
        opt = torch.optim.SGD(net.parameters(), lr=float("inf"))
        for _ in range(5):
            net(torch.ones(2, 3)).mean().backward()
            opt.step()

    watched = watch(loop)
    assert watched.done
    assert len(watched.steps) == 1
    assert watched.steps[0].nonfinite_weights


def test_updates_say_what_was_swallowed() -> None:
    def loop() -> None:
        w = nn.Parameter(torch.tensor([1.0, 1000.0]))
        opt = torch.optim.SGD([w], lr=1e-5)
        for _ in range(2):
            opt.zero_grad()
            w.sum().backward()
            opt.step()

    update = watch(loop, deep=(0,)).deep[0].updates[0]
    assert (update.changed_fraction, update.swallowed_fraction) == (0.5, 0.5)
    assert update.update_abs_max == pytest.approx(1e-5)
    assert update.writers


def test_a_gradient_that_was_not_finite_stays_on_record_of_the_backward_that_made_it() -> None:
    def loop() -> None:
        w = nn.Parameter(torch.tensor([1.0, 2.0]))
        opt = torch.optim.SGD([w], lr=0.1)
        for factor in (1.0, math.inf, 1.0):
            opt.zero_grad()
            (w * factor).sum().backward()
        opt.step()

    (deep,) = watch(loop, deep=(0,)).deep
    (grad,) = deep.grads
    assert (grad.stats.inf_count, grad.backward) == (2, 1)
