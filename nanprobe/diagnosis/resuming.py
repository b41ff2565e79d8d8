"""A run that goes on from a checkpoint with a loss scaler that starts afresh (NP620)."""

from __future__ import annotations

from nanprobe.diagnosis.call_rules import optimizer_of
from nanprobe.diagnosis.compose import compose
from nanprobe.diagnosis.wording import figure
from nanprobe.findings import Finding, Severity
from nanprobe.records import CallRecord, Phase, StageTrace


def scaler_not_restored(trace: StageTrace) -> Finding | None:
    """NP620: an optimizer's state was loaded, and the scaler that steps it afterwards is new and got none.

    Weights alone are loaded for fine-tuning, where a fresh scaler is right; one that was in use before the load goes
    on with the scale it had.
    """
    for position, call in enumerate(trace.calls):
        if call.name == "optimizer.load_state_dict" and call.details.get("stepped") is True:
            first = _first_use(trace, position, optimizer_of(call))
            if first is not None and _is_fresh(trace, first):
                return _not_restored(trace, position, trace.calls[first])
    return None


def _first_use(trace: StageTrace, load: int, optimizer: str) -> int | None:
    """The first scaled loss after a load, when a scaler steps the optimizer that was loaded."""
    after = range(load + 1, len(trace.calls))
    if not any(trace.calls[k].name == "scaler.step" and optimizer_of(trace.calls[k]) == optimizer for k in after):
        return None
    return next((k for k in after if trace.calls[k].name == "scaler.scale"), None)


def _is_fresh(trace: StageTrace, use: int) -> bool:
    """Whether the scaler of a call had neither scaled a loss nor been given a state before it."""
    scaler = trace.calls[use].details.get("scaler")
    before = [c.name for c in trace.calls[:use] if c.details.get("scaler") == scaler]
    return scaler is not None and "scaler.scale" not in before and "scaler.load_state_dict" not in before


def _not_restored(trace: StageTrace, position: int, use: CallRecord) -> Finding:
    load = trace.calls[position]
    later = [s for s in trace.steps if s.index >= use.step]
    skipped = sum(s.skipped for s in later)
    now = next((s.loss_scale for s in later if s.loss_scale is not None), None)
    saved = _saved_scale(trace, position)
    held = (
        f" The checkpoint holds a scaler state with a scale of {figure(saved)}, which nothing loads."
        if saved is not None
        else _scale_before(trace, use.step)
    )
    cost = f"{skipped} of the {len(later)} steps after it were skipped" if skipped else "no step was skipped for it"
    return compose(
        trace,
        "NP620",
        severity=Severity.WARNING if skipped else Severity.NOTE,
        slots={"optimizer": optimizer_of(load), "scale": figure(now)},
        step=use.step,
        phase=Phase.CALLS,
        source=load.source,
        evidence={"loss_scale": now, "saved_loss_scale": saved, "skipped_steps": skipped, "steps": len(later)},
        why=f"The state of {optimizer_of(load)} was loaded at step {load.step}, and the GradScaler that steps it "
        f"afterwards was made new and given no state: it starts at {figure(now)}.{held} So far {cost}.",
    )


def _saved_scale(trace: StageTrace, load: int) -> float | None:
    found = [c.details.get("scale") for c in trace.calls[:load] if c.name == "torch.load"]
    scales = [scale for scale in found if isinstance(scale, float)]
    return scales[-1] if scales else None


def _scale_before(trace: StageTrace, step: int) -> str:
    scales = [s.loss_scale for s in trace.steps if s.index < step and s.loss_scale is not None]
    return f" The scale had come to {figure(scales[-1])} before." if scales else ""
