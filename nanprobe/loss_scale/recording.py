"""What a sweep's runs left, and the answer that follows from it. Pure: the same for a sweep that has just ended and
for one that is read back from its directory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
from nanprobe.plan import ScalerSettings, SweepPlan
from nanprobe.records import Outcome, RunRecord, StageName, StageTrace

FP32_LABEL, SWEEP_LABEL = "fp32", "sweep"  # what the first two runs are called
_KILLED = "the sweep was stopped before it was done (killed, or still going on); what came before it is shown"


@dataclass(frozen=True, slots=True)
class SweepRecording:
    """Everything that was measured. A run that has not begun, or was cut short, is None or left out."""

    plan: SweepPlan
    head: RunRecord  # target, device, versions, seed, directory; its stages do not count
    fp32: StageTrace | None = None
    recorded: StageTrace | None = None  # the run that every scale is read off
    histograms: tuple[ExponentHistogram, ...] = ()
    real_runs: tuple[RealRun, ...] = ()
    interrupted_in: str | None = None  # label of the run that Ctrl-C ended
    killed: bool = False

    @property
    def trace(self) -> StageTrace | None:
        """The recorded run, or the fp32 stage while there is none."""
        return self.recorded or self.fp32

    @property
    def parameters(self) -> frozenset[str]:
        """Parameters whose gradients have a histogram."""
        return frozenset(h.name for h in self.histograms if h.kind == PARAMETER)


def answer_sweep(recording: SweepRecording) -> SweepResult:
    """The answer from all that was run so far; inconclusive, with the reason, when that is not enough."""
    plan, trace = recording.plan, recording.trace
    reason = explain_stop(recording)
    known = {real.scale: real for real in recording.real_runs}
    result = analyse_sweep(
        _describe_run(recording, reason),
        recording.histograms,
        number_format=plan.number_format,
        scaler=_history(trace, plan.run.scaler) if trace is not None and recording.histograms else None,
        real_runs=[known[scale] for scale in dict.fromkeys(plan.scales) if scale in known],
    )
    confirmations = [
        Confirmation(edge, row, known[row.scale]) for edge, row in edges(recording, result) if row.scale in known
    ]
    result = replace(result, confirmations=tuple(confirmations))
    return result if reason is None else replace(result, status=Status.INCONCLUSIVE, reasons=(reason,))


def explain_stop(recording: SweepRecording) -> str | None:
    """Why there is nothing to read off, or not all; None when the sweep went as it should."""
    if recording.interrupted_in is not None:
        return f"interrupted by Ctrl-C in the run {recording.interrupted_in}; what came before it is shown"
    if recording.killed:
        return _KILLED
    if recording.fp32 is not None and (reason := _explain_unfit(recording.fp32)):
        return reason
    if recording.recorded is not None and not recording.recorded.steps:
        return f"the script did not take one step under autocast: {recording.recorded.reason}"
    return None


def edges(recording: SweepRecording, result: SweepResult) -> list[tuple[str, ScaleRow]]:
    """The lowest safe scale and the highest, which are run for real; none where the format is not the script's."""
    window, trace = result.window, recording.trace
    if not recording.plan.confirm or window is None or trace is None:
        return []
    if window.lowest_scale is None or window.highest_scale is None or trace.dtype != result.number_format:
        return []
    rows = {row.scale: row for row in result.scales}
    comparable = {row.scale: row for row in _first_step_rows(recording)}
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


def make_real_run(
    scale: float, trace: StageTrace, parameters: frozenset[str], updates: tuple[WeightUpdate, ...]
) -> RealRun:
    """What a run with the loss scale held at one value came to; losses are those of the given parameters."""
    flushed, lost = _lost_in(trace, parameters)
    return RealRun(
        scale=scale,
        steps=len(trace.steps),
        overflowing_tensors=_overflowing(trace, scale),
        skipped_steps=sum(step.skipped for step in trace.steps),
        flushed_fraction=flushed,
        lost_norm_fraction=lost,
        updates=updates,
        reason=None if trace.outcome is Outcome.COMPLETED else trace.reason,
    )


def _describe_run(recording: SweepRecording, reason: str | None) -> SweepRun:
    head, histograms = recording.head, recording.histograms
    return SweepRun(
        target=head.target,
        device=head.device,
        torch_version=head.torch_version,
        nanprobe_version=head.nanprobe_version,
        seed=head.seed,
        directory=head.directory,
        steps=len({h.step for h in histograms}),
        measured_scale=histograms[0].loss_scale if histograms else None,
        notices=_list_notices(recording, reason),
    )


def _list_notices(recording: SweepRecording, reason: str | None) -> tuple[str, ...]:
    trace, plan = recording.trace, recording.plan
    if trace is None:
        return ()
    notes = [*recording.head.notices, *trace.notices]
    asked = format_named(plan.number_format)
    if reason is None and trace.outcome is not Outcome.COMPLETED:
        notes.append(f"the recorded run ended early, after step {len(trace.steps) - 1}: {trace.reason}")
    if trace.dtype == "bfloat16" != asked.name:
        notes.append(
            f"the script computes in bfloat16, which needs no loss scale; this is how the same gradients would "
            f"fare in {asked.name} (--number-format bf16 for its own)"
        )
    if plan.confirm and trace.name is StageName.AMP and asked.name != trace.dtype:
        notes.append(f"the edges are not confirmed by real runs: those would be in {trace.dtype}")
    return tuple(notes)


def _first_step_rows(recording: SweepRecording) -> tuple[ScaleRow, ...]:
    """Every scale's row over what a real run measures flushes of: the parameters' gradients in its first step."""
    parameters = [h for h in recording.histograms if h.kind == PARAMETER]
    first = [h for h in parameters if h.step == parameters[0].step]
    return predict_outcomes(first, format_named(recording.plan.number_format)).scale_rows()


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


def _lost_in(trace: StageTrace, names: frozenset[str]) -> tuple[float | None, float | None]:
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
