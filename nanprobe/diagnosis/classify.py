"""From an origin to its kind: data, graph, precision, divergence, in the order the walk found them."""

from __future__ import annotations

from nanprobe.diagnosis import data, divergence, graph, overflow, preparation, underflow
from nanprobe.diagnosis.graph_table import edge_of, is_exponential
from nanprobe.diagnosis.origins import Birth, Origin, origin_op
from nanprobe.diagnosis.scene import Scene
from nanprobe.diagnosis.trail import base_name
from nanprobe.diagnosis.trends import trend_before
from nanprobe.findings import Finding


def explain(scene: Scene, origin: Origin) -> Finding | None:
    """The finding for one origin; None when it is harmless, or the consequence of an earlier step."""
    if origin.op is None:
        return preparation.explain(scene, origin) or data.explain_external(scene, origin)
    if origin.precise and scene.trail.low_precision:
        return _precision(scene, origin)
    return data.explain_op(scene, origin) or _full_precision(scene, origin)


def _precision(scene: Scene, origin: Origin) -> Finding | None:
    if origin.birth is Birth.INF:
        return overflow.explain(scene, origin)
    op = origin_op(origin)
    if origin.birth is Birth.NAN and base_name(op.op) in _SUMS:
        # Inf and -Inf may meet inside one matmul or sum: its partial results overflowed.
        return overflow.explain(scene, origin)
    return underflow.explain(scene, origin)


_SUMS = frozenset(
    {"mm", "bmm", "addmm", "baddbmm", "sum", "cumsum", "convolution", "linear", "matmul", "einsum", "mean"}
)


def _full_precision(scene: Scene, origin: Origin) -> Finding:
    """Data has been ruled out: an edge of a domain, or magnitude."""
    op = origin_op(origin)
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
