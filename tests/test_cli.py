"""The command line: real tiny trainings through the real command, and every exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from command import BASE, run_nanprobe
from nanprobe.cli import main
from nanprobe.fail_on import FailOn
from nanprobe.findings import Diagnosis, Finding, Kind, Severity, Status
from nanprobe.records import Outcome, StageName
from nanprobe.storage import read_run

HEALTHY = "from base import train\nprint('hello')\ntrain(lambda step: None)\n"
FAILING = """
import torch
weight = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([weight], 0.1)
for step in range(100):
    optimizer.zero_grad()
    torch.sqrt(weight).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory of scripts."""
    (tmp_path / "base.py").write_text(BASE)
    (tmp_path / "healthy.py").write_text(HEALTHY)
    (tmp_path / "failing.py").write_text(FAILING)
    return tmp_path


def test_healthy_script(folder: Path) -> None:
    result = run_nanprobe("diagnose", "healthy.py", "--steps", "3", "--output", "run", "--format", "json", cwd=folder)
    assert result.code == 0, result.both
    document = json.loads(result.stdout)
    assert document["status"] == "healthy"
    assert [(stage["name"], stage["steps"]) for stage in document["stages"]] == [("fp32", 3), ("fp16", 3), ("amp", 3)]
    assert document["target"] == {"path": "healthy.py", "argv": [], "mode": "script"}
    assert json.loads((folder / "run" / "diagnosis.json").read_text()) == document
    assert "nanprobe: amp: completed, 3 steps" in result.stderr
    assert result.left_running == []


def test_failing_script_ends_the_protocol_after_fp32(folder: Path) -> None:
    result = run_nanprobe("diagnose", "failing.py", "--steps", "3", "--output", "run", cwd=folder)
    assert result.code == 1, result.both
    assert "failing.py:7" in result.stdout
    run = read_run(folder / "run")
    assert [stage.outcome for stage in run.stages] == [Outcome.COMPLETED, Outcome.SKIPPED, Outcome.SKIPPED]
    assert run.stages[1].reason is not None and "--all-stages" in run.stages[1].reason


def test_options_reach_the_stages(folder: Path) -> None:
    args = ["--all-stages", "--stages", "amp,fp32", "--steps", "2", "--fail-on", "none", "--show-output", "--seed", "5"]
    result = run_nanprobe("diagnose", "failing.py", *args, "--output", "run", cwd=folder)
    assert result.code == 0, result.both
    run = read_run(folder / "run")
    assert [stage.name for stage in run.stages] == [StageName.FP32, StageName.AMP]
    assert all(stage.outcome is Outcome.COMPLETED for stage in run.stages)
    assert (run.steps, run.seed) == (2, 5)


def test_later_stage_alone_knows_what_the_script_uses(folder: Path) -> None:
    code = BASE + "train(lambda step: None)\n"
    scaler = "optimizer.step()"
    code = (
        code.replace(scaler, "scaler.step(optimizer); scaler.update()")
        .replace(".backward()", "")
        .replace("model(torch", "scaler.scale(model(torch")
        .replace(".mean()", ".mean()).backward()")
        .replace("for step in", "scaler = torch.amp.GradScaler('cpu')\n    for step in")
    )
    (folder / "scaled.py").write_text(code)
    args = ["--stages", "amp", "--steps", "3", "--show-output", "--output", "run"]
    result = run_nanprobe("diagnose", "scaled.py", *args, cwd=folder)
    assert result.code == 0, result.both
    run = read_run(folder / "run")
    assert [stage.name for stage in run.stages] == [StageName.AMP]
    assert (folder / "run" / "scout" / "trace.jsonl").exists()


def test_modules_and_show_output(folder: Path) -> None:
    package = folder / "package" / "inner"
    package.mkdir(parents=True)
    (folder / "package" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "settings.py").write_text("STEPS = 2\n")
    (package / "train.py").write_text(
        "import sys\nfrom base import train\nfrom ..inner.settings import STEPS\n"
        "if __name__ == '__main__':\n    print('arguments', sys.argv[1:])\n    train(lambda step: None, STEPS)\n"
    )
    args = ["--stages", "fp32", "--show-output", "--output", "run"]
    result = run_nanprobe("diagnose", "-m", "package.inner.train", *args, "--", "-m", "x", cwd=folder)
    assert result.code == 0, result.both
    assert "arguments ['-m', 'x']" in result.stderr
    assert "arguments" not in result.stdout
    assert len(read_run(folder / "run").stages[0].steps) == 2


def test_contract_module(folder: Path) -> None:
    (folder / "contract.py").write_text(
        "import torch\n"
        "def build_model(): return torch.nn.Linear(4, 1)\n"
        "def build_data(): yield from torch.randn(2, 8, 4)\n"
        "def compute_loss(model, batch): return model(batch).pow(2).mean()\n"
    )
    result = run_nanprobe("diagnose", "contract.py", "--steps", "5", "--output", "run", cwd=folder)
    assert result.code == 0, result.both
    assert [len(stage.steps) for stage in read_run(folder / "run").stages] == [5, 5, 5]
    assert read_run(folder / "run").target.mode == "contract"


def test_users_files_are_kept(folder: Path) -> None:
    (folder / "train.py").write_text(
        "import os, numpy, torch\n"
        "from base import train\n"
        "def before_step(step):\n"
        "    torch.save({'step': torch.tensor(step)}, 'ckpt.pt')\n"
        "    numpy.save('values.npy', numpy.ones(step))\n"
        "    with open('log.txt', 'w') as file:\n"
        "        file.write(str(step))\n"
        "    os.makedirs('runs/new', exist_ok=True)\n"
        "    assert torch.load('ckpt.pt')['step'] == step\n"
        "    assert len(numpy.load('values.npy')) == step\n"
        "    assert open('log.txt').read() == str(step)\n"
        "assert not os.path.exists('runs')\n"
        "train(before_step)\n"
    )
    files = {name: f"the user's {name}".encode() for name in ("ckpt.pt", "values.npy", "log.txt")}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    before = sorted(path.name for path in folder.iterdir())
    result = run_nanprobe("diagnose", "train.py", "--steps", "3", cwd=folder)
    assert result.code == 0, result.both
    assert {name: (folder / name).read_bytes() for name in files} == files
    assert sorted(path.name for path in folder.iterdir()) == before


def test_allow_writes(folder: Path) -> None:
    (folder / "train.py").write_text(
        "from base import train\nopen('made.txt', 'w').close()\ntrain(lambda step: None)\n"
    )
    result = run_nanprobe("diagnose", "train.py", "--steps", "2", "--stages", "fp32", "--allow-writes", cwd=folder)
    assert result.code == 0, result.both
    assert (folder / "made.txt").exists()


def test_fault_of_our_own_is_one_message(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nanprobe.cli.diagnose._run", lambda *_: 1 / 0)
    assert main(["diagnose", str(folder / "healthy.py")]) == 3
    error = capsys.readouterr().err
    assert "ZeroDivisionError: division by zero" in error
    path = Path(error.split()[-1])
    assert "Traceback" in path.read_text()
    assert "Traceback" not in error


def test_version_and_no_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("nanprobe 0.")
    assert main(["diagnose"]) == 2
    assert "nothing to diagnose" in capsys.readouterr().err
    assert main(["diagnose", "-m", "a", "b.py"]) == 2
    assert "nanprobe diagnose -m a -- b.py" in capsys.readouterr().err


def test_help_shows_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--help"]) == 0
    text = capsys.readouterr().out
    for option in (
        "--steps",
        "--stages",
        "--dtype",
        "--device",
        "--seed",
        "--init-scale",
        "--growth-interval",
        "--timeout",
    ):
        assert option in text
    for option in (
        "--output",
        "--format",
        "--fail-on",
        "--allow-writes",
        "--show-output",
        "--until-failure",
        "--module",
    ):
        assert option in text


def test_closed_pipe_is_no_error_message(folder: Path) -> None:
    command = f"{sys.executable} -m nanprobe diagnose healthy.py --steps 2 --stages fp32 | true"
    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr
    assert "fault of its own" not in done.stderr


def finding(kind: Kind, severity: Severity) -> Finding:
    return Finding("NP000", kind, severity, "", StageName.FP32)


@pytest.mark.parametrize(
    ("fail_on", "found", "fails"),
    [
        ("error", finding(Kind.DATA, Severity.ERROR), True),
        ("error", finding(Kind.DATA, Severity.WARNING), False),
        ("warning", finding(Kind.DATA, Severity.ERROR), True),
        ("warning", finding(Kind.DATA, Severity.NOTE), False),
        ("note", finding(Kind.DATA, Severity.NOTE), True),
        ("underflow", finding(Kind.UNDERFLOW, Severity.WARNING), True),
        ("underflow", finding(Kind.UNDERFLOW, Severity.NOTE), False),
        ("underflow", finding(Kind.DATA, Severity.ERROR), False),
        ("data, error", finding(Kind.GRAPH, Severity.ERROR), True),
        ("none", finding(Kind.DATA, Severity.ERROR), False),
    ],
)
def test_fail_on(fail_on: str, found: Finding, fails: bool) -> None:
    assert FailOn.parse(fail_on).matches(Diagnosis(Status.FAILING, found, (found,), ())) is fails


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["compare", "a", "b", "c"], "see `nanprobe compare --help`"),
        (["report", "--nope"], "see `nanprobe report --help`"),
        (["nope"], "see `nanprobe --help`"),
        (["sweep-scale", "--nope"], "arguments for the script go after `--`: nanprobe sweep-scale train.py -- ARGS"),
    ],
)
def test_a_wrong_command_line_names_the_help_that_helps(
    args: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    assert hint in capsys.readouterr().err
