"""Misuse: what the script does with AMP, the loss or the optimizer that cannot work whatever the numbers are."""

from __future__ import annotations

import math
from collections.abc import Callable

from nanprobe.diagnosis import call_order
from nanprobe.diagnosis.compose import compose
from nanprobe.diagnosis.scaling import MAX_SKIPPED_FRACTION, scale_habit
from nanprobe.diagnosis.scene import Scene, base_severity
from nanprobe.diagnosis.symptoms import graph_is_cut
from nanprobe.diagnosis.wording import figure, percent
from nanprobe.findings import Finding, Severity
from nanprobe.records import CallRecord, ErrorRecord, Phase, StageName, StageTrace


def findings(trace: StageTrace) -> list[Finding]:
    """Every misuse that the stage shows; empty for a sound script."""
    rules: tuple[Callable[[StageTrace], Finding | None], ...] = (
        cut_off_loss,
        nonfinite_rate,
        refused_by_pytorch,
        no_scaler,
        scaler_with_bf16,
        low_precision_weights,
        many_skipped,
    )
    found = [rule(trace) for rule in rules]
    return [f for f in found if f is not None] + call_order.findings(trace)


def cut_off_loss(trace: StageTrace) -> Finding | None:
    """NP607: backward ran and no parameter ever got a gradient."""
    if not graph_is_cut(trace):
        return None
    wanting = [p.name for p in trace.parameters if p.requires_grad]
    call = next((c for c in trace.calls if c.name == "backward"), None)
    first = trace.steps[0]
    slots = {"parameters": f"{len(wanting)} parameters", "steps": len(trace.steps)}
    return compose(
        trace,
        "NP607",
        severity=base_severity(trace),
        slots=slots,
        step=first.index,
        phase=Phase.BACKWARD,
        source=call.source if call else first.source,
        evidence={"parameters": len(wanting), "steps": len(trace.steps)},
        parameters=tuple(wanting),
        why=f"backward ran {sum(s.backward_passes for s in trace.steps)} times in {len(trace.steps)} steps, and "
        "none of the "
        f"{len(wanting)} parameters that ask for a gradient received one.",
    )


def nonfinite_rate(trace: StageTrace) -> Finding | None:
    """NP608: a learning rate that is NaN or Inf."""
    for step in trace.steps:
        bad = [rate for rate in step.learning_rates if not math.isfinite(rate)]
        if bad:
            slots = {"optimizer": step.optimizer or "the optimizer", "value": figure(bad[0]), "step": step.index}
            after = f" {len(step.nonfinite_weights)} weights are not finite after it." if step.nonfinite_weights else ""
            return compose(
                trace,
                "NP608",
                severity=base_severity(trace),
                slots=slots,
                step=step.index,
                phase=Phase.UPDATE,
                source=step.source,
                evidence={"learning_rate": bad[0], "optimizer": step.optimizer},
                parameters=step.nonfinite_weights,
                why=f"{slots['optimizer']} was to step with a learning rate of {figure(bad[0])} at step "
                f"{step.index}, while "
                f"the loss was {figure(step.loss)}.{after}",
            )
    return None


def refused_by_pytorch(trace: StageTrace) -> Finding | None:
    """NP605, NP607, NP609, NP610, NP617, NP109, NP302: PyTorch stopped the script with an error that names the misuse."""
    error = trace.error
    if error is None:
        return None
    for signs, explain in _REFUSALS:
        if all(sign in error.message for sign in signs):
            return explain(trace, error)
    return None


def no_scaler(trace: StageTrace) -> Finding | None:
    """NP611: FP16 autocast of the script's own, and no loss scale of any kind."""
    asked = trace.facts.get("autocast_dtype")
    if trace.name is not StageName.AMP or not trace.as_written or asked != "float16":
        return None
    if trace.facts.get("scaler_enabled") or any(Scene(trace, d).loss_scale > 1.0 for d in trace.deep_steps):
        return None
    flushed = max((g.flushed_fraction for d in trace.deep_steps for g in d.grads), default=None)
    first = next((c for c in trace.calls if c.name == "backward"), None)
    lost = (
        f" In the steps that were looked at, up to {percent(flushed)} of a gradient's elements became 0."
        if flushed
        else ""
    )
    return compose(
        trace,
        "NP611",
        severity=Severity.WARNING,
        slots={},
        step=first.step if first else None,
        phase=Phase.CALLS,
        source=first.source if first else None,
        evidence={"flushed_fraction": flushed},
        why=f"The script runs under FP16 autocast and never scales its loss.{lost}",
    )


def scaler_with_bf16(trace: StageTrace) -> Finding | None:
    """NP612: a GradScaler that is on while autocast computes in bfloat16."""
    if trace.facts.get("autocast_dtype") != "bfloat16" or not trace.facts.get("scaler_enabled"):
        return None
    call = next((c for c in trace.calls if c.name in ("scaler.init", "scaler.scale")), None)
    return compose(
        trace,
        "NP612",
        severity=Severity.WARNING,
        slots={},
        step=call.step if call else None,
        phase=Phase.CALLS,
        source=call.source if call else None,
        evidence={"autocast_dtype": "bfloat16"},
        why="Autocast was asked for bfloat16, and GradScaler is enabled: bfloat16 overflows where FP32 does.",
    )


def low_precision_weights(trace: StageTrace) -> Finding | None:
    """NP610: an optimizer that owns FP16 or bf16 weights."""
    dtype = trace.facts.get("low_weights")
    if not trace.as_written or not isinstance(dtype, str) or trace.facts.get("masters") or trace.name is StageName.FP32:
        return None
    if not any(p.optimizer and p.dtype == dtype for p in trace.parameters):
        return None
    source = trace.steps[0].source if trace.steps else None
    owned = sum(1 for p in trace.parameters if p.optimizer and p.dtype == dtype)
    return compose(
        trace,
        "NP610",
        severity=Severity.WARNING,
        slots={"dtype": dtype},
        step=trace.steps[0].index if trace.steps else None,
        phase=Phase.CALLS,
        source=source,
        evidence={"parameters": owned, "dtype": dtype},
        why=f"{owned} parameters that the optimizer owns are {dtype}, and no FP32 copy of them was seen.",
    )


def many_skipped(trace: StageTrace) -> Finding | None:
    """NP614: the share of skipped steps after the warm-up."""
    habit = scale_habit(trace)
    if not habit.repeated or not trace.as_written:
        return None
    share = len(habit.late) / max(1, habit.after_warm_up)
    if share <= MAX_SKIPPED_FRACTION:
        return None
    return compose(
        trace,
        "NP614",
        severity=Severity.WARNING,
        slots={"share": percent(share)},
        step=habit.late[0],
        phase=Phase.CALLS,
        evidence=habit.evidence(),
        why=habit.sentence(),
    )


def _bce(trace: StageTrace, error: ErrorRecord) -> Finding:
    # Put around by nanprobe, autocast is no decision of the script's: it may live without.
    severity = base_severity(trace) if trace.as_written else Severity.WARNING
    return _refusal(trace, error, "NP609", {}, severity)


def _half_with_scaler(trace: StageTrace, error: ErrorRecord) -> Finding:
    dtype = next((p.dtype for p in trace.parameters if p.dtype in ("float16", "bfloat16")), "float16")
    return _refusal(trace, error, "NP610", {"dtype": dtype})


def _unscaled_twice(trace: StageTrace, error: ErrorRecord) -> Finding:
    """Left early (NP617) when gradients were cleared in between, else once for each micro-batch (NP605)."""
    pair = _last_two_unscales(trace)
    between = trace.calls[pair[0] + 1 : pair[1]] if pair else ()
    cleared = any(c.name in ("optimizer.zero_grad", "module.zero_grad") for c in between)
    complete = any(c.name == "scaler.update" for c in trace.calls[: pair[0]]) if pair else False
    first: CallRecord | None = trace.calls[pair[0]] if pair else None
    code = "NP617" if cleared or complete else "NP605"
    found = _refusal(trace, error, code, {})
    if first is None or first.source is None:
        return found
    return compose(
        trace,
        code,
        severity=found.severity,
        slots={},
        step=first.step,
        phase=Phase.CALLS,
        source=first.source,
        evidence=found.evidence,
        why=found.why,
    )


def _last_two_unscales(trace: StageTrace) -> tuple[int, int] | None:
    positions = [k for k, c in enumerate(trace.calls) if c.name == "scaler.unscale_"]
    return (positions[-2], positions[-1]) if len(positions) >= 2 else None


def _constant_too_large(trace: StageTrace, error: ErrorRecord) -> Finding:
    return _refusal(trace, error, "NP109", {"dtype": trace.dtype, "message": error.message.strip()[:80]})


def _out_of_range(trace: StageTrace, error: ErrorRecord) -> Finding:
    message = error.message.strip().splitlines()[0][:120]
    slots: dict[str, object] = {
        "what": message,
        "range": "[0, number of classes)",
        "hint": "count the classes, or pass ignore_index for the marker",
    }
    return _refusal(trace, error, "NP302", slots)


def _without_gradients(trace: StageTrace, error: ErrorRecord) -> Finding:
    wanting = tuple(p.name for p in trace.parameters if p.requires_grad)
    return _refusal(trace, error, "NP607", {"parameters": f"{len(wanting)} parameters", "steps": len(trace.steps) + 1})


def _refusal(
    trace: StageTrace, error: ErrorRecord, code: str, slots: dict[str, object], severity: Severity | None = None
) -> Finding:
    return compose(
        trace,
        code,
        severity=severity or base_severity(trace),
        slots=slots,
        step=error.step,
        phase=Phase.CALLS,
        source=error.source,
        evidence={"exception": error.kind, "message": error.message[:200]},
        why=f"PyTorch stopped the script: {error.kind}: {error.message.strip()[:200]}",
    )


def _updated_without_step(trace: StageTrace, error: ErrorRecord) -> Finding:
    steps = sum(c.name == "scaler.step" for c in trace.calls)
    updates = 1 + sum(c.name == "scaler.update" for c in trace.calls)
    return _refusal(
        trace, error, "NP604", {"call": "scaler.update()", "calls": updates, "rounds": f"{steps} optimizer steps"}
    )


# Fragments of PyTorch's messages. Source: torch/amp/grad_scaler.py, aten/src/ATen/autocast_mode.cpp,
# c10/util/TypeCast.h; the same text from 1.10 to 2.13.
_REFUSALS: tuple[tuple[tuple[str, ...], Callable[[StageTrace, ErrorRecord], Finding]], ...] = (
    (("binary_cross_entropy", "autocast"), _bce),
    (("Attempting to unscale FP16 gradients",), _half_with_scaler),
    (("unscale_() has already been called",), _unscaled_twice),
    (("No inf checks were recorded prior to update",), _updated_without_step),
    (("No inf checks were recorded for this optimizer",), _without_gradients),
    (("does not require grad and does not have a grad_fn",), _without_gradients),
    (("Target", "is out of bounds"), _out_of_range),
    (("index out of range in self",), _out_of_range),
    (("device-side assert triggered",), _out_of_range),
    (("cannot be converted to type", "Half without overflow"), _constant_too_large),
)
