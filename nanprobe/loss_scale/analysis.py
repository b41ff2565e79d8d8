"""Histograms in, the whole answer out: the one function that puts the parts of a sweep together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nanprobe.findings import Status
from nanprobe.formats import FloatFormat, format_named
from nanprobe.loss_scale.advice import advise, measure_pressure, show_format, show_power
from nanprobe.loss_scale.conflict import advise_in_conflict, find_conflict
from nanprobe.loss_scale.histograms import ExponentHistogram
from nanprobe.loss_scale.outcomes import predict_outcomes
from nanprobe.loss_scale.policies import NAMED_POLICIES, PYTORCH
from nanprobe.loss_scale.replay import (
    EXTENDED_STEPS,
    RESAMPLES,
    Path,
    PolicyOutcome,
    block_length,
    extend_path,
    judge_policy,
    make_path,
)
from nanprobe.loss_scale.result import Advice, Confirmation, RealRun, ScalerHistory, SweepResult, SweepRun
from nanprobe.loss_scale.spectra import layer_spectra
from nanprobe.loss_scale.window import Limits, Window, find_layer_windows, find_step_windows, find_window

GROWTH_INTERVALS = (500, 1000, 1500, 2000, 3000, 5000)
GHOST_STALL = 0.1  # skipped share of steps from which a training stalls unnoticed; as in the diagnosis of AMP misuse


def analyse_sweep(
    run: SweepRun,
    histograms: Sequence[ExponentHistogram],
    *,
    number_format: str = "float16",
    limits: Limits | None = None,
    scaler: ScalerHistory | None = None,
    confirmations: Sequence[Confirmation] = (),
    real_runs: Sequence[RealRun] = (),
    extended_steps: int = EXTENDED_STEPS,
    resamples: int = RESAMPLES,
) -> SweepResult:
    """The answer for the recorded histograms, seeded by the run's seed.

    Inconclusive when there is nothing to judge: no gradients, only zeros, or some that are not finite in FP32.
    Raises UsageError for an unknown number format.
    """
    fmt, limits = format_named(number_format), limits or Limits()
    empty = SweepResult(run, fmt.name, limits, Status.INCONCLUSIVE, (), None, scaler=scaler, real_runs=tuple(real_runs))
    if reason := explain_unusable(histograms, fmt):
        return replace(empty, reasons=(reason,))
    outcomes = predict_outcomes(histograms, fmt)
    window, layers = find_window(outcomes, fmt, limits), find_layer_windows(outcomes, fmt, limits)
    steps = find_step_windows(outcomes, fmt, limits)
    path = make_path(steps, fmt)
    extended = extend_path(path, extended_steps, resamples, run.seed)
    if conflict := find_conflict(window):
        advice = advise_in_conflict(window, conflict, layers, histograms, fmt, limits)
    else:
        pressure = measure_pressure(scaler.policy if scaler else PYTORCH, path, steps)
        advice = advise(window, pressure, fmt, len(steps))
    status, reasons = judge(window, fmt, scaler)
    return replace(
        empty,
        status=status,
        reasons=reasons,
        window=window,
        layers=layers,
        scales=outcomes.scale_rows(),
        step_highest_scales=tuple(step.window.highest_scale for step in steps),
        policies=_judge_policies(scaler, path, extended),
        growth_intervals=_judge_intervals(advice, path, extended),
        advice=advice,
        confirmations=tuple(confirmations),
        bootstrap={
            "steps": extended_steps,
            "resamples": resamples,
            "block_length": block_length(len(path)),
            "seed": run.seed,
        },
        spectra=layer_spectra(histograms),
    )


def explain_unusable(histograms: Sequence[ExponentHistogram], fmt: FloatFormat) -> str | None:
    """Why nothing can be said of these gradients, and what to do; None when something can."""
    if not histograms:
        return (
            f"no gradient was computed in {show_format(fmt)}, so no loss scale matters here; run the model's forward "
            "pass under torch.autocast, or let nanprobe diagnose look at the script as it is"
        )
    if broken := next((h for h in histograms if h.nonfinite), None):
        return (
            f"the gradient of {broken.name} is not finite in step {broken.step} before it is rounded, which no loss "
            "scale can mend; nanprobe diagnose finds the cause"
        )
    if not any(h.nonzero for h in histograms):
        return (
            "every recorded gradient is exactly zero: the loss does not reach the parameters; "
            "nanprobe diagnose shows where it is cut off"
        )
    return None


def judge(window: Window, fmt: FloatFormat, scaler: ScalerHistory | None) -> tuple[Status, tuple[str, ...]]:
    """Failing when no scale is safe, or when the script's scaler ends up where gradients are lost or steps skipped.

    A scale above the window that the scaler soon leaves is calibration, and healthy.
    """
    if conflict := find_conflict(window):
        return Status.FAILING, (f"no safe scale: {conflict.describe()}",)
    if scaler is None or not scaler.scales:
        return Status.HEALTHY, ()
    last, reasons = scaler.scales[-1], []
    if window.lowest_scale is not None and last < window.lowest_scale:
        needs = f"{show_power(window.lowest_scale)} is needed to keep the gradients in {show_format(fmt)}"
        reasons.append(f"the script's scale ends at {show_power(last)}, but {needs}")
    if 1 - scaler.effective_step_fraction > GHOST_STALL and not window.contains(last):
        skipped = f"{scaler.skipped_steps} of {len(scaler.skipped)} steps were skipped"
        reasons.append(f"{skipped}, and the scale is still outside the window, at {show_power(last)}")
    return (Status.FAILING if reasons else Status.HEALTHY), tuple(reasons)


def _judge_policies(scaler: ScalerHistory | None, path: Path, extended: Sequence[Path]) -> tuple[PolicyOutcome, ...]:
    """The script's own policy first, then the named ones."""
    own = (scaler.policy,) if scaler else ()
    return tuple(judge_policy(policy, path, extended) for policy in (*own, *NAMED_POLICIES))


def _judge_intervals(advice: Advice, path: Path, extended: Sequence[Path]) -> tuple[PolicyOutcome, ...]:
    """The advised settings with every growth interval of the table, and the advised one."""
    if advice.init_scale is None or advice.growth_interval is None:
        return ()
    base = replace(PYTORCH, name="advised", init_scale=advice.init_scale)
    intervals = sorted({*GROWTH_INTERVALS, advice.growth_interval})
    return tuple(judge_policy(replace(base, growth_interval=n), path, extended) for n in intervals)
