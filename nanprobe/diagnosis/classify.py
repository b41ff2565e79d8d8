"""From an origin to its kind: data, graph, precision, divergence, in the order the walk found them."""

from __future__ import annotations

from nanprobe.diagnosis import data, divergence, graph, overflow, preparation, underflow
from nanprobe.diagnosis.graph_table import edge_of, is_exponential
from nanprobe.diagnosis.origins import Birth, Origin, origin_op
from nanprobe.diagnosis.scene import Scene
from nanprobe.diagnosis.trail import base_name
from nanprobe.diagnosis.trends import trend_before
from nanprobe.findings import Finding
from nanprobe.records import OpRecord, Phase


def explain(scene: Scene, origin: Origin) -> Finding | None:
    """The finding for one origin; None when it is harmless, or the consequence of an earlier step."""
    if origin.op is None:
        return preparation.explain(scene, origin) or data.explain_external(scene, origin)
    if scene.trail.low_precision and (origin.precise or _left_alone(scene, origin)):
        return _precision(scene, origin)
    return data.explain_op(scene, origin) or _full_precision(scene, origin)


def _left_alone(scene: Scene, origin: Origin) -> bool:
    """Whether the re-check had already failed where the stage had not, and so says nothing of this Inf.

    An element that rounding put on one side of an edge is on the other side in the re-check, or on the edge itself.
    The format is then the likelier reason, unless the operation has an edge of its own.
    """
    op = origin_op(origin)
    if origin.birth is not Birth.INF or edge_of(scene.trail, origin) is not None:
        return False
    values = [scene.trail.value(op, record) for record in op.inputs]
    return not any(v.bad for v in values) and any(v.shadow_bad for v in values)


def _precision(scene: Scene, origin: Origin) -> Finding | None:
    op = origin_op(origin)
    if origin.birth is Birth.INF:
        return _absurd(scene, op) or overflow.explain(scene, origin)
    if origin.birth is Birth.NAN and base_name(op.op) in _SUMS:
        # Inf and -Inf may meet inside one matmul or sum: its partial results overflowed.
        return overflow.explain(scene, origin)
    return underflow.explain(scene, origin)


def _absurd(scene: Scene, op: OpRecord) -> Finding | None:
    """The finding for a number that no format of the stage could be blamed for: it came like that with the data."""
    if op.phase is not Phase.FORWARD:
        return None
    source = divergence.follow_magnitude(scene.trail, op)
    return None if source.external is None else data.absurd_input(scene, source.external, source.largest, op)


_SUMS = frozenset(
    {"mm", "bmm", "addmm", "baddbmm", "sum", "cumsum", "convolution", "linear", "matmul", "einsum", "mean"}
)


# FP64 takes the same numbers, and they are beyond what any layer gives: magnitude is the reason, whatever became of it
# (Inf - Inf within a product is NaN, and so is the variance of such numbers). Our choice.
HUGE = 1e15


def _is_huge(scene: Scene, op: OpRecord) -> bool:
    return any(scene.trail.value(op, record).abs_max >= HUGE for record in op.inputs)


def _full_precision(scene: Scene, origin: Origin) -> Finding:
    """Data has been ruled out: an edge of a domain, or magnitude."""
    op = origin_op(origin)
    if origin.precise and _is_huge(scene, op):
        return divergence.explain(scene, origin)
    if origin.masked or edge_of(scene.trail, origin) is not None:
        return graph.explain(scene, origin)
    grown = trend_before(scene.trace, scene.step)
    if is_exponential(op):
        # An exponential overflows early; only when the run grew for steps before is it the messenger.
        if grown.diverging and grown.leader is not None and (grown.leader.step or 0) < scene.step:
            return divergence.diverging(scene, grown, op)
        return graph.explain(scene, origin)
    if origin.birth is Birth.INF:
        return divergence.explain(scene, origin)
    return graph.explain(scene, origin)
