"""`nanprobe env`: what a bug report needs, also from a machine whose torch is broken."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch

from command import run_nanprobe, run_python
from nanprobe.machine import Machine, ask_torch, explain_fp16, survey_machine
from nanprobe.reports.environment import ENVIRONMENT_FORMATS, render_environment


def env(folder: Path, *args: str) -> str:
    result = run_nanprobe("env", *args, cwd=folder)
    assert (result.code, result.stderr, result.left_running) == (0, "", []), result.both
    return result.stdout


def test_the_terminal_report_fits(tmp_path: Path) -> None:
    text = env(tmp_path)
    assert re.search(rf"^  torch +{re.escape(torch.__version__)}$", text, re.MULTILINE)
    for wanted in ("FP16", "TF32 in matmul", "memory", "runs"):
        assert wanted in text
    assert all(len(line) <= 80 for line in text.splitlines() if "/" not in line)


def test_the_document_says_what_torch_says(tmp_path: Path) -> None:
    found = json.loads(env(tmp_path, "--format", "json"), parse_constant=pytest.fail)
    assert found["packages"]["torch"] == found["torch"]["version"] == torch.__version__
    assert found["torch_problem"] is None
    assert found["torch"]["cuda_available"] is torch.cuda.is_available()
    assert found["torch"]["tf32_matmul"] is torch.backends.cuda.matmul.allow_tf32
    assert found["memory"] > 2**28 and found["cores"] >= 1
    if not torch.cuda.is_available():
        assert found["fp16"].startswith("emulated on the CPU")


def test_secrets_are_named_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "s3cr3t")
    monkeypatch.setenv("MY_PASSWORD", "s3cr3t")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    for form in ENVIRONMENT_FORMATS:
        text = env(tmp_path, "--format", form)
        assert "s3cr3t" not in text and "MY_PASSWORD" not in text.replace("\\", "")
        assert "WANDB_API_KEY" in text.replace("\\", "") and "OMP_NUM_THREADS" in text.replace("\\", "")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (
            "raise ImportError('libcudart.so.12: cannot open shared object file')",
            "ImportError: libcudart.so.12: cannot",
        ),
        ("import os; os.abort()", "importing torch crashed"),
        ("import sys; sys.exit(0)", "the process ended without an answer"),
        ("version = 3", "torch cannot be imported (exit status 1): AttributeError"),
    ],
)
def test_a_broken_torch_is_reported(code: str, told: str, tmp_path: Path) -> None:
    """A torch.py in the working directory is what `python train.py` there would import, too."""
    (tmp_path / "torch.py").write_text(code)
    found = json.loads(env(tmp_path, "--format", "json"))
    assert found["torch"] is None
    assert told in found["torch_problem"]
    assert found["fp16"] == f"could not tell: {found['torch_problem']}"
    assert told.split(":")[0] in " ".join(env(tmp_path).split())
    assert "could not tell" in env(tmp_path, "--format", "markdown")


def test_a_torch_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("import time; time.sleep(600)")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert ask_torch(2.0) == (None, "importing torch took more than 2 s")


def test_a_python_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert ask_torch(5.0) == (None, "/nowhere/python could not be started: No such file or directory")


def test_a_gpu_is_native() -> None:
    assert explain_fp16({"cuda_available": True}, None).startswith("native")
    assert "because the driver is too old" in explain_fp16({"no_cuda_because": "the driver is too old"}, None)


def test_devices_and_names_are_shown_safely() -> None:
    machine = Machine(
        packages={"torch": "2.13.0"}, python="CPython 3.11.7", executable="/usr/bin/python", system="Linux", cpu="|",
        cores=1, memory=None, torch={"devices": [{"name": "H200 <b>", "capability": "9.0", "memory": 2**37}],
                                     "cuda_build": "12.8"},
        torch_problem=None, variables={"LD_PRELOAD": "a|b`c"}, secrets=(), runs_folder="/r", runs=1, fp16="native",
    )  # fmt: skip
    texts = {name: render_environment(machine, form) for name, form in ENVIRONMENT_FORMATS.items()}
    assert "cuda:0              H200 <b>, compute capability 9.0, 128.0 GiB" in texts["terminal"]
    assert "<b>" not in texts["markdown"] and "a&#124;b\\`c" in texts["markdown"]


def test_the_survey_takes_no_torch_into_this_process(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom nanprobe.cli import main\nassert main(['env']) == 0\n"
        "assert not {'torch', 'numpy', 'pandas'} & sys.modules.keys()\n"
    )
    assert "VERSIONS" in run_python(code, tmp_path)
    assert survey_machine("/r", 0, 0.001).torch is None
