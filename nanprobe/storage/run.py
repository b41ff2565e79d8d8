"""The whole run: run.json and the stages beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from nanprobe.errors import OutputNotWritable, RunUnreadable
from nanprobe.plan import RunPlan, SweepPlan
from nanprobe.records import Outcome, RunRecord, StageName, StageTrace, Target
from nanprobe.storage.layout import (
    DIAGNOSIS_FILE,
    RUN_FILE,
    SCHEMA_VERSION,
    SWEEP_FILE,
    TRACE_FILE,
    check_version,
    stage_directory,
)
from nanprobe.storage.reader import read_stage
from nanprobe.storage.values import to_json_value
from nanprobe.storage.writer import write_stage

_UNFINISHED = "this run has not finished: it is still going on, or it was killed; what it has left is shown"


class Command(str, Enum):
    """What made a run."""

    DIAGNOSE = "diagnose"
    SWEEP_SCALE = "sweep-scale"


@dataclass(frozen=True, slots=True)
class RunHead:
    """What run.json says: everything about a run but its stages."""

    command: Command
    document: Mapping[str, Any]
    run: RunRecord  # without stages
    finished: bool


def write_run(run: RunRecord, plan: RunPlan | None = None, *, finished: bool = True) -> None:
    """Write run.json, and the trace of each stage that has not written its own (a skipped one, say).

    A run that is only beginning is not `finished`; whoever reads it then is told so.
    """
    asked = to_json_value(plan) if plan else {"steps": run.steps, "seed": run.seed}
    asked["stages"] = [stage.value for stage in (plan.stages if plan else [trace.name for trace in run.stages])]
    _write_head(run, Command.DIAGNOSE, asked, finished, {})
    for trace in run.stages:
        path = stage_directory(run.directory, trace.name) / TRACE_FILE
        if not path.exists():
            write_stage(path, trace)


def write_sweep_run(
    run: RunRecord, plan: SweepPlan, *, finished: bool = True, interrupted_in: str | None = None
) -> None:
    """Write the run.json of a sweep; `interrupted_in` names the run that Ctrl-C ended."""
    sweep = {"number_format": plan.number_format, "scales": plan.scales, "confirm": plan.confirm}
    further = {"sweep": sweep, "interrupted_in": interrupted_in}
    _write_head(run, Command.SWEEP_SCALE, to_json_value(plan.run), finished, further)


def _write_head(
    run: RunRecord, command: Command, asked: Mapping[str, Any], finished: bool, further: Mapping[str, Any]
) -> None:
    document = {
        "schema_version": SCHEMA_VERSION,
        "nanprobe": run.nanprobe_version,
        "torch": run.torch_version,
        "device": run.device,
        "command": command,
        "finished": finished,
        "target": run.target,
        "plan": asked,
        "notices": run.notices,
    }
    write_json(Path(run.directory, RUN_FILE), {**document, **further})


def write_document(run_directory: str | Path, document: Mapping[str, object]) -> None:
    """Write the answer's JSON document beside the records it came from. Raises OutputNotWritable."""
    write_json(Path(run_directory) / DIAGNOSIS_FILE, document)


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Write a JSON file whole or not at all. Raises OutputNotWritable."""
    draft = path.with_name(path.name + ".draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(to_json_value(document), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise OutputNotWritable(f"{path}: cannot write: {error.strerror or error}") from error


def read_run(directory: str | Path) -> RunRecord:
    """The run of `nanprobe diagnose` in a directory. One that has not finished says so, and its other stages are
    skipped ones.

    Raises RunUnreadable when it is not such a directory, is damaged, or was written by a newer nanprobe.
    """
    head = read_head(directory)
    if head.command is not Command.DIAGNOSE:
        raise RunUnreadable(
            f"{directory}: is a run of `nanprobe {head.command.value}`; expected one of `nanprobe diagnose`"
        )
    path, names = Path(head.run.directory), head.document["plan"].get("stages")
    try:
        stages = tuple(StageName(name) for name in names)
    except (TypeError, ValueError) as error:
        raise RunUnreadable(f"{path / RUN_FILE}: an entry is missing or wrong: {error}") from error
    traces = tuple(_read_stage_or_skipped(path, name, head.finished) for name in stages)
    notices = head.run.notices if head.finished else (*head.run.notices, _UNFINISHED)
    return replace(head.run, stages=traces, notices=notices)


def read_head(directory: str | Path) -> RunHead:
    """What run.json says of a run. Raises RunUnreadable."""
    directory = Path(directory).absolute()
    document = _read_run_file(directory)
    try:
        plan, target = document["plan"], document["target"]
        run = RunRecord(
            target=Target(_text(target["path"]), tuple(map(_text, target["argv"])), _text(target["mode"])),
            stages=(),
            device=_text(document["device"]),
            torch_version=_text(document["torch"]),
            nanprobe_version=_text(document["nanprobe"]),
            steps=int(plan["steps"]),
            seed=int(plan["seed"]),
            directory=str(directory),
            notices=tuple(map(_text, document["notices"])),
        )
        command = Command(document.get("command", "diagnose"))
    except (KeyError, TypeError, ValueError) as error:
        raise RunUnreadable(f"{directory / RUN_FILE}: an entry is missing or wrong: {error}") from error
    if not (directory / "stages").is_dir():
        raise RunUnreadable(f"{directory}: the run has lost its folder stages, and with it all that was measured")
    return RunHead(command, document, run, bool(document.get("finished", True)))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _read_stage_or_skipped(directory: Path, name: StageName, finished: bool) -> StageTrace:
    stage = stage_directory(directory, name)
    if stage.is_dir() or finished:
        return read_stage(stage, whole=finished)
    return StageTrace(name, Outcome.SKIPPED, "float32", reason="the run ended before this stage began")


def _read_run_file(directory: Path) -> dict[str, Any]:
    path = directory / RUN_FILE
    _check_directory(directory)
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise RunUnreadable(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise RunUnreadable(f"{path}: cut short or not JSON ({error})") from error
    if not isinstance(document, dict) or "schema_version" not in document:
        raise RunUnreadable(f"{path}: was not written by nanprobe, it has no schema_version")
    check_version(document, path)
    return document


def _check_directory(directory: Path) -> None:
    """Raises RunUnreadable, with what is there instead."""
    try:
        names = {path.name for path in directory.iterdir()}
    except FileNotFoundError as error:
        raise RunUnreadable(f"{directory}: no such directory; expected one that `nanprobe diagnose` made") from error
    except NotADirectoryError as error:
        raise RunUnreadable(f"{directory}: is a file; give the run directory, which has a {RUN_FILE} in it") from error
    except OSError as error:
        raise RunUnreadable(f"{directory}: cannot be read: {error.strerror or error}") from error
    if RUN_FILE in names:
        return
    if SWEEP_FILE in names:
        raise RunUnreadable(f"{directory}: was made by an older nanprobe; all it kept of the answer is {SWEEP_FILE}")
    what = "is empty" if not names else f"not a nanprobe run directory, it has no {RUN_FILE}"
    raise RunUnreadable(f"{directory}: {what}; give one that `nanprobe diagnose` or `sweep-scale` made")
