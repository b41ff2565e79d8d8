"""Proven remedies over whole casebooks (`make casebook`): one that helps is found, and its diff does what it says."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from command import run_nanprobe

CASES = Path(__file__).parent / "cases"
# The casebook after public bug reports, where it lies beside the repository.
SHARED = next((p / "shared" / "cases" for p in CASES.parents if (p / "shared" / "cases" / "cases.tsv").exists()), None)
# A learning rate that is NaN comes from the script's own arithmetic: nothing of the list mends that.
BEYOND = {"47"}

# One of each family, applied by hand; the fault is gone and nothing else was behind it.
MENDED = (
    "A01-unscaled-attention-scores",
    "A05-box-area-half",
    "A07-hand-made-norm-square",
    "A28-second-optimizer-not-unscaled",
    "A32-zero-grad-not-called",
    "B01-tabular-missing-column",
    "B06-no-positive-anchor",
    "B10-empty-document-pooling",
    "B11-silent-clip-log-energy",
    "B12-gamma-curve-at-black",
    "B18-vicreg-std-collapsed",
    "B22-poincare-same-point",
)


def failing(folder: Path | None) -> list[str]:
    if folder is None:
        return []
    rows = csv.DictReader((folder / "cases.tsv").read_text(encoding="utf-8").splitlines(), delimiter="\t")
    return [row["file"] for row in rows if row["status"] == "failing" and row["id"] not in BEYOND]


def verify(script: Path, folder: Path) -> list[dict[str, Any]]:
    """The remedies that help, for a copy of a script."""
    shutil.copy(script, folder / "train.py")
    args = ("diagnose", "train.py", "--verify", "--format", "json", "--output", str(folder / "run"))
    document = json.loads(run_nanprobe(*args, cwd=folder, timeout=400).stdout)
    assert document["status"] == "failing"
    return [r for r in document["verdict"]["remedies"] if r["verified"]]


@pytest.mark.casebook
@pytest.mark.skipif(SHARED is None, reason="the casebook after public bug reports is not beside the repository")
@pytest.mark.parametrize("file", failing(SHARED))
def test_a_remedy_is_found(file: str, tmp_path: Path) -> None:
    assert SHARED is not None
    assert verify(SHARED / file, tmp_path)


@pytest.mark.casebook
@pytest.mark.parametrize("name", MENDED)
def test_the_diff_mends_the_script(name: str, tmp_path: Path) -> None:
    helping = [r for r in verify(CASES / f"{name}.py", tmp_path) if r["diff"]]
    assert helping
    subprocess.run(["git", "apply", "-"], input=helping[0]["diff"], text=True, cwd=tmp_path, check=True)
    result = run_nanprobe("diagnose", "train.py", cwd=tmp_path)
    assert result.code == 0, result.stdout
