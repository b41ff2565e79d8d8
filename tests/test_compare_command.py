"""`nanprobe compare` on two real runs of a script before and after a change, and every exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import Result, run_nanprobe

TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for step in range(100):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        h = model(torch.randn(8, 8))
        h = h * {factor}
    h.float().pow(2).mean().mul({weight}).backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs: before the change, after it, and one that does not start."""
    folder = tmp_path_factory.mktemp("runs")
    for name, factor, weight in (("before", "1e6", "1e-12"), ("after", "1", "1"), ("stuck", "[][0]", "1")):
        (folder / "train.py").write_text(TRAIN.format(factor=factor, weight=weight))
        run_nanprobe("diagnose", "train.py", "--steps", "4", "--output", name, cwd=folder)
    return folder


def compare(folder: Path, *args: str) -> Result:
    result = run_nanprobe("compare", *args, cwd=folder)
    assert "Traceback" not in result.both
    return result


@pytest.mark.parametrize(
    ("before", "after", "code", "words"),
    [
        ("before", "after", 0, "✔ FIXED"),
        ("after", "before", 1, "✖ BROKEN"),
        ("before", "before", 1, "✖ STILL FAILING, FOR THE SAME REASON"),
        ("after", "stuck", 3, "? COULD NOT TELL"),
        ("stuck", "after", 0, "✔ HEALTHY"),
    ],
)
def test_the_exit_code_is_that_of_the_second_run(folder: Path, before: str, after: str, code: int, words: str) -> None:
    result = compare(folder, before, after)
    assert result.code == code, result.both
    assert words in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80 or str(folder) in result.stdout


def test_what_the_change_did(folder: Path) -> None:
    result = compare(folder, "before", "after")
    assert "✔ gone  NP101" in result.stdout
    assert "LAYERS (amp stage)" in result.stdout
    document = json.loads(compare(folder, "before", "after", "--format", "json").stdout)
    assert document["change"] == "fixed"
    amp = document["stages"][2]
    assert (amp["before"]["first_nonfinite_step"], amp["after"]["first_nonfinite_step"]) == (0, None)
    assert compare(folder, "before", "after", "--format", "markdown").stdout.startswith("## ✔ FIXED\n")


def test_what_cannot_be_compared(folder: Path) -> None:
    for args, message in (
        (("before", "nowhere"), "nowhere: no such directory"),
        (("before", "after", "--format", "html"), "--format html: expected one of terminal, json, markdown"),
        (("before", "last~99"), "last~99: there"),
    ):
        result = compare(folder, *args)
        assert (result.code, result.stdout) == (2, "")
        assert message in result.stderr


def test_a_sweep_is_no_diagnosis(folder: Path) -> None:
    run_nanprobe("sweep-scale", "train.py", "--steps", "1", "--output", "sweep", cwd=folder)
    result = compare(folder, "before", "sweep")
    assert (result.code, result.stdout) == (2, "")
    assert "sweep: is a run of `nanprobe sweep-scale`; expected one of `nanprobe diagnose`" in result.stderr
