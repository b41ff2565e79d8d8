"""The child's side: runs the user's code under a `StageSession` and writes down how it ended."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nanprobe.interventions import EditedFile
from nanprobe.plan import RunPlan, StageRequest
from nanprobe.probe.session import StageDone, StageSession
from nanprobe.records import DeepStep, Outcome, StepRecord
from nanprobe.storage import TraceWriter, trace_path
from nanprobe.target import environment
from nanprobe.target.frames import describe_error
from nanprobe.target.loop import train
from nanprobe.target.overlay import Overlay
from nanprobe.target.protection import WriteWatch, protect_files
from nanprobe.target.script import run_module, run_script
from nanprobe.target.usage import Usage
from nanprobe.treatment import serve_edited_files, treat

CLEANUP_SECONDS = 5.0  # for what the script registered to run at its end; our choice


def run_child(request: StageRequest, output: int | None) -> int:
    """Run one stage in this process, which is good for nothing else afterwards; returns the status to end with."""
    started = time.monotonic()
    environment.isolate()
    environment.redirect_streams(output)
    directory = Path(request.directory)
    environment.watch_for_crashes(directory)
    environment.keep_freed_memory()
    request = _enter_directory(request)
    record_stage(request, _clean_up, started)
    return 0


def record_stage(
    request: StageRequest, clean_up: Callable[[], None] = lambda: None, started: float | None = None
) -> None:
    """Run one stage in this process and write its trace; `clean_up` is called while the user's files are protected."""
    started = time.monotonic() if started is None else started
    pid = os.getpid()
    with TraceWriter(trace_path(request.directory, rerun=request.rerun)) as writer, _protection(request) as watch:
        record = Recording(writer.write)
        error = _run_watched(request, record)
        if os.getpid() != pid:
            return  # a fork of the script's own that came to the script's end
        _write_header(request, record.facts, writer.write)
        writer.write_facts(record.usage.facts())
        for text in (*_describe_device(record.facts), *(watch.notices(record.next_step) if watch else ())):
            writer.write_notice(text)
        outcome, reason = _judge(error)
        if outcome is Outcome.CRASHED and error is not None and not isinstance(error, SystemExit):
            writer.write(describe_error(error, record.next_step))
        seconds, contained = time.monotonic() - started, record.facts.get("contained_update")
        writer.write_end(outcome, reason=reason, seconds=seconds, contained_update=contained)
        clean_up()


def _enter_directory(request: StageRequest) -> StageRequest:
    """Go where the plan wants the script to run; a script's path is then meant from there."""
    plan = request.plan
    if plan.working_directory is None:
        return request
    target = plan.target
    if target.mode != "module":
        target = replace(target, path=os.path.relpath(target.path, plan.working_directory))
    os.chdir(plan.working_directory)
    os.environ["PWD"] = plan.working_directory
    return replace(request, plan=replace(plan, target=target))


class Recording:
    """Passes records on, and knows which step the script is in and what it was seen to use."""

    def __init__(self, write: Callable[[Any], None]) -> None:
        self._write = write
        self.usage = Usage()
        self.next_step = 0
        self.facts: Mapping[str, Any] = {}

    def __call__(self, record: object) -> None:
        """Write one record."""
        if isinstance(record, DeepStep):
            self.usage.deep_step(record.step)
        elif isinstance(record, StepRecord):
            self.usage.step(record.index)
            self.next_step = record.index + 1
        elif isinstance(record, Mapping) and record.get("type") == "facts":
            self.facts = {**self.facts, **record["facts"]}
        self._write(record)


def _protection(request: StageRequest) -> contextlib.AbstractContextManager[WriteWatch | None]:
    """Keeps the user's files as they are while the script runs, unless the user lets it write."""
    if request.plan.allow_writes:
        return contextlib.nullcontext()
    environment.switch_trackers_off()
    directory = Path(request.directory)
    root = directory / ("overlay-rerun" if request.rerun else "overlay")
    return protect_files(Overlay(root, request.plan.target, run_directory=directory))


def _run_watched(request: StageRequest, record: Recording) -> BaseException | None:
    """Run the target under a session; returns what ended it, None when it came to its end."""
    error: BaseException | None = None
    environment.seed_everything(request.plan.seed)
    session = StageSession(request, record)
    _write_header(request, session.facts(), record)
    edits = [i for i in request.interventions if isinstance(i, EditedFile)]
    device = str(session.facts()["device"])
    with session, serve_edited_files(edits):
        with treat(request.interventions, session.name_module, device) as seen:
            try:
                with _exit_as_exception():
                    _run_target(request.plan)
            except BaseException as raised:
                error = raised
        if seen:
            record({"type": "facts", "facts": seen})
        session.finish(None if _judge(error)[0] is Outcome.COMPLETED else error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    return error


def _write_header(request: StageRequest, facts: Mapping[str, Any], write: Callable[[Any], None]) -> None:
    known = {name: facts[name] for name in ("dtype", "as_written", "device") if name in facts}
    write({"type": "header", "name": request.stage, **known})


def _describe_device(facts: Mapping[str, Any]) -> Iterator[str]:
    if facts.get("mapped_cuda"):
        yield "no GPU was used: what the script asked of cuda ran on the CPU, with CUDA's numbers emulated"


def _run_target(plan: RunPlan) -> None:
    if plan.target.mode == "module":
        run_module(plan.target)
    elif plan.target.mode == "contract":
        train(run_script(plan.target), plan)
    else:
        run_script(plan.target)


@contextlib.contextmanager
def _exit_as_exception() -> Iterator[None]:
    """Let `os._exit` in the script's own process end the script, not the recording of it."""
    original, pid, thread = os._exit, os.getpid(), threading.get_ident()

    def leave(status: int) -> None:
        if os.getpid() == pid and threading.get_ident() == thread:
            raise SystemExit(status)
        original(status)

    os._exit = leave  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = original


def _judge(error: BaseException | None) -> tuple[Outcome, str | None]:
    """What an ending means, and the reason in words where it is a failure."""
    if error is None or _holds_stage_done(error):
        return Outcome.COMPLETED, None
    if isinstance(error, SystemExit):
        if error.code is None or error.code == 0:
            return Outcome.COMPLETED, None
        if isinstance(error.code, int):
            return Outcome.CRASHED, f"the script ended itself with exit status {error.code}"
        return Outcome.CRASHED, f"the script ended itself with the message: {error.code}"
    described = describe_error(error, 0)
    first_line = described.message.strip().split("\n")[0]
    return Outcome.CRASHED, f"the script raised {described.kind}" + (f": {first_line}" if first_line else "")


def _holds_stage_done(error: BaseException | None) -> bool:
    """Whether the stage's own end is behind an exception, which some frameworks wrap in one of theirs."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, StageDone):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _clean_up() -> None:
    """Run what the script registered to run at its end (temporary directories, workers), for a limited time."""
    timer = threading.Timer(CLEANUP_SECONDS, os._exit, (0,))
    timer.daemon = True
    timer.start()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    timer.cancel()
