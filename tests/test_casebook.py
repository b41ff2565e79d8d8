"""The casebook: scripts with a known fault, and their fixed twins, through the real command.

`make test` runs every twelfth row; `make casebook` runs them all. A row is right when status, kind and place are.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from command import run_nanprobe

CASES = Path(__file__).parent / "cases"
ROWS = list(csv.DictReader((CASES / "cases.tsv").read_text(encoding="utf-8").splitlines(), delimiter="\t"))
SPREAD = 12


def diagnose(row: dict[str, str], tmp_path: Path) -> dict[str, Any]:
    done = run_nanprobe("diagnose", row["file"], "--format", "json", "--output", str(tmp_path / "run"), cwd=CASES)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def place_is_right(finding: dict[str, Any], row: dict[str, str]) -> bool:
    lines = set(filter(None, row["origin_lines"].split("|")))
    source = finding.get("source") or {}
    if "*" in lines or (str(source.get("line")) in lines and Path(source["file"]).name == row["file"]):
        return True
    names = [str(finding.get(key) or "-") for key in ("module", "parameter")]
    return bool(row["origin_names"]) and any(re.fullmatch(f"(?:{row['origin_names']})", name) for name in names)


def check(row: dict[str, str], tmp_path: Path) -> None:
    document = diagnose(row, tmp_path)
    findings, verdict = document["findings"], document["verdict"]
    if row["status"] == "healthy":
        assert document["status"] == "healthy", document["verdict"] or document["stages"]
        assert not [f["code"] for f in findings if f["severity"] == "error"]
        return
    if row["status"] == "any":
        assert any(f["kind"] in row["kinds"].split("|") and place_is_right(f, row) for f in findings)
        return
    assert document["status"] == "failing", [stage["reason"] for stage in document["stages"]]
    assert verdict["kind"] in row["kinds"].split("|"), verdict["title"]
    assert place_is_right(verdict, row), (verdict["source"], verdict["module"], verdict["parameter"])


@pytest.mark.parametrize("row", ROWS[::SPREAD], ids=lambda row: row["id"])
def test_a_spread_of_the_casebook(row: dict[str, str], tmp_path: Path) -> None:
    check(row, tmp_path)


@pytest.mark.casebook
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_the_whole_casebook(row: dict[str, str], tmp_path: Path) -> None:
    check(row, tmp_path)


def test_every_script_has_a_row() -> None:
    assert {row["file"] for row in ROWS} == {path.name for path in CASES.glob("*.py")}
    assert len({row["id"] for row in ROWS}) == len(ROWS)
