"""The whole run: run.json and the stages beside it, and the directory they live in."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanprobe.errors import OutputNotWritable, RunUnreadable
from nanprobe.plan import RunPlan
from nanprobe.records import Outcome, RunRecord, StageName, StageTrace, Target
from nanprobe.storage.layout import DIAGNOSIS_FILE, RUN_FILE, SCHEMA_VERSION, TRACE_FILE, check_version, stage_directory
from nanprobe.storage.reader import read_stage
from nanprobe.storage.values import to_json_value
from nanprobe.storage.writer import write_stage


def write_run(run: RunRecord, plan: RunPlan | None = None) -> None:
    """Write run.json, and the trace of each stage that has not written its own (a skipped one, say)."""
    directory = Path(run.directory)
    asked = to_json_value(plan) if plan else {"steps": run.steps, "seed": run.seed}
    asked["stages"] = [stage.value for stage in (plan.stages if plan else [trace.name for trace in run.stages])]
    head = {"schema_version": SCHEMA_VERSION, "nanprobe": run.nanprobe_version, "torch": run.torch_version}
    document = {**head, "device": run.device, "target": run.target, "plan": asked, "notices": run.notices}
    write_json(directory / RUN_FILE, document)
    for trace in run.stages:
        path = stage_directory(directory, trace.name) / TRACE_FILE
        if not path.exists():
            write_stage(path, trace)


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
    """The run in a directory; a stage that was asked for and left no trace is a skipped one.

    Raises RunUnreadable when it is not a run directory, is damaged, or was written by a newer nanprobe.
    """
    directory = Path(directory)
    document = _read_run_file(directory)
    try:
        plan, target = document["plan"], document["target"]
        return RunRecord(
            target=Target(target["path"], tuple(target["argv"]), target["mode"]),
            stages=tuple(_read_stage_or_skipped(directory, StageName(name)) for name in plan["stages"]),
            device=document["device"],
            torch_version=document["torch"],
            nanprobe_version=document["nanprobe"],
            steps=plan["steps"],
            seed=plan["seed"],
            directory=str(directory),
            notices=tuple(document["notices"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RunUnreadable(f"{directory / RUN_FILE}: an entry is missing or wrong: {error}") from error


def _read_stage_or_skipped(directory: Path, name: StageName) -> StageTrace:
    stage = stage_directory(directory, name)
    if stage.is_dir():
        return read_stage(stage)
    return StageTrace(name, Outcome.SKIPPED, "float32", reason="the run ended before this stage began")


def _read_run_file(directory: Path) -> dict[str, Any]:
    path = directory / RUN_FILE
    if not directory.is_dir():
        raise RunUnreadable(f"{directory}: no such directory; expected one that `nanprobe diagnose` made")
    if not path.is_file():
        raise RunUnreadable(f"{directory}: not a nanprobe run directory, it has no {RUN_FILE}")
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunUnreadable(f"{path}: cut short or not JSON ({error})") from error
    if not isinstance(document, dict) or "schema_version" not in document:
        raise RunUnreadable(f"{path}: was not written by nanprobe, it has no schema_version")
    check_version(document, path)
    return document


def new_run_directory(output: str | None, target: Target) -> Path:
    """A new, empty run directory: `output`, or one of its own name in the user's cache. Nothing is ever overwritten.

    Raises OutputNotWritable when it holds something already, or cannot be made.
    """
    path = Path(output).expanduser().absolute() if output else _default_directory(target)
    try:
        if path.exists() and not path.is_dir():
            raise OutputNotWritable(f"{path}: is a file; give a directory that does not exist yet, or is empty")
        if path.is_dir() and any(path.iterdir()):
            what = (
                "already holds a nanprobe run"
                if (path / RUN_FILE).exists()
                else "is not empty, and is not a nanprobe run"
            )
            raise OutputNotWritable(f"{path}: {what}; give a directory that does not exist yet, or is empty")
        (path / "stages").mkdir(parents=True)
    except OSError as error:
        raise OutputNotWritable(f"{path}: cannot make the run directory: {error.strerror or error}") from error
    return path


def _default_directory(target: Target) -> Path:
    """Source: XDG Base Directory Specification; a relative XDG_CACHE_HOME is to be ignored."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        cache = Path.home() / ".cache"
    name = target.path.rpartition(".")[2] if target.mode == "module" else Path(target.path).stem
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:40] or "run"
    return cache / "nanprobe" / "runs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{stem}-{secrets.token_hex(2)}"
