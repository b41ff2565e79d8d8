"""A script whose own loss code PyTorch refuses under an autocast put around it: a second try with a narrower one."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from command import run_nanprobe
from nanprobe.precision.outside_amp import in_float32

SCRIPT = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 16), nn.Linear(16, 2)

    def forward(self, x):
        h = torch.relu(self.up(x))
        {inside}
        return {{"out": self.down(h)}}

class Loss(nn.Module):
    def forward(self, out, y):
        taken = torch.zeros(len(out), 1)
        taken[torch.arange(len(out))] = out[:, :1]{cast}
        return (taken[:, 0] - y).pow(2).mean()

torch.manual_seed(0)
net, loss_fn = Net(), Loss()
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for step in range(8):
    x = torch.randn(16, 4)
    loss = loss_fn(net(x)["out"], x[:, 0])
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def diagnose(folder: Path, inside: str = "pass", cast: str = "") -> tuple[int, dict[str, Any], Path]:
    (folder / "train.py").write_text(SCRIPT.format(inside=inside, cast=cast))
    run = folder / "run"
    done = run_nanprobe("diagnose", "train.py", "--format", "json", "--output", str(run), cwd=folder)
    return done.code, json.loads(done.stdout), run


def notices(run: Path, stage: str) -> list[str]:
    lines = (run / "stages" / stage / "trace.jsonl").read_text().splitlines()
    return [record["text"] for record in map(json.loads, lines) if record["type"] == "notice"]


def dtypes_of_loss_and_model(run: Path) -> tuple[set[str], set[str]]:
    """The formats that the amp stage's first deep step computed in, outside the model and in it."""
    from nanprobe.storage import read_stage

    ops = [op for op in read_stage(run / "stages" / "amp").deep_steps[0].ops if op.phase.value == "forward"]
    outside = {s.dtype for op in ops if op.module in (None, "Loss") for s in op.outputs}
    return outside, {s.dtype for op in ops if op.module in ("up", "down") for s in op.outputs}


def test_a_second_try_around_the_model_alone(tmp_path: Path) -> None:
    code, document, run = diagnose(tmp_path)
    amp = document["stages"][-1]
    assert (code, document["status"], amp["outcome"], amp["steps"]) == (0, "healthy", "completed", 8)
    (told,) = notices(run, "amp")
    assert "Index put requires" in told and "train.py:18" in told and "the model's forward only" in told
    outside, inside = dtypes_of_loss_and_model(run)
    assert outside == {"float32"} and "float16" in inside
    assert (run / "stages" / "amp-refused" / "trace.jsonl").exists()


def test_no_second_try_where_the_first_is_not_refused(tmp_path: Path) -> None:
    code, _, run = diagnose(tmp_path, cast=".float()")
    assert code == 0 and not notices(run, "amp") and not (run / "stages" / "amp-refused").exists()


def test_a_second_try_that_is_refused_as_well(tmp_path: Path) -> None:
    mixed = "t = torch.zeros(len(h), 16); t[torch.arange(len(h))] = self.up(x)"
    code, document, run = diagnose(tmp_path, inside=mixed)
    assert (code, document["status"], document["stages"][-1]["outcome"]) == (3, "inconclusive", "crashed")
    (told,) = notices(run, "amp")
    assert "came no further" in told and (run / "stages" / "amp-narrow").exists()


def test_outputs_of_every_shape_become_float32() -> None:
    @dataclass
    class Other:
        value: torch.Tensor

    half, plain = torch.ones(2, dtype=torch.float16), torch.ones(2)
    made = in_float32(OrderedDict(a=half, b=[(half, plain), 3, None]))
    assert isinstance(made, OrderedDict) and made["a"].dtype == made["b"][0][0].dtype == torch.float32
    assert made["b"][0][1] is plain and made["b"][1:] == [3, None]
    assert in_float32((plain, 1)) is None and in_float32(None) is None and in_float32(Other(half)) is None


def test_the_gradient_goes_through_the_cast() -> None:
    half = torch.ones(2, dtype=torch.float16, requires_grad=True)
    in_float32(half * 2).sum().backward()
    assert half.grad is not None and half.grad.dtype == torch.float16 and half.grad.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("name", ["amp-refused", "amp-narrow"])
def test_the_other_try_is_no_stage_of_the_run(name: str, tmp_path: Path) -> None:
    from nanprobe.storage import read_run

    _, _, run = diagnose(
        tmp_path, inside="pass" if name == "amp-refused" else "t = h.clone().float(); t[[0]] = self.up(x)[[0]]"
    )
    assert (run / "stages" / name).exists()
    assert [stage.name.value for stage in read_run(run).stages] == ["fp32", "fp16", "amp"]
