"""The sweep: one recorded run answers for every loss scale, and a few real runs prove its edges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nanprobe.loss_scale.recording import (
    FP32_LABEL,
    SWEEP_LABEL,
    SweepRecording,
    answer_sweep,
    edges,
    explain_stop,
)
from nanprobe.loss_scale.result import LOW_EDGE, SweepResult
from nanprobe.plan import SweepPlan
from nanprobe.progress import Progress
from nanprobe.protocol import Copy, StageRunner, run_record
from nanprobe.records import RunRecord, StageName, StageTrace
from nanprobe.saved_sweep import label_scale, read_histograms, read_real_run
from nanprobe.storage import write_sweep_run
from nanprobe.target.launcher import Launcher

SAMPLED_ELEMENTS = 2  # of each parameter in the runs of --scales: enough to see an update appear or vanish
_NEVER = 2**31 - 1  # a growth interval no run reaches: the scale only moves down


def run_sweep(
    plan: SweepPlan, directory: Path, launcher: Launcher, progress: Progress, copy: Copy | None = None
) -> SweepResult:
    """Record one run, read every scale off it, and run the edges (and `plan.scales`) for real.

    Inconclusive, with the reason, when the script does not train in FP32, and when Ctrl-C cuts it short: then with all
    that was measured until that. All of it is in the directory, for `nanprobe.saved_sweep` to read.
    """
    return _Sweep(plan, directory, StageRunner(plan.run, directory, launcher, progress, copy)).run()


class _Sweep:
    def __init__(self, plan: SweepPlan, directory: Path, stages: StageRunner) -> None:
        self._plan = plan
        self._directory = directory
        self._stages = stages
        self._recording = SweepRecording(plan, self._head())
        self._doing = FP32_LABEL

    def run(self) -> SweepResult:
        write_sweep_run(self._recording.head, self._plan, finished=False)
        try:
            if self._record():
                self._run_scales()
        except KeyboardInterrupt:
            self._keep_interrupted()
        self._recording = replace(self._recording, head=self._head(self._recording.trace))
        interrupted_in = self._recording.interrupted_in
        write_sweep_run(self._recording.head, self._plan, interrupted_in=interrupted_in)
        return answer_sweep(self._recording)

    def _head(self, trace: StageTrace | None = None) -> RunRecord:
        record = run_record(self._plan.run, self._directory, () if trace is None else (trace,))
        return replace(record, stages=())

    def _record(self) -> bool:
        """The run that every scale is read off; says whether there is something to read."""
        self._stages.run(StageName.FP32)
        self._recording = replace(self._recording, fp32=self._stages.traces[0])
        if explain_stop(self._recording):
            return False
        self._doing = SWEEP_LABEL
        trace = self._stages.run_apart(StageName.AMP, SWEEP_LABEL, self._plan.run, sweep=True, deep_ends=False)
        self._keep_recorded(trace)
        return explain_stop(self._recording) is None

    def _keep_recorded(self, trace: StageTrace) -> None:
        histograms = read_histograms(Path(self._directory, "stages", SWEEP_LABEL))
        self._recording = replace(self._recording, recorded=trace, histograms=histograms)

    def _run_scales(self) -> None:
        """The scales that were asked for, then the window's edges; none is run twice."""
        for scale in dict.fromkeys(self._plan.scales):
            self._run_at(scale, SAMPLED_ELEMENTS)
        for edge, row in edges(self._recording, answer_sweep(self._recording)):
            if row.scale not in {real.scale for real in self._recording.real_runs}:
                self._run_at(row.scale, 0, measure_flush=edge == LOW_EDGE)

    def _run_at(self, scale: float, sampled_elements: int, measure_flush: bool = True) -> None:
        plan = replace(self._plan.run, init_scale=scale, growth_interval=_NEVER)
        self._doing = label = label_scale(scale)
        self._stages.run_apart(
            StageName.AMP,
            label,
            plan,
            deep_ends=measure_flush,
            hold_scale=True,
            sampled_elements=sampled_elements,
        )
        real = read_real_run(Path(self._directory, "stages", label), scale, self._recording.parameters)
        self._recording = replace(self._recording, real_runs=(*self._recording.real_runs, real))

    def _keep_interrupted(self) -> None:
        """Keep what the run that Ctrl-C ended has written."""
        trace = self._stages.cut_short(None if self._doing == FP32_LABEL else self._doing)
        self._recording = replace(self._recording, interrupted_in=self._doing)
        if trace is not None and self._doing == FP32_LABEL:
            self._recording = replace(self._recording, fp32=trace)
        elif trace is not None and self._doing == SWEEP_LABEL:
            self._keep_recorded(trace)
