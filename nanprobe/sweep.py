"""The sweep: one recorded run answers for every loss scale, and a few real runs prove its edges."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nanprobe.loss_scale.analysis import analyse_sweep
from nanprobe.loss_scale.histograms import ExponentHistogram
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
from nanprobe.plan import RunPlan
from nanprobe.progress import Progress
from nanprobe.protocol import Copy, StageRunner, run_record
from nanprobe.records import Outcome, StageName, StageTrace
from nanprobe.storage import from_json_value
from nanprobe.target.launcher import Launcher

SAMPLED_ELEMENTS = 2  # of each parameter in the runs of --scales: enough to see an update appear or vanish
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

    Inconclusive, with the reason, when the script does not train in FP32.
    """
    return _Sweep(plan, directory, StageRunner(plan.run, directory, launcher, progress, copy)).run()


class _Sweep:
    def __init__(self, plan: SweepPlan, directory: Path, stages: StageRunner) -> None:
        self._plan = plan
        self._directory = directory
        self._stages = stages
        self._notices: tuple[str, ...] = ()

    def run(self) -> SweepResult:
        self._stages.run(StageName.FP32)
        fp32 = self._stages.traces[0]
        if reason := _explain_unfit(fp32):
            return self._analyse(fp32, (), reason=reason)
        trace = self._stages.run_apart(StageName.AMP, "sweep", self._plan.run, sweep=True, deep_ends=False)
        histograms = read_histograms(Path(self._directory, "stages", "sweep", "trace.jsonl"))
        if not trace.steps:
            return self._analyse(trace, (), reason=f"the script did not take one step under autocast: {trace.reason}")
        history = _history(trace)
        real_runs = tuple(self._run_at(scale, SAMPLED_ELEMENTS) for scale in self._plan.scales)
        result = self._analyse(trace, histograms, history=history, real_runs=real_runs)
        confirmations = tuple(self._confirm(result)) if self._plan.confirm else ()
        return replace(result, confirmations=confirmations)

    def _analyse(
        self,
        trace: StageTrace,
        histograms: Sequence[ExponentHistogram],
        *,
        reason: str | None = None,
        history: ScalerHistory | None = None,
        real_runs: tuple[RealRun, ...] = (),
    ) -> SweepResult:
        record = run_record(self._plan.run, self._directory, (trace,))
        run = SweepRun(
            target=record.target,
            device=trace.device,
            torch_version=record.torch_version,
            nanprobe_version=record.nanprobe_version,
            seed=record.seed,
            directory=record.directory,
            steps=len({h.step for h in histograms}),
            measured_scale=histograms[0].loss_scale if histograms else None,
            notices=(*self._notices, *trace.notices),
        )
        result = analyse_sweep(
            run, histograms, number_format=self._plan.number_format, scaler=history, real_runs=real_runs
        )
        return result if reason is None else replace(result, reasons=(reason,))

    def _confirm(self, result: SweepResult) -> list[Confirmation]:
        """Real runs at both edges of the window: the low one, and the first scale above the high one."""
        window = result.window
        if window is None or window.lowest_scale is None or window.highest_scale is None:
            return []
        rows = {row.scale: row for row in result.scales}
        edges = [(LOW_EDGE, window.lowest_scale), (HIGH_EDGE, window.highest_scale)]
        return [Confirmation(edge, rows[scale], self._run_at(scale, 0)) for edge, scale in edges]

    def _run_at(self, scale: float, sampled_elements: int) -> RealRun:
        plan = replace(self._plan.run, init_scale=scale, growth_interval=_NEVER)
        label = f"scale-{scale:g}"
        trace = self._stages.run_apart(
            StageName.AMP,
            label,
            plan,
            deep_ends=bool(sampled_elements),
            hold_scale=True,
            sampled_elements=sampled_elements,
        )
        flushed, lost = _lost_in(trace)
        path = Path(self._directory, "stages", label, "trace.jsonl")
        return RealRun(
            scale=scale,
            steps=len(trace.steps),
            overflowing_tensors=_overflowing(trace, scale),
            skipped_steps=sum(step.skipped for step in trace.steps),
            flushed_fraction=flushed,
            lost_norm_fraction=lost,
            updates=_read_updates(path) if sampled_elements else (),
            reason=None if trace.outcome is Outcome.COMPLETED else trace.reason,
        )


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


def _history(trace: StageTrace) -> ScalerHistory | None:
    """What the script's own scaler did, or the one put around it."""
    if not any(step.loss_scale for step in trace.steps):
        return None
    call = next((c for c in trace.calls if c.name == "scaler.init" and c.details.get("enabled")), None)
    own = trace.facts.get("scaler") == "script"
    return ScalerHistory(
        policy=_policy(call.details) if own and call is not None else PYTORCH,
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


def _lost_in(trace: StageTrace) -> tuple[float | None, float | None]:
    """Shares of elements and of norm that the parameters' gradients lost in the first deep step."""
    grads = trace.deep_steps[0].grads if trace.deep_steps else ()
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
