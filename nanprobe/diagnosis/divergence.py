"""Divergence, and numbers beyond FP32 whose reason is magnitude: followed back to the data or the trend."""

from __future__ import annotations

from dataclasses import dataclass

from nanprobe.diagnosis import data, graph
from nanprobe.diagnosis.compose import at_op, batch_rows, compose
from nanprobe.diagnosis.graph_table import is_exponential
from nanprobe.diagnosis.origins import Origin, origin_op
from nanprobe.diagnosis.scene import Scene, base_severity
from nanprobe.diagnosis.trail import Trail, base_name
from nanprobe.diagnosis.trends import OVERFLOWING_WEIGHT_RATIO, Trend, trend_before
from nanprobe.diagnosis.wording import figure, op_label, place_label
from nanprobe.diagnosis.wrong_values import SINGULAR_AT_ZERO
from nanprobe.findings import Finding
from nanprobe.records import ExternalRecord, OpRecord, Phase, StageTrace

# A loss that ends this many times above its start, still finite, has diverged: our choice, a thousand times DIVERGING.
FINITE_RATIO = 1e4
# And this many times its middle third: it is rising still.
STILL_RISING = 10.0


# An operation that makes its input this many times larger is itself the place where the size comes from: our choice.
GROWN_HERE = 1e8
# And only when its input was not yet far out itself; a square of 1e19 is as large as squares are. Our choice.
USUAL = 1e6


@dataclass(frozen=True, slots=True)
class Source:
    """Where a magnitude came from."""

    external: ExternalRecord | None
    op: OpRecord
    largest: float


def explain(scene: Scene, origin: Origin) -> Finding:
    """The finding for a result beyond FP32: absurd data, a run that diverges, or plain FP32 overflow."""
    op = origin_op(origin)
    source = follow_magnitude(scene.trail, op)
    trend = trend_before(scene.trace, scene.step, OVERFLOWING_WEIGHT_RATIO)
    if source.external is None and source.op is not op and _grows_out_of_little(scene.trail, source.op):
        return graph.explain(scene, Origin(origin.birth, op=source.op, path=origin.path, precise=True))
    if source.external is not None and not _grew_before(scene, trend):
        absurd = data.absurd_input(scene, source.external, source.largest, op)
        if absurd is not None:
            return absurd
    if trend.diverging:
        return diverging(scene, trend, op)
    return _beyond_fp32(scene, op, source)


def diverging(scene: Scene, trend: Trend, op: OpRecord | None) -> Finding:
    """The finding for numbers that grew from step to step (NP501)."""
    return _diverged(scene.trace, scene.step, trend, op)


def diverging_trend(trace: StageTrace, step: int, trend: Trend) -> Finding:
    """The same where no operation is known."""
    return _diverged(trace, step, trend, None)


def finite_divergence(trace: StageTrace) -> Finding | None:
    """A loss that rose by orders of magnitude and is still finite at the end of the stage; None for usual losses."""
    trend = trend_before(trace, None)
    loss, gradient = trend.named("loss"), trend.named("gradient")
    if loss is None or gradient is None or loss.ratio < FINITE_RATIO or gradient.ratio < FINITE_RATIO**0.5:
        return None
    # A loss that starts near 0 and ends small has not diverged, whatever the ratio; one that jumped once and stayed
    # there was given another weight.
    if loss.last < 1e3 or loss.last < STILL_RISING * loss.middle:
        return None
    return _diverged(trace, trace.steps[-1].index, trend, None)


# Hand numbers on as they are: what comes out is as large as the largest that went in.
_MOVERS = frozenset(
    {"stack", "cat", "clone", "copy", "to_copy", "index", "index_select", "slice", "view", "reshape", "gather"}
)


def follow_magnitude(trail: Trail, op: OpRecord) -> Source:
    """From a result that is too large back through the largest inputs, to a tensor from outside or where it grew."""
    current, largest = op, 0.0
    for _ in range(len(trail.ops)):
        sizes = [(trail.value(current, r).abs_max, -k, r) for k, r in enumerate(current.inputs)]
        if not sizes:
            break
        largest, _, record = max(sizes, key=lambda s: s[:2])
        if base_name(current.op) in _MOVERS:
            # Rows of one storage are one external, measured at the first of them.
            largest = max(largest, *(s.abs_max for s in current.outputs))
        external = trail.external(record)
        writers = trail.writers(current, record)
        if external is not None and not writers:
            return Source(external, current, largest)
        if not writers:
            break
        current = max(writers, key=lambda w: (_peak(w), w.index))
        if _grows_out_of_little(trail, current):
            break
    return Source(None, current, max(largest, _peak(current)))


def _peak(op: OpRecord) -> float:
    return max((s.abs_max for s in op.outputs), default=0.0)


def _grows_out_of_little(trail: Trail, op: OpRecord) -> bool:
    """Whether the operation itself makes a huge number of a usual one: exp, or a division by next to nothing."""
    largest = max((trail.value(op, r).abs_max for r in op.inputs), default=0.0)
    grows = is_exponential(op) or base_name(op.op) in SINGULAR_AT_ZERO
    return grows and largest <= USUAL and _peak(op) > GROWN_HERE * max(largest, 1.0)


def _grew_before(scene: Scene, trend: Trend) -> bool:
    """Whether the growth began before this step; a single absurd batch makes loss and gradient jump in one."""
    leader = trend.leader
    return leader is not None and leader.step is not None and leader.step < scene.step


def _diverged(trace: StageTrace, step: int, trend: Trend, op: OpRecord | None) -> Finding:
    leader = trend.leader
    assert leader is not None
    record = next((s for s in trace.steps if s.index == step), trace.steps[-1])
    rates = record.learning_rates
    learning_rate = " / ".join(figure(rate) for rate in dict.fromkeys(rates)) or "unknown"
    gradient = trend.named("gradient")
    grown = ", ".join(f"{g.name} from {figure(g.start)} to {figure(g.last)}" for g in trend.growths)
    end = f" Then {op_label(op)} at {place_label(op)} leaves FP32." if op is not None else ""
    return compose(
        trace,
        "NP501",
        severity=base_severity(trace),
        step=step,
        phase=op.phase if op is not None else Phase.UPDATE,
        op=op.op if op is not None else None,
        module=op.module if op is not None else None,
        source=(op.source if op is not None else None) or record.source,
        slots={
            "trend": f"{leader.name} went from {figure(leader.start)} to {figure(leader.last)} by step {step}",
            "learning_rate": learning_rate,
            "first_grad": figure(gradient.start if gradient else None),
            "last_grad": figure(gradient.last if gradient else None),
        },
        evidence={
            "learning_rate": rates[0] if rates else None,
            "optimizer": record.optimizer,
            "grew_first": leader.name,
            **{f"{g.name}_start": g.start for g in trend.growths},
            **{f"{g.name}_last": g.last for g in trend.growths},
        },
        why=f"Before step {step}: {grown}. First to grow, past {figure(leader.threshold)} times the typical value of "
        f"the first steps ({figure(leader.first)}): {leader.name}, {_when(leader.step, trace)}. No single operation is "
        f"at fault.{end} Consistent with updates that are too large (learning rate {learning_rate}, "
        f"{record.optimizer or 'optimizer unknown'}).",
    )


def _when(step: int | None, trace: StageTrace) -> str:
    first = trace.steps[0].index
    return f"at step {step}" if step is not None and step >= first else "in the first step"


def _beyond_fp32(scene: Scene, op: OpRecord, source: Source) -> Finding:
    came_from = place_label(source.op)
    if source.external is not None:
        came_from = f"{source.external.kind.value.replace('_', ' ')} {source.external.name or ''}".strip()
    return at_op(
        scene,
        op,
        "NP108",
        batch=batch_rows(scene, op),
        slots={
            "where": place_label(op),
            "value": "Inf",
            "largest": f"{figure(source.largest)} ({came_from})",
        },
        evidence={"largest_input": source.largest, "largest_input_from": came_from},
        why=f"{op_label(op)} is the first result that is not finite, and finite in the FP64 re-check. The largest "
        "number "
        f"behind it is {figure(source.largest)}, from {came_from}. The steps before show no growth, so this is no "
        "divergence that could be seen coming.",
    )
