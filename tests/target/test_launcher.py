"""Stages in processes of their own, by either launcher."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from command import BASE
from nanprobe.errors import CouldNotConclude
from nanprobe.plan import RunPlan
from nanprobe.progress import Progress
from nanprobe.protocol import run_protocol
from nanprobe.records import Outcome, RunRecord, StageName, Target
from nanprobe.target.launcher import ForkServerLauncher, Launcher, SpawnLauncher


def run(folder: Path, code: str, launcher: Launcher, monkeypatch: pytest.MonkeyPatch, **options: object) -> RunRecord:
    (folder / "base.py").write_text(BASE)
    (folder / "train.py").write_text(code)
    monkeypatch.chdir(folder)
    plan = RunPlan(Target("train.py"), steps=2, stages=(StageName.FP32,), **options)  # type: ignore[arg-type]
    with launcher:
        return run_protocol(plan, folder / "run", launcher, Progress())


def test_spawned_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from base import train\nprint('seen')\nopen('kept.txt', 'w')\ntrain(lambda step: None)\n"
    made = run(tmp_path, code, SpawnLauncher(0), monkeypatch)
    assert [(stage.outcome, len(stage.steps)) for stage in made.stages] == [(Outcome.COMPLETED, 2)]
    assert (tmp_path / "run/stages/fp32/output.log").read_text().splitlines()[-1] == "seen"
    assert not (tmp_path / "kept.txt").exists()


def test_spawned_stage_is_stopped_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = run(tmp_path, "import time\ntime.sleep(600)\n", SpawnLauncher(0), monkeypatch, timeout=0.5)
    assert made.stages[0].outcome is Outcome.TIMEOUT


def test_torch_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch is broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(CouldNotConclude) as raised:
        run(tmp_path, "", ForkServerLauncher(0), monkeypatch)
    assert str(raised.value).startswith(f"cannot load torch in {sys.executable}:\n")
    assert str(raised.value).endswith("ImportError: libtorch is broken")


def test_modules_beside_the_user_do_not_stand_in_for_the_librarys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("raise RuntimeError('not that queue')")
    (tmp_path / "scripts").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scripts" / "train.py").write_text(BASE + "train(lambda step: None)\n")
    plan = RunPlan(Target("scripts/train.py"), steps=2, stages=(StageName.FP32,))
    with ForkServerLauncher(0) as launcher:
        made = run_protocol(plan, tmp_path / "run", launcher, Progress())
    assert made.stages[0].outcome is Outcome.COMPLETED
