"""`nanprobe sweep-scale` as people run it: every ending, the real runs, bad input, and nothing left running."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from command import Result, marked_processes, run_nanprobe, start_nanprobe, wait_for_line

RECIPE = Path(__file__).parents[1] / "recipes" / "tiny-gradient" / "train.py"

# A training whose parts a test fills in; 200 steps, of which the command takes as many as it is told.
TRAIN = """
import torch
from torch import nn

torch.manual_seed(0)
model = {model}
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
scaler = torch.amp.GradScaler("cpu", enabled={scaler}, init_scale={init_scale}, growth_interval=2)
x, y = torch.randn(16, 8), torch.randn(16, 4)
for step in range(200):
    {before}
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype={dtype}, enabled={autocast}):
        out = model(x)
    loss = {loss}
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
PLAIN = {
    "model": "nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))",
    "scaler": "True",
    "init_scale": "2.0**16",
    "before": "pass",
    "dtype": "torch.float16",
    "autocast": "True",
    "loss": "(out.float() - y).pow(2).mean()",
}


def sweep(folder: Path, *options: str, target: str = "train.py", code: int = 0, **parts: str) -> Result:
    """Sweep a training for two steps; checks what must hold for every ending."""
    (folder / "train.py").write_text(TRAIN.format(**{**PLAIN, **parts}))
    result = run_nanprobe("sweep-scale", target, "--steps", "2", "--output", "run", *options, cwd=folder)
    assert result.code == code, result.both
    assert result.left_running == []
    assert "Traceback" not in result.both
    return result


def sweep_json(folder: Path, *options: str, code: int = 0, **parts: str) -> dict[str, Any]:
    """The document of a sweep; it is also kept in the run directory."""
    result = sweep(folder, "--format", "json", *options, code=code, **parts)
    document: dict[str, Any] = json.loads(result.stdout, parse_constant=pytest.fail)
    assert json.loads((folder / "run" / "sweep.json").read_text()) == document
    return document


def test_a_healthy_script_with_its_own_scaler(tmp_path: Path) -> None:
    """The window, its edges proven by real runs, and what the script's scaler did."""
    found = sweep_json(tmp_path, "--steps", "4")
    assert {"schema_version", "nanprobe", "torch", "device", "target", "status"} <= found.keys()
    assert found["status"] == "healthy"
    assert found["target"] == {"path": "train.py", "argv": [], "mode": "script"}
    assert {"lowest_scale", "highest_scale", "low_set_by", "high_set_by"} <= found["window"].keys()
    assert found["window"]["lowest_scale"] <= 2.0**16 <= found["window"]["highest_scale"]
    assert [row["scale"] for row in found["scales"]] == [2.0**e for e in range(33)]
    for row in found["scales"]:
        assert {"overflowing_tensors", "flushed_fraction", "lost_norm_fraction"} <= row.keys()
    assert [row["name"] for row in found["layers"]] == ["2", "0"]
    assert all(row["window"] for row in found["layers"])
    for policy in found["policies"]:
        assert {"name", "skipped_steps", "effective_step_fraction", "flushed_fraction"} <= policy.keys()
    assert {"init_scale", "growth_interval", "why", "code"} <= found["advice"].keys()
    assert found["scaler"]["as_written"] is True
    assert (found["scaler"]["init_scale"], found["scaler"]["growth_interval"]) == (2.0**16, 2)
    assert found["scaler"]["scales"] == [2.0**16, 2.0**16, 2.0**17, 2.0**17]
    assert [each["edge"] for each in found["confirmations"]] == ["low", "high"]
    assert all(each["agrees"] for each in found["confirmations"])
    assert found["confirmations"][0]["real"]["flushed_fraction"] is not None


def test_no_safe_scale(tmp_path: Path) -> None:
    """One layer's gradient is 2^40 times another's: no scale keeps both."""
    model = "nn.ModuleList([nn.Linear(8, 4), nn.Linear(8, 4)])"
    (tmp_path / "two.py").write_text(
        "import torch\nfrom torch import nn\n"
        f"torch.manual_seed(0)\nmodel = {model}\noptimizer = torch.optim.SGD(model.parameters(), 1e-12)\n"
        "x = torch.randn(16, 8)\n"
        "for step in range(9):\n"
        "    optimizer.zero_grad()\n"
        "    with torch.autocast('cpu', dtype=torch.float16):\n"
        "        small, large = model[0](x), model[1](x)\n"
        "    loss = small.float().pow(2).mean() * 1e-9 + large.float().pow(2).mean() * 1e5\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
    )
    result = sweep(tmp_path, "--no-confirm", target="two.py", code=1)
    assert "NO SAFE LOSS SCALE" in result.stdout
    assert "no safe scale: layer" in result.stdout
    assert "WHAT TO DO" in result.stdout


def test_scales_shows_the_updates_of_real_runs_side_by_side(tmp_path: Path) -> None:
    """The recipe: a gradient of -2e-9 is 0 in FP16, rounds to the smallest subnormal, and is right, in this order."""
    result = run_nanprobe(
        "sweep-scale", str(RECIPE), "--scales", "1,16,65536", "--format", "json", "--steps", "1", "--no-confirm",
        "--output", "run", cwd=tmp_path,
    )  # fmt: skip
    assert result.code == 1, result.both  # the recipe's own scale, 1, loses everything
    assert result.left_running == []
    for name in ("fp32", "sweep", "scale-1", "scale-16", "scale-65536"):
        assert f"nanprobe: {name}: started" in result.stderr
        assert f"nanprobe: {name}: completed, 1 step in" in result.stderr
    runs = json.loads(result.stdout)["runs"]
    assert [run["scale"] for run in runs] == [1.0, 16.0, 65536.0]
    assert [run["flushed_fraction"] for run in runs] == [1.0, 0.0, 0.0]
    for run, gradient in zip(runs, (0.0, -(2.0**-24), -2200 * 2.0**-24), strict=True):
        assert len(run["updates"]) == 2
        for update in run["updates"]:
            assert update["gradient"] == pytest.approx(gradient, rel=1e-3)
            assert update["unscaled_gradient"] == pytest.approx(gradient / run["scale"], rel=1e-3)
            assert update["update"] == pytest.approx(-0.1 * gradient / run["scale"], rel=1e-3)
            assert update["weight_before"] == 0.0
            assert update["weight_after"] == update["update"]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--scales", "0", "--scales: 0 is no loss scale; expected finite numbers above 0"),
        ("--scales", "1,-4", "--scales: -4 is no loss scale; expected finite numbers above 0"),
        ("--scales", "inf", "--scales: inf is no loss scale; expected finite numbers above 0"),
        ("--scales", "abc", "--scales: 'abc' is no number; expected some like 1,1024,2**16"),
        ("--init-scale", "nan", "--init-scale nan: expected a finite number above 0"),
        ("--number-format", "fp12", "fp12"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, option: str, value: str, message: str) -> None:
    result = sweep(tmp_path, option, value, code=2)
    assert message in result.stderr
    assert result.stdout == ""


def test_bfloat16_needs_no_scale(tmp_path: Path) -> None:
    """The script's own format, and FP16 for comparison: there, the report says that it is one."""
    own = sweep_json(tmp_path, "--number-format", "bf16", dtype="torch.bfloat16", scaler="False")
    assert own["number_format"] == "bfloat16"
    assert own["advice"]["init_scale"] == 1.0
    assert "no loss scaling is needed" in own["advice"]["why"]
    assert all(each["agrees"] for each in own["confirmations"])
    shutil.rmtree(tmp_path / "run")
    other = sweep_json(tmp_path, dtype="torch.bfloat16", scaler="False")
    assert "the script computes in bfloat16, which needs no loss scale" in " ".join(other["notices"])
    assert other["confirmations"] == []


@pytest.mark.parametrize("name", ["e5m2", "e4m3"])
def test_other_number_formats(tmp_path: Path, name: str) -> None:
    found = sweep_json(tmp_path, "--number-format", name)
    assert name in found["number_format"]
    assert found["confirmations"] == []
    assert "the edges are not confirmed by real runs" in " ".join(found["notices"])


def test_nothing_is_computed_in_half_precision(tmp_path: Path) -> None:
    """The script's autocast is around nothing that autocast casts."""
    model = "type('Gain', (nn.Module,), dict(forward=lambda self, x: (x * self.g)[:, :4]))()"
    (tmp_path / "gain.py").write_text(
        TRAIN.format(**PLAIN).replace(
            f"model = {PLAIN['model']}", f"model = {model}\nmodel.g = nn.Parameter(torch.ones(()))"
        )
    )
    result = sweep(tmp_path, target="gain.py", code=3)
    assert "COULD NOT TELL" in result.stdout
    text = " ".join(result.stdout.split())
    assert "no gradient was computed in FP16, so no loss scale matters here" in text
    assert "run the model's forward pass under torch.autocast" in text


def test_a_script_that_fails_before_its_first_step(tmp_path: Path) -> None:
    result = sweep(tmp_path, before="raise FileNotFoundError('data/train.csv')", code=3)
    text = " ".join(result.stdout.split())
    assert "did not take one optimizer step in FP32" in text
    assert "FileNotFoundError: data/train.csv" in text
    assert "nanprobe diagnose train.py" in text


def test_gradients_that_are_all_zero(tmp_path: Path) -> None:
    result = sweep(tmp_path, loss="(out.float() - y).pow(2).mean() * 0", code=3)
    assert "every recorded gradient is exactly zero" in " ".join(result.stdout.split())


def test_a_script_that_is_not_finite_in_fp32(tmp_path: Path) -> None:
    result = sweep(tmp_path, loss="(out.float() - y).pow(2).mean() * float('inf')", code=3)
    text = " ".join(result.stdout.split())
    assert (
        "step 0 is not finite in FP32 already, which no loss scale can mend; nanprobe diagnose finds the cause" in text
    )


def test_a_scaler_that_overflows_again_and_again(tmp_path: Path) -> None:
    """From 2^34 down: every skipped step shows, and so does what the scale came to."""
    found = sweep_json(tmp_path, "--no-confirm", "--steps", "5", init_scale="2.0**34", code=1)
    assert found["scaler"]["skipped"] == [True] * 5
    assert found["scaler"]["scales"] == [2.0**34, 2.0**33, 2.0**32, 2.0**31, 2.0**30]
    assert "5 of 5 steps were skipped" in found["reasons"][0]
    assert found["window"]["highest_scale"] < 2.0**30


def test_a_contract_file(tmp_path: Path) -> None:
    (tmp_path / "contract.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def build_model(): return nn.Linear(4, 2)\n"
        "def build_data(): return [torch.randn(8, 4) for _ in range(5)]\n"
        "def compute_loss(model, batch): return model(batch).float().pow(2).mean()\n"
    )
    result = sweep(tmp_path, "--no-confirm", target="contract.py")
    assert "GRADSCALER PUT AROUND THE SCRIPT" in result.stdout
    assert "real run at" not in result.stdout


def test_ctrl_c_keeps_what_was_recorded(tmp_path: Path) -> None:
    """In the second of the runs that are asked for: the sweep itself is shown, and nothing is left running."""
    (tmp_path / "train.py").write_text(TRAIN.format(**{**PLAIN, "before": "import time; time.sleep(0.2)"}))
    with start_nanprobe(
        "sweep-scale", "train.py", "--steps", "3", "--output", "run", "--scales", "4,8", cwd=tmp_path
    ) as (process, mark):
        wait_for_line(process, "scale-8: started")
        os.kill(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
        assert marked_processes(mark) == []
    assert process.returncode == 3, stdout + stderr
    assert "interrupted by Ctrl-C in the run scale-8; what came before it is shown" in " ".join(stdout.split())
    assert "REAL RUNS, SIDE BY SIDE" in stdout
    assert "Traceback" not in stdout + stderr
    assert json.loads((tmp_path / "run" / "sweep.json").read_text())["window"] is not None


def test_ctrl_c_before_anything_was_recorded(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN.format(**{**PLAIN, "before": "import time; time.sleep(60)"}))
    with start_nanprobe("sweep-scale", "train.py", "--output", "run", cwd=tmp_path) as (process, mark):
        wait_for_line(process, "fp32: started")
        os.kill(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
        assert marked_processes(mark) == []
    assert process.returncode == 3, stdout + stderr
    assert "interrupted by Ctrl-C in the run fp32" in " ".join(stdout.split())
