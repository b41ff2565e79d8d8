"""The sweep: one recorded run answers for every loss scale, and a few real runs prove its edges."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from nanprobe.findings import Status
from nanprobe.formats import format_named
from nanprobe.loss_scale.analysis import analyse_sweep
from nanprobe.loss_scale.histograms import PARAMETER, ExponentHistogram
from nanprobe.loss_scale.outcomes import ScaleRow, predict_outcomes
from nanprobe.loss_scale.policies import PYTORCH, ScalerPolicy
from nanprobe.loss_scale.result import (
    HIGH_EDGE,
    LOW_EDGE,
    Confirmation,
    RealRun,
    ScalerHistory,
    SweepResult,
    SweepRun,
    WeightUpdate,
)
from nanprobe.plan import RunPlan, ScalerSettings
from nanprobe.progress import Progress
from nanprobe.protocol import Copy, StageRunner, run_record
from nanprobe.records import Outcome, StageName, StageTrace
from nanprobe.storage import from_json_value
from nanprobe.target.launcher import Launcher

SAMPLED_ELEMENTS = 2  # of each parameter in the runs of --scales: enough to see an update appear or vanish
FP32_LABEL, SWEEP_LABEL = "fp32", "sweep"  # what progress calls the first two runs
_NEVER = 2**31 - 1  # a growth interval no run reaches: the scale only moves down


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """Everything `nanprobe sweep-scale` was asked for."""

    run: RunPlan
    number_format: str = "float16"
    scales: tuple[float, ...] = ()  # run exactly these for real
    confirm: bool = True  # run the window's edges for real


def run_sweep(
    plan: SweepPlan, directory: Path, launcher: Launcher, progress: Progress, copy: Copy | None = None
) -> SweepResult:
    """Record one run, read every scale off it, and run the edges (and `plan.scales`) for real.

    Inconclusive, with the reason, when the script does not train in FP32, and when Ctrl-C cuts it short: then with all
    that was measured until that.
    """
    return _Sweep(plan, directory, StageRunner(plan.run, directory, launcher, progress, copy)).run()


class _Sweep:
    def __init__(self, plan: SweepPlan, directory: Path, stages: StageRunner) -> None:
        self._plan = plan
        self._directory = directory
        self._stages = stages
        self._trace: StageTrace | None = None  # of the recorded run, or of the fp32 stage while there is none
        self._asked_runs: list[RealRun] = []
        self._confirmations: list[Confirmation] = []
        self._known: dict[float, RealRun] = {}  # no scale is run twice
        self._recorded: tuple[ExponentHistogram, ...] | None = None  # histograms, once the sweep is over
        self._doing = FP32_LABEL

    def run(self) -> SweepResult:
        try:
            reason = self._record()
            if reason is not None:
                return self._analyse(reason=reason)
            for scale in dict.fromkeys(self._plan.scales):
                self._asked_runs.append(self._run_at(scale, SAMPLED_ELEMENTS))
            for edge, row in self._edges(self._analyse()):
                real = self._run_at(row.scale, 0, measure_flush=edge == LOW_EDGE)
                self._confirmations.append(Confirmation(edge, row, real))
            return self._analyse()
        except KeyboardInterrupt:
            trace = self._stages.cut_short(self._label)
            if trace is not None and self._doing in (FP32_LABEL, SWEEP_LABEL):
                self._trace = trace
            return self._analyse(reason=f"interrupted by Ctrl-C in the run {self._doing}; what came before it is shown")

    @property
    def _label(self) -> str | None:
        return None if self._doing == FP32_LABEL else self._doing

    def _record(self) -> str | None:
        """The run that every scale is read off; the reason why there is nothing to read, if so."""
        self._stages.run(StageName.FP32)
        self._trace = fp32 = self._stages.traces[0]
        if reason := _explain_unfit(fp32):
            return reason
        self._doing = SWEEP_LABEL
        trace = self._stages.run_apart(StageName.AMP, SWEEP_LABEL, self._plan.run, sweep=True, deep_ends=False)
        self._trace = trace
        if not trace.steps:
            return f"the script did not take one step under autocast: {trace.reason}"
        return None

    def _analyse(self, *, reason: str | None = None) -> SweepResult:
        """The answer from all that was run so far; inconclusive with `reason`."""
        histograms = self._histograms()
        traces = () if self._trace is None else (self._trace,)
        record = run_record(self._plan.run, self._directory, traces)
        recorded = self._trace if histograms else None
        run = SweepRun(
            target=record.target,
            device=record.device,
            torch_version=record.torch_version,
            nanprobe_version=record.nanprobe_version,
            seed=record.seed,
            directory=record.directory,
            steps=len({h.step for h in histograms}),
            measured_scale=histograms[0].loss_scale if histograms else None,
            notices=(
                *record.notices,
                *(note for trace in traces for note in (*trace.notices, *self._notices(trace, reason))),
            ),
        )
        result = analyse_sweep(
            run,
            histograms,
            number_format=self._plan.number_format,
            scaler=None if recorded is None else _history(recorded, self._plan.run.scaler),
            confirmations=self._confirmations,
            real_runs=self._asked_runs,
        )
        return result if reason is None else replace(result, status=Status.INCONCLUSIVE, reasons=(reason,))

    def _notices(self, trace: StageTrace, reason: str | None) -> list[str]:
        notes = []
        asked = format_named(self._plan.number_format)
        if reason is None and trace.outcome is not Outcome.COMPLETED:
            notes.append(f"the recorded run ended early, after step {len(trace.steps) - 1}: {trace.reason}")
        if trace.dtype == "bfloat16" != asked.name:
            notes.append(
                f"the script computes in bfloat16, which needs no loss scale; this is how the same gradients would "
                f"fare in {asked.name} (--number-format bf16 for its own)"
            )
        if self._plan.confirm and trace.name is StageName.AMP and asked.name != trace.dtype:
            notes.append(f"the edges are not confirmed by real runs: those would be in {trace.dtype}")
        return notes

    def _edges(self, result: SweepResult) -> list[tuple[str, ScaleRow]]:
        """The lowest safe scale and the highest, which are run for real; none where the format is not the script's."""
        window = result.window
        if not self._plan.confirm or window is None or self._trace is None:
            return []
        if window.lowest_scale is None or window.highest_scale is None or self._trace.dtype != result.number_format:
            return []
        rows = {row.scale: row for row in result.scales}
        comparable = {row.scale: row for row in self._first_step_rows()}
        return [
            (
                edge,
                replace(
                    rows[scale],
                    flushed_elements=comparable[scale].flushed_elements,
                    flushed_fraction=comparable[scale].flushed_fraction,
                    lost_norm_fraction=comparable[scale].lost_norm_fraction,
                    undecided=comparable[scale].undecided,
                ),
            )
            for edge, scale in ((LOW_EDGE, window.lowest_scale), (HIGH_EDGE, window.highest_scale))
        ]

    def _first_step_rows(self) -> tuple[ScaleRow, ...]:
        """Every scale's row over what a real run measures flushes of: the parameters' gradients in its first step."""
        parameters = [h for h in self._histograms() if h.kind == PARAMETER]
        first = [h for h in parameters if h.step == parameters[0].step]
        return predict_outcomes(first, format_named(self._plan.number_format)).scale_rows()

    def _histograms(self) -> tuple[ExponentHistogram, ...]:
        if self._recorded is None:
            path = Path(self._directory, "stages", SWEEP_LABEL, "trace.jsonl")
            self._recorded = read_histograms(path) if path.exists() else ()
        return self._recorded

    def _run_at(self, scale: float, sampled_elements: int, measure_flush: bool = True) -> RealRun:
        if scale in self._known:
            return self._known[scale]
        plan = replace(self._plan.run, init_scale=scale, growth_interval=_NEVER)
        self._doing = label = f"scale-{scale:.0f}" if scale.is_integer() else f"scale-{scale!r}"
        trace = self._stages.run_apart(
            StageName.AMP,
            label,
            plan,
            deep_ends=measure_flush,
            hold_scale=True,
            sampled_elements=sampled_elements,
        )
        flushed, lost = _lost_in(trace, {h.name for h in self._histograms() if h.kind == PARAMETER})
        path = Path(self._directory, "stages", label, "trace.jsonl")
        self._known[scale] = RealRun(
            scale=scale,
            steps=len(trace.steps),
            overflowing_tensors=_overflowing(trace, scale),
            skipped_steps=sum(step.skipped for step in trace.steps),
            flushed_fraction=flushed,
            lost_norm_fraction=lost,
            updates=_read_updates(path) if sampled_elements else (),
            reason=None if trace.outcome is Outcome.COMPLETED else trace.reason,
        )
        return self._known[scale]


def _explain_unfit(fp32: StageTrace) -> str | None:
    """Why a sweep makes no sense for this script; None when it does."""
    if not fp32.steps:
        return f"the script did not take one optimizer step in FP32 ({fp32.reason}); nanprobe diagnose says more"
    broken = next((s for s in fp32.steps if s.nonfinite_weights or not _finite(s.loss)), None)
    if broken is not None:
        return (
            f"step {broken.index} is not finite in FP32 already, which no loss scale can mend; "
            "nanprobe diagnose finds the cause"
        )
    return None


def _finite(value: float | None) -> bool:
    return value is None or (abs(value) != float("inf") and value == value)


def _history(trace: StageTrace, settings: ScalerSettings) -> ScalerHistory | None:
    """What the script's own scaler did, or the one put around it."""
    if not any(step.loss_scale for step in trace.steps):
        return None
    call = next((c for c in trace.calls if c.name == "scaler.init" and c.details.get("enabled")), None)
    own = trace.facts.get("scaler") == "script"
    return ScalerHistory(
        policy=_policy(call.details) if own and call is not None else replace(PYTORCH, **settings.given()),
        scales=tuple(step.loss_scale or 1.0 for step in trace.steps),
        skipped=tuple(step.skipped for step in trace.steps),
        as_written=own,
    )


def _policy(details: dict[str, object]) -> ScalerPolicy:
    """The settings a GradScaler was made with."""

    def number(key: str, default: float) -> float:
        value = details.get(key, default)
        return float(value) if isinstance(value, (int, float)) else default

    return ScalerPolicy(
        name="this script",
        init_scale=number("init_scale", PYTORCH.init_scale),
        growth_interval=int(number("growth_interval", PYTORCH.growth_interval)),
        growth_factor=number("growth_factor", PYTORCH.growth_factor),
        backoff_factor=number("backoff_factor", PYTORCH.backoff_factor),
    )


def _lost_in(trace: StageTrace, names: set[str]) -> tuple[float | None, float | None]:
    """Shares of elements and of norm that these parameters' gradients lost in the first deep step."""
    grads = [g for g in trace.deep_steps[0].grads if g.name in names] if trace.deep_steps else []
    nonzero = sum(g.stats.numel for g in grads)
    norm = sum((g.shadow_norm or 0.0) ** 2 for g in grads)
    if not nonzero or not norm:
        return None, None
    flushed = sum(g.flushed_fraction * g.stats.numel for g in grads) / nonzero
    lost = sum((g.lost_norm_fraction * (g.shadow_norm or 0.0)) ** 2 for g in grads)
    return flushed, (lost / norm) ** 0.5


def _overflowing(trace: StageTrace, scale: float) -> int:
    """Gradients that were not finite in some step while the scale was still the one asked for."""
    bad: set[int] = set()
    for step in trace.steps:
        if step.loss_scale == scale:
            bad.update(k for k, v in enumerate(step.grad_abs_max) if not _finite(v))
    return len(bad)


def read_histograms(path: Path) -> tuple[ExponentHistogram, ...]:
    """The histograms in a trace, in the order they were taken; a broken last line is passed over."""
    return tuple(ExponentHistogram.from_plain(line) for line in _lines(path, "histogram"))


def _read_updates(path: Path) -> tuple[WeightUpdate, ...]:
    fields = WeightUpdate.__slots__
    plain = (from_json_value({key: line[key] for key in fields}) for line in _lines(path, "element_update"))
    return tuple(WeightUpdate(**{**row, "index": tuple(row["index"])}) for row in plain)


def _lines(path: Path, tag: str) -> list[dict[str, object]]:
    with path.open(encoding="utf-8") as lines:
        whole = [line for line in lines if line.startswith(f'{{"type":"{tag}"') and line.endswith("\n")]
    return [{key: value for key, value in json.loads(line).items() if key != "type"} for line in whole]
