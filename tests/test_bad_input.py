"""Bad input, and nothing lost: one clear message, the right exit code, no traceback of ours, nothing left running."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from pathlib import Path

import pytest

from command import BASE, Result, marked_processes, run_nanprobe, start_nanprobe, wait_for_line
from nanprobe.records import Outcome
from nanprobe.storage import read_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory of scripts."""
    (tmp_path / "base.py").write_text(BASE)
    return tmp_path


def diagnose(folder: Path, code: str | bytes, *options: str, script_args: tuple[str, ...] = ()) -> Result:
    """Diagnose a script for three steps of the first stage, and check what must hold for every one."""
    (folder / "train.py").write_bytes(code.encode() if isinstance(code, str) else code)
    args = ("--", *script_args) if script_args else ()
    result = run_nanprobe(
        "diagnose", "train.py", "--steps", "3", "--stages", "fp32", "--output", "run", *options, *args, cwd=folder
    )
    assert result.left_running == []
    assert "nanprobe/target" not in result.both, "a traceback of nanprobe's own"
    return result


def usage_error(folder: Path, *args: str) -> str:
    """The one line a wrong command prints."""
    result = run_nanprobe("diagnose", *args, cwd=folder)
    assert result.code == 2, result.both
    assert result.stdout == ""
    assert result.stderr.startswith("nanprobe: ")
    assert "Traceback" not in result.stderr
    assert result.left_running == []
    return result.stderr.removeprefix("nanprobe: ").strip()


def test_files_that_are_not_there_or_no_scripts(folder: Path) -> None:
    assert usage_error(folder, "nope.py") == f"nope.py: no such file in {folder} (there: base.py)"
    assert usage_error(folder, "base") == "base: no such file; did you mean base.py?"
    assert usage_error(folder, ".") == ".: is a directory; give the training script in it (there: base.py)"
    (folder / "bad.py").write_text("import torch\nfor x in\n")
    assert usage_error(folder, "bad.py") == "bad.py: line 2: syntax error: invalid syntax\n    for x in"
    (folder / "weights.pt").write_bytes(b"PK\3\4\0\0\xff")
    assert "is a checkpoint; give the training script that loads it" in usage_error(folder, "weights.pt")
    (folder / "blob").write_bytes(bytes(range(256)))
    assert usage_error(folder, "blob") == "blob: is no Python script (it holds binary data); give the training script"


def test_modules_that_are_not_there(folder: Path) -> None:
    (folder / "pkg").mkdir()
    (folder / "pkg" / "__init__.py").touch()
    assert (
        usage_error(folder, "-m", "pkg.nope")
        == f"-m pkg.nope: no module named 'pkg.nope' in {folder} or where Python looks for modules"
    )
    assert "is a package without a __main__.py" in usage_error(folder, "-m", "pkg")
    assert "write `-m pkg.train`" in usage_error(folder, "-m", "pkg/train.py")


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read and write everything")
def test_unreadable_script_and_unwritable_output(folder: Path) -> None:
    script = folder / "secret.py"
    script.touch(mode=0)
    assert "cannot be read: Permission denied" in usage_error(folder, "secret.py")
    (folder / "closed").mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    assert "cannot make the run directory" in usage_error(folder, "base.py", "--output", "closed/run")


def test_outputs_that_cannot_be_used(folder: Path) -> None:
    assert "/proc/run: cannot make the run directory" in usage_error(folder, "base.py", "--output", "/proc/run")
    assert "is a file; give a directory" in usage_error(folder, "base.py", "--output", "base.py")
    assert "is not empty" in usage_error(folder, "base.py", "--output", ".")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "0"], "--steps 0: expected a whole number of at least 1"),
        (["--steps", "many"], "invalid value for '--steps'"),
        (["--stages", "fp32,fp8"], "--stages: 'fp8' is no stage; expected some of fp32, fp16, amp"),
        (["--stages", ""], "--stages: '' is no stage"),
        (["--dtype", "fp8"], "--dtype fp8: expected one of fp16, float16, bf16, bfloat16"),
        (["--device", "tpu"], "--device tpu: expected one of auto, cpu, cuda"),
        (["--format", "xml"], "--format xml: expected one of terminal, json"),
        (["--fail-on", "misery"], "--fail-on: 'misery' is unknown; expected some of error, warning"),
        (["--timeout", "0"], "--timeout 0: expected a finite number above 0"),
        (["--init-scale", "nan"], "--init-scale nan: expected a finite number above 0"),
        (["--epochs", "3"], "arguments for the script go after `--`"),
        (["extra"], "arguments for the script go after `--`"),
    ],
)
def test_options_that_are_wrong(
    folder: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from nanprobe.cli import main

    assert main(["diagnose", str(folder / "base.py"), *options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("nanprobe: ")
    assert captured.out == ""


def test_script_that_raises_at_import(folder: Path) -> None:
    result = diagnose(folder, "import torch\nimport no_such_module\n")
    assert result.code == 3
    assert "No module named 'no_such_module'" in result.stdout
    trace = read_run(folder / "run").stages[0]
    assert trace.error is not None
    assert trace.error.traceback[0] == "Traceback (most recent call last):"
    assert trace.error.source is not None and (trace.error.source.line, trace.error.step) == (2, 0)
    assert not any("nanprobe" in line for line in trace.error.traceback)


def test_script_that_raises_in_step_7(folder: Path) -> None:
    code = "from base import train\ndef f(step):\n    if step == 7:\n        raise KeyError('lr')\ntrain(f)\n"
    result = diagnose(folder, code, "--steps", "20")
    assert result.code == 3
    assert "KeyError: 'lr'" in result.stdout
    trace = read_run(folder / "run").stages[0]
    assert (trace.outcome, len(trace.steps)) == (Outcome.CRASHED, 7)
    assert trace.error is not None and trace.error.step == 7
    assert trace.error.source is not None and trace.error.source.code == "raise KeyError('lr')"


def test_exception_long_after_the_fault(folder: Path) -> None:
    code = """
import torch
from base import train
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], 0.1)
for step in range(10):
    x = weight * 2
    if step >= 2:
        x = x + torch.log(x - 100)
    optimizer.zero_grad()
    x.sum().backward()
    optimizer.step()
    assert step < 5 or x.isfinite().all(), "late"
"""
    result = diagnose(folder, code, "--steps", "10", "--format", "json")
    assert result.code == 1
    verdict = json.loads(result.stdout)["verdict"]
    assert (verdict["kind"], verdict["source"]["line"]) == ("graph", 9)


def test_script_that_exits(folder: Path) -> None:
    result = diagnose(folder, "import sys\nsys.exit('no GPU, no training')\n")
    assert result.code == 3
    assert "no GPU, no training" in result.stdout


@pytest.mark.parametrize("call", ["sys.exit(0)", "sys.exit()", "os._exit(0)"])
def test_script_that_exits_well_after_its_training(folder: Path, call: str) -> None:
    result = diagnose(folder, f"import os, sys\nfrom base import train\ntrain(lambda step: None, 2)\n{call}\n")
    trace = read_run(folder / "run").stages[0]
    assert (trace.outcome, len(trace.steps)) == (Outcome.COMPLETED, 2)
    assert result.code == 0


def test_wrong_arguments_for_the_script(folder: Path) -> None:
    code = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\np.parse_args()\n"
    result = diagnose(folder, code, script_args=("--learning-rate", "1"))
    assert result.code == 3
    assert "unrecognized arguments: --learning-rate 1" in " ".join(result.stdout.split())


def test_arguments_that_nanprobe_also_has_are_the_scripts(folder: Path) -> None:
    code = "import sys\nfrom base import train\nprint(sys.argv)\ntrain(lambda step: None)\n"
    args = ("--steps", "7", "-m", "--output", "x", "--", "--help")
    assert diagnose(folder, code, script_args=args).code == 0
    assert (folder / "run/stages/fp32/output.log").read_text().strip() == str(["train.py", *args])
    assert len(read_run(folder / "run").stages[0].steps) == 3


@pytest.mark.parametrize(
    "code",
    [
        "import torch\nprint(torch.ones(2).sum())\n",  # no optimizer
        "import torch\nw = torch.ones(2)\no = torch.optim.SGD([w], 0.1)\n",  # no parameter that requires a gradient
        "",
    ],
)
def test_script_that_never_steps(folder: Path, code: str) -> None:
    result = diagnose(folder, code)
    assert result.code == 3
    assert "HEALTHY" not in result.stdout


def test_endless_loop_without_a_step(folder: Path) -> None:
    result = diagnose(folder, "import time\nwhile True:\n    time.sleep(0.01)\n", "--timeout", "1")
    assert result.code == 3
    assert result.seconds < 60
    trace = read_run(folder / "run").stages[0]
    assert trace.outcome is Outcome.TIMEOUT
    assert trace.reason is not None
    assert trace.reason.startswith("not done after 1 s (--timeout), and stopped, at ")
    assert trace.reason.endswith("train.py:3: time.sleep(0.01)")


def test_loop_that_will_not_be_terminated(folder: Path) -> None:
    code = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(1)\n"
    assert diagnose(folder, code, "--timeout", "1").code == 3


def test_killed_child(folder: Path) -> None:
    code = "import os\nfrom base import train\ntrain(lambda step: step == 2 and os.kill(os.getpid(), 9))\n"
    result = diagnose(folder, code)
    assert result.code == 3
    trace = read_run(folder / "run").stages[0]
    assert (trace.outcome, len(trace.steps)) == (Outcome.CRASHED, 2)
    assert trace.reason == "the process was killed (SIGKILL), most often because memory ran out"


def test_segmentation_fault(folder: Path) -> None:
    code = "import ctypes\nfrom base import train\ntrain(lambda step: step == 2 and ctypes.string_at(0))\n"
    result = diagnose(folder, code)
    assert result.code == 3
    trace = read_run(folder / "run").stages[0]
    assert (trace.outcome, len(trace.steps)) == (Outcome.CRASHED, 2)
    assert trace.reason is not None
    assert trace.reason.startswith("the process crashed in native code (SIGSEGV), at ")
    assert "train.py:3: train(" in trace.reason


def test_gigabyte_of_output_that_is_no_utf8(folder: Path) -> None:
    code = r"""
import sys
from base import train
def before_step(step):
    if step == 0:
        for _ in range(1024):
            sys.stdout.buffer.write(b"\xff" * (1 << 20))
        print("the end")
train(before_step)
"""
    result = diagnose(folder, code)
    assert result.code == 0
    log = (folder / "run/stages/fp32/output.log").read_bytes()
    assert len(log) < 4_100_000
    assert log.startswith(b"\xff\xff")
    assert log.endswith(b"the end\n")
    assert b"bytes left out ...]" in log


def test_script_that_starts_what_does_not_end(folder: Path) -> None:
    code = """
import os, subprocess, time
from base import train
def before_step(step):
    if step == 0:
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        os.system("(sleep 600 &)")
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
train(before_step)
"""
    assert diagnose(folder, code).code == 0


def test_interrupt_keeps_and_reports_what_was_measured(folder: Path) -> None:
    code = "import time\nfrom base import train\ntrain(lambda step: time.sleep(0.02), 10**6)\n"
    (folder / "train.py").write_text(code)
    args = ("diagnose", "train.py", "--steps", "100000", "--output", "run", "--format", "json")
    with start_nanprobe(*args, cwd=folder) as (process, mark):
        wait_for_line(process, "fp32: step 1")
        process.send_signal(signal.SIGINT)
        asked = time.monotonic()
        stdout, stderr = process.communicate(timeout=30)
        assert time.monotonic() - asked < 15
        assert marked_processes(mark) == []
    assert process.returncode == 3
    assert "Traceback" not in stderr
    stages = {stage["name"]: stage for stage in json.loads(stdout)["stages"]}
    assert stages["fp32"]["steps"] >= 1
    assert stages["fp32"]["reason"] == "interrupted by Ctrl-C"
    assert stages["amp"]["outcome"] == "skipped"
    assert [stage.outcome for stage in read_run(folder / "run").stages] == [
        Outcome.CRASHED,
        Outcome.SKIPPED,
        Outcome.SKIPPED,
    ]


def test_killed_command_leaves_nothing_running_and_a_readable_run(folder: Path) -> None:
    code = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    for x in DataLoader(torch.randn(640, 4), batch_size=8, num_workers=2):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
"""
    (folder / "train.py").write_text(code)
    args = ("diagnose", "train.py", "--steps", "1000000", "--output", "run")
    with start_nanprobe(*args, cwd=folder) as (process, mark):
        wait_for_line(process, "fp32: step 1")
        process.kill()
        process.wait()
        assert marked_processes(mark) == []
    first = read_run(folder / "run").stages[0]
    assert first.outcome is Outcome.CRASHED
    assert len(first.steps) >= 1
