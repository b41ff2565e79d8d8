"""Real scripts on real frameworks, through the real command: healthy when healthy, right when a fault is put in.

A fault is a flag of the script (`--fault NAME`); the line where it happens carries the comment `# FAULT NAME`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
NANPROBE = Path(sys.executable).with_name("nanprobe")
REQUIRES = {"hf": "transformers", "lightning": "lightning", "accelerate": "accelerate"}

pytestmark = pytest.mark.frameworks


@dataclass(frozen=True)
class Fault:
    """One script with one fault, and what has to be said about it."""

    script: str
    name: str
    kind: str
    args: tuple[str, ...] = ()
    steps: int = 20
    dataset_index: int | None = None  # the place is a row of the dataset

    def __str__(self) -> str:
        return f"{self.script}-{self.name}"


HEALTHY = [
    ("hf_trainer", ()),
    ("hf_gpt2", ()),
    ("lightning_regression", ("--precision", "32-true")),
    ("lightning_regression", ("--precision", "16-mixed")),
    ("lightning_regression", ("--precision", "bf16-mixed")),
    ("accelerate_metric", ()),
    ("gan", ()),
    ("lbfgs_fit", ()),
    ("accumulation", ()),
    ("workers", ()),
    ("compiled", ()),
    ("checkpointed", ()),
]

FAULTS = [
    Fault("hf_trainer", "log0", "graph"),
    Fault("hf_trainer", "new-token", "data"),
    Fault("hf_gpt2", "norm0", "graph"),
    Fault("lightning_regression", "nan-row", "data", ("--precision", "16-mixed"), steps=50, dataset_index=77),
    # On a CPU Lightning itself replaces 16-mixed by bf16, in which nothing overflows.
    Fault("lightning_regression", "overflow", "overflow", ("--precision", "32-true")),
    Fault("accelerate_metric", "sqrt0", "graph"),
    Fault("gan", "saturated", "graph"),
    Fault("lbfgs_fit", "norm0", "graph"),
    Fault("accumulation", "overflow", "overflow"),
    Fault("workers", "nan-row", "data", steps=50, dataset_index=123),
    Fault("compiled", "acos1", "graph"),
    Fault("checkpointed", "overflow", "overflow"),
]


@pytest.mark.parametrize(
    ("script", "args"), HEALTHY, ids=lambda value: value if isinstance(value, str) else "".join(value[1:])
)
def test_healthy_script_is_left_alone(script: str, args: tuple[str, ...], tmp_path: Path) -> None:
    code, document = diagnose(script, args, 20, tmp_path)
    errors = [finding for finding in document["findings"] if finding["severity"] == "error"]
    assert (document["status"], errors) == ("healthy", [])
    assert code == 0
    ran = {stage["name"]: stage["steps"] for stage in document["stages"] if stage["outcome"] == "completed"}
    assert ran == {"fp32": 20, "fp16": 20, "amp": 20}


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_fault_is_found(fault: Fault, tmp_path: Path) -> None:
    code, document = diagnose(fault.script, (*fault.args, "--fault", fault.name), fault.steps, tmp_path)
    verdict = document["verdict"]
    assert document["status"] == "failing", document["findings"]
    assert verdict["kind"] == fault.kind, verdict
    assert code == 1
    if fault.dataset_index is not None:
        assert verdict["batch"]["dataset_indices"] == [fault.dataset_index], verdict
    else:
        source = verdict["source"]
        assert source is not None, verdict
        assert (Path(source["file"]).name, source["line"]) == (f"{fault.script}.py", marked_line(fault)), verdict


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.dataset_index is None], ids=str)
def test_every_fault_has_its_line(fault: Fault) -> None:
    assert marked_line(fault) > 0


def diagnose(script: str, args: tuple[str, ...], steps: int, folder: Path) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON document of the real command, run in an empty working directory."""
    prefix = script.split("_")[0]
    # Looked for, not imported: Lightning patches torch as it is imported.
    if prefix in REQUIRES and find_spec(REQUIRES[prefix]) is None:
        pytest.skip(f"needs {REQUIRES[prefix]}: make test-frameworks installs it")
    work = folder / "work"
    work.mkdir()
    command = [NANPROBE, "diagnose", SCRIPTS / f"{script}.py", "--steps", steps, "--format", "json"]
    command += ["--output", folder / "run", "--", *args]
    done = subprocess.run([str(part) for part in command], cwd=work, capture_output=True, text=True, timeout=600)
    assert done.stdout, f"exit {done.returncode}, nothing on stdout; stderr ends with:\n{done.stderr[-3000:]}"
    assert list(work.iterdir()) == [], "the script's own files were written"
    return done.returncode, json.loads(done.stdout)


def marked_line(fault: Fault) -> int:
    """Number of the line that carries the fault's comment; -1 where there is none."""
    lines = (SCRIPTS / f"{fault.script}.py").read_text(encoding="utf-8").splitlines()
    return next((number for number, text in enumerate(lines, 1) if text.endswith(f"# FAULT {fault.name}")), -1)
