"""What the rules about calls share: a finding at a call, and whose call it was."""

from __future__ import annotations

from nanprobe.diagnosis.compose import compose
from nanprobe.diagnosis.scene import base_severity
from nanprobe.findings import Finding
from nanprobe.records import CallRecord, Phase, StageTrace

CLEARS = ("optimizer.zero_grad", "module.zero_grad")


def at_call(
    trace: StageTrace, call: CallRecord, code: str, slots: dict[str, object], why: str, evidence: dict[str, object]
) -> Finding:
    """A finding at the line of a call."""
    return compose(
        trace,
        code,
        severity=base_severity(trace),
        slots=slots,
        step=call.step,
        phase=Phase.CALLS,
        source=call.source,
        evidence=evidence,
        why=why,
    )


def optimizer_of(call: CallRecord) -> str:
    """The optimizer a call names."""
    return str(call.details.get("optimizer"))
