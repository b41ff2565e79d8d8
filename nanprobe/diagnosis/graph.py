"""Graph: an operation that has no finite value or derivative for what it was given, in any number format."""

from __future__ import annotations

from nanprobe.diagnosis.compose import at_op, batch_rows
from nanprobe.diagnosis.graph_table import Domain, domain_of, is_exponential, names
from nanprobe.diagnosis.origins import Origin, origin_op
from nanprobe.diagnosis.scene import Scene
from nanprobe.diagnosis.wording import figure, op_label, place_label
from nanprobe.findings import Finding
from nanprobe.records import OpRecord, Phase


def explain(scene: Scene, origin: Origin) -> Finding:
    """The finding for an operation at the edge of its domain."""
    op = origin_op(origin)
    domain = domain_of(scene.trail, origin)
    phrase = _phrase(domain, op)
    return at_op(
        scene,
        op,
        domain.code,
        slots={"where": place_label(op), "domain": phrase, "op": op_label(op)},
        batch=batch_rows(scene, op),
        evidence={"node": op.node} if op.node else {},
        why=_sentence(scene, origin, op, phrase),
    )


def _phrase(domain: Domain, op: OpRecord) -> str:
    template = domain.backward if _in_backward(op) else domain.forward
    return template.format(name=names(op)[0], value=_offending(op))


def _offending(op: OpRecord) -> str:
    """The input values of the first element that went wrong; the one nearest to 0 first."""
    if not op.specimens or not op.specimens[0].inputs:
        return "what it was given"
    values = [real for real, _ in op.specimens[0].inputs]
    return figure(values[-1] if names(op)[0] in {"div", "true_divide", "addcdiv"} else values[0])


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
    if _in_backward(op) and _zero_gradient(op):
        parts.append(
            "The gradient that arrives is 0, so the forward value was masked away; 0 × Inf is NaN all the same."
        )
    return " ".join(parts)


def _in_backward(op: OpRecord) -> bool:
    return op.phase is Phase.BACKWARD or (op.node is not None and op.node.rstrip("0123456789").endswith("Backward"))


def _zero_gradient(op: OpRecord) -> bool:
    return bool(op.specimens and op.specimens[0].inputs and op.specimens[0].inputs[0][0] == 0.0)
