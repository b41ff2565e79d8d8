"""`nanprobe diagnose --verify`: what helps is proven, what only tempts is refused, and the diff does what it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from command import BASE, run_nanprobe, start_nanprobe, wait_for_line
from faulty import SCRIPTS, Faulty
from nanprobe.storage import read_verification

EVERY_KIND = pytest.mark.parametrize("faulty", SCRIPTS, ids=lambda faulty: faulty.kind.value)


class Answer:
    """The document of one verified script, its text, and where it ran."""

    def __init__(self, faulty: Faulty, folder: Path) -> None:
        self.folder, self.text = folder, faulty.text
        (folder / "train.py").write_text(faulty.text)
        args = ("diagnose", "train.py", "--verify", "--format", "json", "--output", "run")
        self.result = run_nanprobe(*args, cwd=folder, timeout=240)
        self.document: dict[str, Any] = json.loads(self.result.stdout)
        self.remedies: list[dict[str, Any]] = self.document["verdict"]["remedies"]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [r for r in self.remedies if r["kind"] == kind]


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Each script is verified once, whatever is asked of the answer."""

    @cache
    def find(faulty: Faulty) -> Answer:
        return Answer(faulty, tmp_path_factory.mktemp(faulty.kind.value))

    return find


@EVERY_KIND
def test_the_right_remedy_is_verified_and_the_tempting_one_refused(answer: Any, faulty: Faulty) -> None:
    found = answer(faulty)
    assert found.result.code == 1 and found.document["verdict"]["kind"] == faulty.kind.value
    (first, *_) = found.of(faulty.helps)
    assert first["verified"] is True and first["reason"] is None
    assert any(r["verified"] is False and r["reason"] for r in found.of(faulty.tempting))


@EVERY_KIND
def test_what_was_tried_has_its_figures(answer: Any, faulty: Faulty) -> None:
    found = answer(faulty)
    tried = [r for r in found.remedies if r["verified"] is not None]
    verification = found.document["verification"]
    assert verification["tried"] == len(tried) and verification["runs"] >= len(tried)
    assert verification["stopped"] is None
    helping = [r for r in tried if r["verified"]]
    failing = found.document["verdict"]["step"]
    for remedy in helping:
        assert remedy["steps"] > failing and len(remedy["losses"]) == remedy["steps"]
        assert remedy["cost"]["time_ratio"] > 0 and remedy["final_loss"] is not None
        assert remedy["gradient_error"] is None or remedy["gradient_error"] <= 0.5
        if found.document["verdict"]["stage"] != "fp32":
            assert remedy["reference_loss"] is not None
    # What is proven comes first, then what is advised, then what was refused.
    order = [{True: 0, None: 1, False: 2}[r["verified"]] for r in found.remedies]
    assert order == sorted(order)


@EVERY_KIND
def test_the_diff_applied_by_hand_makes_the_script_healthy(answer: Any, faulty: Faulty, tmp_path: Path) -> None:
    found = answer(faulty)
    apply_diff(found.text, found.of(faulty.helps)[0]["diff"], tmp_path)
    result = run_nanprobe("diagnose", "train.py", cwd=tmp_path)
    assert result.code == 0, result.both


@EVERY_KIND
def test_nothing_of_the_users_is_changed(answer: Any, faulty: Faulty) -> None:
    found = answer(faulty)
    assert (found.folder / "train.py").read_text() == found.text
    assert sorted(p.name for p in found.folder.iterdir()) == ["run", "train.py"]
    assert found.result.left_running == []
    kept = read_verification(found.folder / "run")
    assert kept is not None and len(kept.tried) == found.document["verification"]["tried"]


def apply_diff(text: str, diff: str, folder: Path) -> None:
    (folder / "train.py").write_text(text)
    subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=folder, check=True)


SLOW = """
import time
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    x = torch.rand(4, 4)
    loss = (model(x) * (0.0 if step == {fails} else 1.0)).pow(2).sum(1).sqrt().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep({pause})
"""


def test_a_budget_that_is_too_short_for_one_run_starts_none(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLOW.format(pause=0.02, fails=2))
    args = ("diagnose", "train.py", "--verify", "--verify-budget", "0.01", "--output", "run")
    result = run_nanprobe(*args, cwd=tmp_path)
    assert result.code == 1
    assert "the budget of 0.01 s is used up" in result.stdout
    assert not list((tmp_path / "run" / "stages").glob("remedy-*"))


def test_no_run_is_started_that_cannot_end_within_the_budget(tmp_path: Path) -> None:
    # A run sleeps for 6 s, so one fits into the budget and two never do, however busy the machine is.
    (tmp_path / "train.py").write_text(SLOW.format(pause=0.2, fails=20))
    args = ("diagnose", "train.py", "--steps", "30", "--verify", "--verify-budget", "11", "--format", "json")
    document = json.loads(run_nanprobe(*args, "--output", "run", cwd=tmp_path).stdout)
    verification = document["verification"]
    assert verification["runs"] == 1 and "budget" in verification["stopped"]
    assert verification["seconds"] <= 11.0


def test_ctrl_c_keeps_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLOW.format(pause=0.1, fails=2))
    args = ("diagnose", "train.py", "--verify", "--format", "json", "--output", "run")
    with start_nanprobe(*args, cwd=tmp_path) as (process, _):
        wait_for_line(process, "remedy-2: started")
        os.kill(process.pid, signal.SIGINT)
        stdout, _ = process.communicate(timeout=60)
    document = json.loads(stdout)
    assert document["verification"]["stopped"] == "interrupted by Ctrl-C"
    assert [r["verified"] for r in document["verdict"]["remedies"] if r["kind"]] == [True]
    assert process.returncode == 1


def test_a_healthy_script_has_nothing_to_verify(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BASE + "\ntrain(lambda step: None, steps=8)\n")
    result = run_nanprobe("diagnose", "train.py", "--verify", "--format", "json", cwd=tmp_path)
    assert result.code == 0 and json.loads(result.stdout)["verification"] is None


def test_a_budget_of_nothing_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    result = run_nanprobe("diagnose", "train.py", "--verify", "--verify-budget", "0", cwd=tmp_path)
    assert result.code == 2 and "--verify-budget" in result.stderr


def test_when_nothing_can_be_tried_the_report_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        BASE + "\ndef spoil(step):\n    import gc\n    for o in gc.get_objects():\n"
        "        if isinstance(o, torch.optim.SGD) and step == 3:\n            o.param_groups[0]['lr'] = float('nan')\n"
        "\ntrain(spoil, steps=8)\n"
    )
    result = run_nanprobe("diagnose", "train.py", "--verify", cwd=tmp_path)
    assert result.code == 1
    assert "Nothing that nanprobe could try from outside" in " ".join(result.stdout.split())


def test_a_fault_in_an_imported_module_is_mended_there(tmp_path: Path) -> None:
    package = tmp_path / "toy"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "lengths.py").write_text("def length(v):\n    return (v ** 2).sum(1).sqrt()\n")
    (package / "train.py").write_text(
        "import torch\nfrom toy.lengths import length\n\ntorch.manual_seed(0)\nmodel = torch.nn.Linear(4, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nfor step in range(16):\n"
        "    x = torch.rand(4, 4)\n    loss = length(model(x) * (0.0 if step == 2 else 1.0)).mean()\n"
        "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
    )
    args = ("diagnose", "-m", "toy.train", "--verify", "--format", "json", "--output", "run")
    document = json.loads(run_nanprobe(*args, cwd=tmp_path).stdout)
    first = document["verdict"]["remedies"][0]
    assert first["verified"] is True and first["diff"].startswith("--- a/toy/lengths.py")
    assert "clamp" not in (package / "lengths.py").read_text()


def test_a_contract_is_verified_too(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\n\n\ndef build_model():\n    torch.manual_seed(0)\n    return torch.nn.Linear(64, 1)\n\n\n"
        "def build_data():\n    return [torch.randn(128, 64) for _ in range(30)]\n\n\n"
        "def compute_loss(model, batch):\n    goal = batch.sum(1, keepdim=True)\n"
        "    return torch.nn.functional.mse_loss(model(batch), goal, reduction='sum') / 32\n\n\n"
        "def build_optimizer(model):\n    return torch.optim.SGD(model.parameters(), lr=0.5)\n"
    )
    args = ("diagnose", "model.py", "--verify", "--format", "json", "--output", "run")
    document = json.loads(run_nanprobe(*args, cwd=tmp_path).stdout)
    assert document["verdict"]["code"] == "NP501"
    rates = [r for r in document["verdict"]["remedies"] if r["kind"] == "learning rate"]
    assert rates[0]["verified"] is True and "lr=(0.5) * 0.1" in rates[0]["diff"]
    # The loop is nanprobe's own: clipping can only be put in from outside, and there is no line of the user's for it.
    assert any(r["kind"] == "clipping" and r["diff"] is None for r in document["verdict"]["remedies"])
