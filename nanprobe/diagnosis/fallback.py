"""What can still be said when no deep step leads to an origin: the evidence of each parameter, and no more."""

from __future__ import annotations

from nanprobe.diagnosis.compose import compose
from nanprobe.diagnosis.divergence import diverging_trend
from nanprobe.diagnosis.scaling import scale_habit
from nanprobe.diagnosis.scene import base_severity
from nanprobe.diagnosis.symptoms import Sign, Symptom, symptoms
from nanprobe.diagnosis.trends import trend_before
from nanprobe.diagnosis.wording import figure
from nanprobe.findings import Finding
from nanprobe.formats import format_named
from nanprobe.records import Phase, StageName, StageTrace

_VISIBLE = (Symptom.LOSS, Symptom.GRADIENT, Symptom.WEIGHT, Symptom.BUFFER)


def unexplained(trace: StageTrace) -> list[Finding]:
    """One finding for the first symptom that nothing explains; none when there is no such symptom."""
    signs = [s for s in symptoms(trace) if s.symptom in _VISIBLE and not s.skipped]
    # A gradient alone is no fault when every weight stays finite: the script has its own way to leave such a step out.
    if not any(s.symptom is not Symptom.GRADIENT for s in signs):
        return []
    first = signs[0]
    trend = trend_before(trace, first.step)
    if trend.diverging:
        return [diverging_trend(trace, first.step, trend)]
    return [_where_first_seen(trace, first)]


def _where_first_seen(trace: StageTrace, sign: Sign) -> Finding:
    record = next((s for s in trace.steps if s.index == sign.step), None)  # none when the script gave the step up
    name = sign.names[0] if sign.names else None
    where = name or f"the {sign.symptom.value}"
    what = f"the {sign.symptom.value} is first not finite at step {sign.step}"
    if len(sign.names) > 1:
        what += f", in {len(sign.names)} tensors"
    truncated = [d.truncated for d in trace.deep_steps if d.truncated]
    why = f"{what[0].upper()}{what[1:]}; could not tell which operation began it"
    why += f" ({truncated[0]})." if truncated else ": no step was recorded operation by operation that leads there."
    fmt = format_named(trace.dtype)
    code = "NP400" if trace.name is StageName.FP32 else "NP102"
    slots = {
        "where": where,
        "domain": what,
        "op": "the operations",
        "value": "not finite",
        "dtype": fmt.name,
        "limit": figure(fmt.max),
        "times": "many",
    }
    return compose(
        trace,
        code,
        severity=base_severity(trace),
        slots=slots,
        step=sign.step,
        phase=Phase.UPDATE if sign.symptom in (Symptom.WEIGHT, Symptom.BUFFER) else Phase.BACKWARD,
        parameter=name,
        source=record.source if record is not None else None,
        evidence={"first_seen_in": sign.symptom.value, **scale_habit(trace).evidence()},
        why=why,
        parameters=sign.names,
    )
