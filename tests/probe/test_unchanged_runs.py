"""Watching changes no number, draws no random number, and leaves nothing behind."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from nanprobe.probe.session import StageDone
from nanprobe.records import StageName
from probe.sessions import AMP_FACTS, watch


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm1d(8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.conv(self.embed(x).transpose(1, 2))).transpose(1, 2)
        h = F.dropout(h, 0.3, self.training)
        h = self.block(self.lstm(h)[0])
        h[:, 0] = h[:, 0] * 0.5
        return self.head(h.mean(1))


def train(steps: int = 20, optimizer: str = "AdamW", **kwargs: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Everything()
    opt = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-2, **kwargs)
    losses = []
    for step in range(steps):
        x = torch.randint(0, 11, (4, 6))
        y = torch.randint(0, 3, (4,))
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
        if step % 7 == 3:
            model.eval()
            with torch.no_grad():
                losses.append(model(x).sum().item())
            model.train()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    grads = {k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None}
    return {"state": state, "grads": grads, "losses": losses, "rng": torch.get_rng_state(), "random": random.random()}


def assert_identical(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_identical(a[key], b[key])
    elif isinstance(a, Tensor):
        assert torch.equal(a, b)
    else:
        assert a == b


@pytest.mark.parametrize("deep", [(), (0,), (0, 1, 7, 19), tuple(range(20))], ids=lambda d: f"{len(d)} deep")
@pytest.mark.parametrize("kwargs", [{}, {"foreach": True}, {"fused": True}], ids=str)
def test_twenty_steps_are_bit_identical(deep: tuple[int, ...], kwargs: dict[str, Any]) -> None:
    if kwargs and len(deep) not in (0, 4):
        pytest.skip("covered by the plain optimizer")
    random.seed(5)
    plain = train(**kwargs)
    random.seed(5)
    watched = watch(lambda: train(**kwargs), deep=deep)
    assert_identical(plain, watched.result)
    assert [s.index for s in watched.steps] == list(range(20))
    assert [d.step for d in watched.deep] == list(deep)
    assert not any(d.truncated for d in watched.deep)
    # The re-check of a healthy FP32 step is the step itself, up to rounding.
    for d in watched.deep:
        wrong = {
            g.name: g for g in d.grads if g.shadow_norm and g.shadow_norm > 1e-6 and (g.relative_error or 0) > 1e-4
        }
        assert not wrong
        assert d.loss_writers


def test_numpy_state_is_left_alone() -> None:
    np.random.seed(1)
    before = np.random.get_state()[1].tolist()  # type: ignore[index]
    watch(lambda: train(2), deep=(0, 1))
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]


def amp_loop() -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=3)
    for _ in range(16):
        x = torch.randn(8, 4)
        with torch.autocast("cpu", torch.float16):
            loss = model(x).float().pow(2).mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
    return {
        "state": {k: v.clone() for k, v in model.state_dict().items()},
        "scaler": {k: float(v) for k, v in scaler.state_dict().items()},
        "rng": torch.get_rng_state(),
    }


@pytest.mark.parametrize("deep", [(0, 1, 5), tuple(range(16))])
def test_deep_steps_of_the_amp_stage_change_nothing(deep: tuple[int, ...]) -> None:
    shallow = watch(amp_loop, StageName.AMP, facts=AMP_FACTS)
    looked = watch(amp_loop, StageName.AMP, facts=AMP_FACTS, deep=deep)
    assert_identical(shallow.result, looked.result)
    assert [(s.skipped, s.loss_scale) for s in shallow.steps] == [(s.skipped, s.loss_scale) for s in looked.steps]
    assert any(s.skipped for s in looked.steps) and not all(s.skipped for s in looked.steps)


@pytest.mark.parametrize("facts", [{}, {"low_weights": "float16"}])
def test_deep_steps_of_the_raw_stage_change_nothing(facts: dict[str, object]) -> None:
    random.seed(5)
    shallow = watch(lambda: train(6, "SGD"), StageName.FP16, facts=facts)
    random.seed(5)
    looked = watch(lambda: train(6, "SGD"), StageName.FP16, facts=facts, deep=(0, 2, 5))
    assert_identical(shallow.result, looked.result)


@pytest.mark.parametrize("stage", list(StageName))
@pytest.mark.parametrize("deep", [(), (0, 1)])
def test_nothing_is_left_when_the_session_ends_the_run(stage: StageName, deep: tuple[int, ...]) -> None:
    watched = watch(lambda: train(5), stage, steps=2, deep=deep)
    assert watched.done
    assert len(watched.steps) == 2


@pytest.mark.parametrize("stage", list(StageName))
@pytest.mark.parametrize("where", ["forward", "backward", "update", "nested"])
def test_nothing_is_left_after_an_exception(stage: StageName, where: str) -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            raise ZeroDivisionError

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.inner(x)
            if where == "forward":
                raise ZeroDivisionError
            return Fails.apply(h) if where == "backward" else h  # type: ignore[no-any-return]

    class Bad(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise ZeroDivisionError

    def loop() -> None:
        model = Model()
        opt = (Bad if where == "update" else torch.optim.SGD)(model.parameters(), lr=0.1)
        try:
            model(torch.ones(1, 2)).sum().backward()
        except ZeroDivisionError:
            if where == "nested":
                raise
        if where == "nested":
            raise ZeroDivisionError
        opt.step()

    if where in ("update", "nested"):
        with pytest.raises(ZeroDivisionError):
            watch(loop, stage, deep=(0,))
    else:
        watch(loop, stage, deep=(0,))


def test_a_mode_of_the_scripts_own_is_not_disturbed() -> None:
    def loop() -> list[int]:
        model = nn.Linear(4, 4)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        flops = []
        for _ in range(4):
            with FlopCounterMode(display=False) as counter:
                model(torch.ones(2, 4)).sum().backward()
                opt.step()
                torch.ones(2, 4) @ torch.ones(4, 4)
            flops.append(counter.get_total_flops())
        return flops

    plain = loop()
    assert watch(loop, deep=(0, 2)).result == plain
    assert watch(loop, deep=(1, 2, 3)).result == plain


def test_stage_done_is_no_exception() -> None:
    assert not issubclass(StageDone, Exception)
