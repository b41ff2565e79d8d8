"""The staged protocol: a plan becomes stages in child processes, and their traces a run."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nanprobe
from nanprobe.diagnosis import fails
from nanprobe.diagnosis.refusals import refused_autocast
from nanprobe.diagnosis.symptoms import steps_to_rerun
from nanprobe.plan import NARROW_AUTOCAST, RunPlan, StageRequest
from nanprobe.progress import Progress
from nanprobe.records import Outcome, RunRecord, StageName, StageTrace
from nanprobe.storage import TraceTail, TraceWriter, read_stage, stage_directory, trace_path, write_run
from nanprobe.target.frames import read_stack
from nanprobe.target.launcher import Exit, Launcher
from nanprobe.target.output import OutputLog
from nanprobe.target.status import INTERNAL_ERROR_STATUS, STACK_FILE

_CLOSER_LOOKS = 2  # what the first look finds may lead to a step, or to the set-up, before it
SCOUT_STEPS = 2  # enough to see which scaler and which formats a script uses
_FIRST_FAILS = "the fp32 stage fails: data, graph and divergence come before precision (--all-stages runs it anyway)"
_FIRST_NEVER_STEPS = "the fp32 stage did not get as far as one optimizer step"
_INTERRUPTED = "interrupted by Ctrl-C"
_EXIT_STATUS = re.compile(r"exit status \d+$")

Copy = Callable[[bytes], object]


class RunInterrupted(Exception):
    """Ctrl-C ended a run; what was measured until then is in `run`."""

    def __init__(self, run: RunRecord) -> None:
        super().__init__(_INTERRUPTED)
        self.run = run


def run_protocol(
    plan: RunPlan, directory: Path, launcher: Launcher, progress: Progress, copy: Copy | None = None
) -> RunRecord:
    """Run the plan's stages in their order; `copy` gets the script's output as it comes.

    Raises RunInterrupted, with all that was measured, on Ctrl-C; CouldNotConclude when no stage can be started at all.
    """
    return run_stages(StageRunner(plan, directory, launcher, progress, copy))


def run_stages(stages: StageRunner) -> RunRecord:
    """The same with a runner of the caller's, who may run stages apart with it afterwards."""
    plan, directory = stages.plan, stages.directory
    write_run(run_record(plan, directory, ()), plan, finished=False)
    interrupted = False
    try:
        for name in [name for name in StageName if name in plan.stages]:
            stages.run(name)
    except KeyboardInterrupt:
        interrupted = True
        stages.interrupt()
    run = run_record(plan, directory, stages.traces, (_INTERRUPTED,) if interrupted else ())
    write_run(run, plan)
    if interrupted:
        raise RunInterrupted(run)
    return run


def run_record(
    plan: RunPlan, directory: Path, traces: tuple[StageTrace, ...], notices: tuple[str, ...] = ()
) -> RunRecord:
    """The run made of these stages."""
    devices = [trace.device for trace in traces if trace.outcome is not Outcome.SKIPPED]
    return RunRecord(
        target=plan.target,
        stages=traces,
        device=devices[-1] if devices else ("cpu" if plan.device == "auto" else plan.device),
        torch_version=version("torch"),
        nanprobe_version=nanprobe.__version__,
        steps=plan.steps,
        seed=plan.seed,
        directory=str(directory),
        notices=(*_describe_recipe(plan), *notices),
    )


def _describe_recipe(plan: RunPlan) -> tuple[str, ...]:
    """Which recipe was used, and what it made of the scaler, where the report shows it nowhere else."""
    if plan.recipe is None:
        return ()
    scaler = ", ".join(f"{name} {value:g}" for name, value in plan.scaler.given().items())
    return (f"settings from the recipe {plan.recipe}" + (f": {scaler}" if scaler else ""),)


class StageRunner:
    """Runs stages one after the other and keeps what they left: traces, and what the fp32 stage found out."""

    def __init__(
        self, plan: RunPlan, directory: Path, launcher: Launcher, progress: Progress, copy: Copy | None = None
    ) -> None:
        self.plan, self.directory, self.launcher, self.progress = plan, directory, launcher, progress
        self.traces: tuple[StageTrace, ...] = ()
        self._copy = copy
        self._running: StageRequest | None = None
        self._started = 0.0
        self._log = OutputLog(directory / "output.log")
        self._facts: Mapping[str, object] | None = None
        self._expected_steps: int | None = None
        self._skip_reason: str | None = None

    def run(self, name: StageName) -> None:
        """Run one stage, and once more for the steps that deserve a closer look; or skip it, with the reason."""
        if self._skip_reason is not None:
            self.traces += (StageTrace(name, Outcome.SKIPPED, self._dtype(name), reason=self._skip_reason),)
            self.progress.stage_finished(self.traces[-1])
            return
        if name is not StageName.FP32 and self._facts is None:
            self._scout()
        request = self._request(name, self.plan, stage_directory(self.directory, name))
        trace, request = self._run_or_narrow(request)
        self._note(trace)
        self.traces += (trace,)
        self.progress.stage_finished(trace)
        for _ in range(_CLOSER_LOOKS):
            if not (steps := steps_to_rerun(trace, self._reference())):
                break
            trace = self._look_again(request, trace, steps)
            self.traces = (*self.traces[:-1], trace)
            self.progress.stage_finished(trace)

    def run_apart(self, name: StageName, label: str, plan: RunPlan, **changes: Any) -> StageTrace:
        """Run a stage under another plan, in a directory of its own; it is no part of the protocol's traces.

        `changes` are fields of the request; `facts` among them are added to those of the fp32 stage.
        """
        request = self._request(name, plan, self.directory / "stages" / label)
        changes["facts"] = {**request.facts, **changes.get("facts", {})}
        trace, _ = self._run_or_narrow(replace(request, label=label, **changes))
        self.progress.stage_finished(trace, label)
        return trace

    def _run_or_narrow(self, request: StageRequest) -> tuple[StageTrace, StageRequest]:
        """Run a stage; where PyTorch refuses the autocast put around it, once more with a narrower one.

        The trace of the better try, with a notice of the other, and the request it was run with. Later runs begin with
        the narrow one.
        """
        trace = self._run_process(request)
        refusal = None if request.facts.get(NARROW_AUTOCAST) else refused_autocast(trace)
        if refusal is None:
            return trace, request
        self.progress.stage_finished(trace, request.label)
        narrow = replace(request, facts={**request.facts, NARROW_AUTOCAST: True})
        directory = Path(request.directory)
        aside = directory.with_name(f"{directory.name}-refused")
        directory.rename(aside)
        directory.mkdir()
        second = self._run_process(narrow)
        told = f"{request.stage.value}: under autocast around the whole step PyTorch refused the script ({refusal}); "
        if len(second.steps) > len(trace.steps) or second.outcome is Outcome.COMPLETED:
            self._facts = {**(self._facts or {}), NARROW_AUTOCAST: True}
            told += "run again with autocast around the model's forward only, its outputs cast to float32"
        else:
            directory.rename(directory.with_name(f"{directory.name}-narrow"))
            aside.rename(directory)
            narrow = request
            told += "a second try, with autocast around the model's forward only, came no further"
        with TraceWriter(trace_path(directory)) as writer:
            writer.write_notice(told)
        return read_stage(directory), narrow

    def interrupt(self) -> None:
        """Keep what the running stage has written; the stages that did not begin are skipped."""
        done = {trace.name for trace in self.traces}
        running = self._running
        if running is not None and running.stage in self.plan.stages and running.stage not in done:
            trace = self.cut_short()
            assert trace is not None
            self.traces += (trace,)
            done.add(running.stage)
        for name in StageName:
            if name in self.plan.stages and name not in done:
                reason = f"{_INTERRUPTED} before it began"
                self.traces += (StageTrace(name, Outcome.SKIPPED, self._dtype(name), reason=reason),)

    def cut_short(self, label: str | None = None) -> StageTrace | None:
        """Close the trace of the run that Ctrl-C stopped, and read it as far as it got; None when nothing ran."""
        running, self._running = self._running, None
        if running is None:
            return None
        ending = Ending(running, self._dtype(running.stage))
        ending.write(Outcome.CRASHED, _INTERRUPTED, time.monotonic() - self._started)
        trace = read_stage(running.directory)
        self.progress.stage_finished(trace, label)
        return trace

    def _reference(self) -> StageTrace | None:
        """The fp32 stage, once it has run."""
        return next((t for t in self.traces if t.name is StageName.FP32 and t.steps), None)

    def _dtype(self, name: StageName) -> str:
        return "float32" if name is StageName.FP32 else self.plan.dtype

    def _request(self, name: StageName, plan: RunPlan, directory: Path) -> StageRequest:
        directory.mkdir(parents=True, exist_ok=True)
        return StageRequest(
            stage=name,
            plan=plan,
            directory=str(directory.absolute()),
            facts=dict(self._facts or {}),
            expected_steps=self._expected_steps,
        )

    def _scout(self) -> None:
        """A short fp32 run for its facts, when the plan has no fp32 stage; its trace is no part of the run."""
        plan = replace(self.plan, steps=SCOUT_STEPS, until_failure=False)
        request = replace(self._request(StageName.FP32, plan, self.directory / "scout"), deep_ends=False)
        self._facts = self._run_process(request).facts

    def _note(self, trace: StageTrace) -> None:
        """What a stage means for those after it."""
        if trace.name is not StageName.FP32:
            return
        self._facts = trace.facts
        if trace.outcome is Outcome.COMPLETED and len(trace.steps) < self.plan.steps:
            self._expected_steps = len(trace.steps)
        if not trace.steps:
            self._skip_reason = _FIRST_NEVER_STEPS
        elif fails(trace) and not self.plan.all_stages:
            self._skip_reason = _FIRST_FAILS

    def _look_again(self, request: StageRequest, trace: StageTrace, steps: tuple[int, ...]) -> StageTrace:
        """The trace with its chosen steps looked at operation by operation, in a second run from the same seed."""
        again = replace(request, rerun=True, deep_steps=steps, deep_ends=False, expected_steps=len(trace.steps))
        path = trace_path(request.directory, rerun=True)
        exit = self._launch(again, path)
        if reason := Ending(again, self._dtype(request.stage), path).explain(exit):
            text = f"the second run of {trace.name.value}, for a closer look at some steps, did not end well: {reason}"
            with TraceWriter(trace_path(request.directory)) as writer:
                writer.write_notice(text)
        return read_stage(request.directory)

    def _run_process(self, request: StageRequest) -> StageTrace:
        path = trace_path(request.directory)
        exit = self._launch(request, path)
        ending = Ending(request, self._dtype(request.stage), path)
        if not ending.was_written():
            reason = (
                ending.explain(exit) or "the process ended without a word (os._exit in a thread, or in native code)"
            )
            ending.write(Outcome.TIMEOUT if exit.timed_out else Outcome.CRASHED, reason, exit.seconds)
        trace = read_stage(request.directory)
        if trace.reason and _EXIT_STATUS.search(trace.reason) and (said := self._log.last_line()):
            ending.write(trace.outcome, f"{trace.reason}, after printing: {said}", trace.seconds)
            trace = read_stage(request.directory)
        return trace

    def _launch(self, request: StageRequest, path: Path) -> Exit:
        tail = TraceTail(path)

        def watch() -> None:
            for step in tail.poll():
                self.progress.step(step)

        self._running, self._started = request, time.monotonic()
        self.progress.stage_started(*_describe_start(request))
        name = "output-rerun.log" if request.rerun else "output.log"
        self._log = OutputLog(Path(request.directory) / name, copy=self._copy)
        exit = self.launcher.run(request, self._log, self.plan.timeout, watch)
        watch()
        self._running = None
        return exit


def _describe_start(request: StageRequest) -> tuple[str, int | None]:
    """What progress is told: a name, and the number of steps where it is known."""
    if request.rerun:
        return f"{request.stage.value} again", max(request.deep_steps) + 1
    return request.label or request.stage.value, None if request.plan.until_failure else request.plan.steps


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a stage whose process could not write it down itself."""

    request: StageRequest
    dtype: str
    path: Path | None = None

    def was_written(self) -> bool:
        """Whether the child came to write how it ended."""
        assert self.path is not None
        return self.path.exists() and b'\n{"type":"end"' in self.path.read_bytes()

    def write(self, outcome: Outcome, reason: str, seconds: float) -> None:
        """Close the trace in the child's stead."""
        path = self.path or trace_path(self.request.directory)
        is_new = not path.exists()
        with TraceWriter(path) as writer:
            if is_new:
                writer.write_header(self.request.stage, self.dtype)
            writer.write_end(outcome, reason=reason, seconds=seconds)

    def explain(self, exit: Exit) -> str | None:
        """Why a process ended as it did; None when it ended by itself."""
        place = self._place()
        if exit.timed_out:
            return f"not done after {self.request.plan.timeout:g} s (--timeout), and stopped{place}"
        if exit.status == INTERNAL_ERROR_STATUS:
            return f"nanprobe itself failed in this stage; please report it with {self.request.directory}/output.log"
        if exit.status < 0:
            return f"{_describe_signal(-exit.status)}{place}"
        if exit.status > 0:
            return f"the process ended with status {exit.status}"
        return None

    def _place(self) -> str:
        source = read_stack(Path(self.request.directory) / STACK_FILE)
        if source is None:
            return ""
        return f", at {source.file}:{source.line}" + (f": {source.code}" if source.code else "")


def _describe_signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if name == "SIGKILL":
        return "the process was killed (SIGKILL), most often because memory ran out"
    if name in ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT"):
        return f"the process crashed in native code ({name})"
    return f"the process was ended by {name}"
