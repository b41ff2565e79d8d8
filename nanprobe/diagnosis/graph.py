"""Graph: an operation that has no finite value or derivative for what it was given, in any number format."""

from __future__ import annotations

from dataclasses import replace

from nanprobe.diagnosis.compose import at_op, batch_rows
from nanprobe.diagnosis.graph_faults import Fault, fault_of, in_backward
from nanprobe.diagnosis.graph_table import is_exponential
from nanprobe.diagnosis.origins import Birth, Origin, origin_op
from nanprobe.diagnosis.scene import Scene
from nanprobe.diagnosis.trail import base_name
from nanprobe.diagnosis.wording import figure, line_of, op_label, place_label
from nanprobe.findings import Finding, Remedy
from nanprobe.records import OpRecord


def explain(scene: Scene, origin: Origin) -> Finding:
    """The finding for an operation at the edge of its domain."""
    op = origin_op(origin)
    fault = fault_of(scene.trail, origin)
    finding = at_op(
        scene,
        op,
        fault.code,
        slots={"where": place_label(op), "domain": fault.phrase, "op": op_label(op)},
        batch=batch_rows(scene, op),
        evidence={"node": op.node} if op.node else {},
        why=_sentence(scene, origin, op, fault.phrase),
    )
    return with_fix(finding, fault)


def with_fix(finding: Finding, fault: Fault) -> Finding:
    """The finding with the function's own remedy in the place of its family's first one."""
    if fault.fix is None:
        return finding
    where = f"line {line_of(finding.source)}" if finding.source else "there"
    own = Remedy(f"{where[0].upper()}{where[1:]} ({fault.phrase}): {fault.fix}.")
    return replace(finding, remedies=(own, *finding.remedies[1:]))


def _sentence(scene: Scene, origin: Origin, op: OpRecord, phrase: str) -> str:
    made = f"{op_label(op)} makes the first {origin.birth.value.upper().replace('NAN', 'NaN').replace('INF', 'Inf')}"
    parts = [f"{made}: {phrase}."]
    if op.specimens and op.specimens[0].inputs:
        given = ", ".join(figure(real) for real, _ in op.specimens[0].inputs)
        parts.append(f"Element {list(op.specimens[0].position)} was made from {given}.")
    higher = "FP32" if scene.trail.low_precision else "FP64"
    if origin.precise and is_exponential(op):
        parts.append(f"FP32 ends at 3.4e38 and {higher} is still finite here, but not for inputs a little larger.")
    elif origin.precise:
        parts.append(f"{higher} stands at the same edge and only just stays finite: more digits do not cure it.")
    else:
        parts.append(f"The {higher} re-check fails in the same place: no number format cures it.")
    if origin.masked:
        parts.append("The Inf it was given was written on purpose (a mask).")
    if in_backward(op) and _zero_gradient(op, origin.birth):
        parts.append(
            "The gradient that arrives is 0, so the forward value was masked away; 0 × Inf is NaN all the same."
        )
    return " ".join(parts)


def _zero_gradient(op: OpRecord, birth: Birth) -> bool:
    """Whether a derivative was multiplied with, or divided into, a gradient of 0."""
    if birth is not Birth.NAN or base_name(op.op) not in {"mul", "div"}:
        return False
    values = [real for real, _ in op.specimens[0].inputs] if op.specimens else []
    return len(values) > 1 and values[0] == 0.0
