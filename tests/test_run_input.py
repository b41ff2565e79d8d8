"""Run directories that are damaged, foreign or not there, through the real command: one clear message, exit code 2."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from command import BASE, run_nanprobe
from nanprobe.storage import RUN_FILE


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each command."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "train.py").write_text(BASE + "train(lambda step: None)\n")
    for command, name in (("diagnose", "run"), ("sweep-scale", "sweep")):
        result = run_nanprobe(command, "train.py", "--steps", "3", "--output", name, cwd=folder)
        assert result.code in (0, 3), result.both
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """Copies of the two, to be damaged."""
    for name in ("run", "sweep"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path


def refuse(folder: Path, named: str, command: str = "report") -> str:
    """The one line of a command that cannot read a run."""
    args = (named, named) if command == "compare" else (named,)
    result = run_nanprobe(command, *args, cwd=folder)
    assert (result.code, result.stdout) == (2, ""), result.both
    assert result.stderr.startswith("nanprobe: ") and result.stderr.count("\n") == 1, result.stderr
    return result.stderr.removeprefix("nanprobe: ").strip()


def cut(path: Path, keep: float) -> None:
    """Keep a share of a file, as a full disk or a broken copy leaves it."""
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_line(path: Path, start: str, old: str, new: str) -> None:
    lines = path.read_text().split("\n")
    path.write_text("\n".join(line.replace(old, new, 1) if line.startswith(start) else line for line in lines))


TRACE = Path("stages", "fp32", "trace.jsonl")
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "run.json cut": (lambda run: cut(run / RUN_FILE, 0.5), "run.json: cut short or not JSON"),
    "run.json empty": (lambda run: (run / RUN_FILE).write_text(""), "run.json: cut short or not JSON"),
    "run.json binary": (lambda run: (run / RUN_FILE).write_bytes(b"\x80\xff\0"), "run.json: cut short or not JSON"),
    "run.json deep": (lambda run: (run / RUN_FILE).write_text("[" * 100_000), "run.json: cut short or not JSON"),
    "run.json foreign": (lambda run: (run / RUN_FILE).write_text('{"a": 1}'), "run.json: was not written by nanprobe"),
    "run.json a folder": (
        lambda run: ((run / RUN_FILE).unlink(), (run / RUN_FILE).mkdir()),
        "run.json: cannot be read: Is a directory",
    ),
    "newer": (lambda run: edit(run / RUN_FILE, schema_version=99), "schema version 99, this nanprobe reads up to 1"),
    "no plan": (lambda run: edit(run / RUN_FILE, plan=None), "run.json: an entry is missing or wrong"),
    "no target": (lambda run: edit(run / RUN_FILE, target={}), "run.json: an entry is missing or wrong: 'path'"),
    "odd argv": (
        lambda run: edit(run / RUN_FILE, target={"path": "a", "argv": [1], "mode": "script"}),
        "run.json: an entry is missing or wrong: 1 is no text",
    ),
    "unknown command": (lambda run: edit(run / RUN_FILE, command="dance"), "'dance' is not a valid Command"),
    "no stages": (lambda run: shutil.rmtree(run / "stages"), "the run has lost its folder stages"),
    "no stage": (lambda run: shutil.rmtree(run / "stages" / "fp32"), "trace.jsonl: cannot read the stage's trace"),
    "no trace": (lambda run: (run / TRACE).unlink(), "trace.jsonl: cannot read the stage's trace"),
    "trace cut": (lambda run: cut(run / TRACE, 0.5), "trace.jsonl: cut short: the run came to its end, but this trace"),
    "trace empty": (lambda run: (run / TRACE).write_bytes(b""), "trace.jsonl: cut short: the run came to its end"),
    "trace damaged": (
        lambda run: edit_line(run / TRACE, '{"type":"step"', '"index"', '"index'),
        "is not JSON; the trace was damaged",
    ),
    "trace binary": (lambda run: (run / TRACE).write_bytes(b"\xff\0\n" * 9), "is not JSON; the trace was damaged"),
    "trace foreign": (lambda run: (run / TRACE).write_text("{}\n{}\n"), "line 1 is no record nanprobe knows"),
    "trace newer": (
        lambda run: edit_line(run / TRACE, '{"type":"format"', '"schema_version":1', '"schema_version":99'),
        "trace.jsonl: schema version 99",
    ),
    "trace of odd records": (
        lambda run: edit_line(run / TRACE, '{"type":"step"', '"grad_abs_max":[', '"grad_abs_max":["x",'),
        "is no record nanprobe knows",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_run(name: str, folder: Path) -> None:
    damage, message = DAMAGES[name]
    damage(folder / "run")
    assert message in refuse(folder, "run")


HEAD_DAMAGES = [name for name in DAMAGES if name.split()[0] in ("run.json", "newer", "no") and name != "no stage"]


@pytest.mark.parametrize("name", [*HEAD_DAMAGES, "trace cut"])
def test_a_damaged_sweep(name: str, folder: Path) -> None:
    damage, message = DAMAGES[name]
    damage(folder / "sweep")
    assert message in refuse(folder, "sweep")


@pytest.mark.parametrize("stage", ["fp32", "sweep"])
def test_a_sweep_that_has_lost_a_run(stage: str, folder: Path) -> None:
    shutil.rmtree(folder / "sweep" / "stages" / stage)
    assert f"stages/{stage}: the sweep has lost this run, and with it all that was measured" in refuse(folder, "sweep")


def test_a_real_run_of_a_sweep_that_was_cut(folder: Path) -> None:
    scale = next((folder / "sweep" / "stages").glob("scale-*"))
    cut(scale / "trace.jsonl", 0.5)
    assert "trace.jsonl: cut short: the run came to its end" in refuse(folder, "sweep")


def test_damaged_histograms_of_a_sweep(folder: Path) -> None:
    trace = folder / "sweep" / "stages" / "sweep" / "trace.jsonl"
    trace.write_text('{"type":"histogram","name":"w"}\n' + trace.read_text())
    assert "a line of type histogram is no record nanprobe knows" in refuse(folder, "sweep")


def test_a_sweep_of_an_odd_plan(folder: Path) -> None:
    edit(folder / "sweep" / RUN_FILE, sweep={"number_format": "float16", "scales": ["many"], "confirm": True})
    assert "run.json: an entry is missing or wrong: could not convert" in refuse(folder, "sweep")
    edit(folder / "sweep" / RUN_FILE, sweep={"number_format": "fp12", "scales": [], "confirm": True})
    assert "fp12" in refuse(folder, "sweep")


@pytest.mark.parametrize("command", ["report", "compare"])
def test_what_is_no_run_directory(command: str, folder: Path) -> None:
    (folder / "empty").mkdir()
    (folder / "foreign").mkdir()
    (folder / "foreign" / "notes.txt").touch()
    assert refuse(folder, "nowhere", command).endswith("no such directory; expected one that `nanprobe diagnose` made")
    assert "empty: is empty; give one that `nanprobe diagnose` or `sweep-scale` made" in refuse(
        folder, "empty", command
    )
    assert "foreign: not a nanprobe run directory, it has no run.json" in refuse(folder, "foreign", command)
    assert "run.json: is a file; give the run directory" in refuse(folder, "run/run.json", command)
    assert "no such directory" in refuse(folder, "", command) or "not a nanprobe run" in refuse(folder, "", command)
    assert "is a file; give the run directory" in refuse(folder, "run/run.json/more", command)


def test_a_sweep_of_an_older_nanprobe(folder: Path) -> None:
    (folder / "sweep" / RUN_FILE).unlink()
    assert "was made by an older nanprobe; all it kept of the answer is sweep.json" in refuse(folder, "sweep")


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_what_must_not_be_read(folder: Path) -> None:
    (folder / "run" / TRACE).chmod(0)
    assert "trace.jsonl: cannot read the stage's trace: Permission denied" in refuse(folder, "run")
    (folder / "run" / RUN_FILE).chmod(0)
    assert "run.json: cannot be read: Permission denied" in refuse(folder, "run")
    (folder / "run").chmod(0)
    assert "run: cannot be read: Permission denied" in refuse(folder, "run")
    (folder / "run").chmod(0o700)


def test_a_run_that_has_not_finished_is_shown_and_says_so(folder: Path) -> None:
    """What a killed run leaves: no end in its last trace, and the stages after it never begun."""
    edit(folder / "run" / RUN_FILE, finished=False)
    shutil.rmtree(folder / "run" / "stages" / "amp")
    cut(folder / "run" / "stages" / "fp16" / "trace.jsonl", 0.7)
    result = run_nanprobe("report", "run", cwd=folder)
    assert result.code == 3, result.both
    text = " ".join(result.stdout.split())
    assert "this run has not finished: it is still going on, or it was killed; what it has left is shown" in text
    assert "amp skipped: the run ended before this stage began" in text
    assert "COULD NOT TELL" in text


def test_a_sweep_that_has_not_finished_is_shown_and_says_so(folder: Path) -> None:
    edit(folder / "sweep" / RUN_FILE, finished=False)
    for path in (folder / "sweep" / "stages").glob("scale-*"):
        shutil.rmtree(path)
    result = run_nanprobe("report", "sweep", cwd=folder)
    assert result.code == 3, result.both
    text = " ".join(result.stdout.split())
    assert "the sweep was stopped before it was done (killed, or still going on); what came before it is shown" in text


def test_a_run_that_was_moved_is_read_where_it_is(folder: Path) -> None:
    before = run_nanprobe("report", "run", "--format", "json", cwd=folder)
    (folder / "run").rename(folder / "elsewhere")
    after = run_nanprobe("report", "elsewhere", "--format", "json", cwd=folder)
    assert (after.stdout, after.code) == (before.stdout, before.code)
