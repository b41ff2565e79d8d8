"""Single links of a chain: an operation, a tensor from outside, a symptom."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from nanprobe.diagnosis.scene import Scene
from nanprobe.diagnosis.state import buffer_writers
from nanprobe.diagnosis.trail import Trail, flushed_fraction, shadow_bad_count
from nanprobe.findings import ChainLink, ChainValue
from nanprobe.records import ExternalKind, ExternalRecord, GradRecord, OpRecord, Phase, TensorStats, UpdateRecord


@dataclass(frozen=True, slots=True)
class Symptom:
    """A tensor in which a fault shows."""

    rank: int  # 0 for what people look at first
    writer: int  # index of an operation that wrote it
    link: ChainLink


def op_link(trail: Trail, op: OpRecord) -> ChainLink:
    """An operation with the input that carried the fault and the output that shows it."""
    after = max(op.outputs, key=_badness, default=None)
    return ChainLink(
        op=op.op,
        tensor=None,
        module=op.module,
        source=op.source,
        phase=op.phase,
        before=_read(trail, op),
        after=None if after is None else _value(after),
    )


def external_link(external: ExternalRecord) -> ChainLink:
    """A tensor that no operation wrote."""
    kind = "batch" if external.kind is ExternalKind.BATCH else external.kind.value.replace("_", " ")
    return ChainLink(
        op=None,
        tensor=f"{kind} {external.name}" if external.name else kind,
        module=None,
        source=external.source,
        phase=Phase.DATA if external.kind is ExternalKind.BATCH else None,
        before=None,
        after=_value(external.stats),
    )


def symptoms_of(scene: Scene, preferred: Collection[str]) -> tuple[Symptom, ...]:
    """What is faulty at the end of this step; the gradients and weights named in `preferred` before others."""
    deep, ops = scene.deep, scene.trail.ops
    found = [Symptom(0, w, _loss_link(ops[w])) for w in deep.loss_writers if w in ops]
    for grad in deep.grads:
        if grad.stats.nan_count or grad.stats.inf_count or grad.lost_norm_fraction:
            rank = 1 if grad.name in preferred else 2
            found += [Symptom(rank, w, _gradient_link(grad)) for w in grad.writers]
    for update in deep.updates:
        if update.nan_count or update.inf_count:
            rank = 3 if update.name in preferred else 4
            found += [Symptom(rank, w, _weight_link(update)) for w in update.writers]
    found += [Symptom(5, w, _tensor_link("buffer", None, None)) for w in buffer_writers(scene)]
    return tuple(found)


def _loss_link(op: OpRecord) -> ChainLink:
    return _tensor_link("loss", Phase.FORWARD, _value(op.outputs[0]) if op.outputs else None)


def _gradient_link(grad: GradRecord) -> ChainLink:
    return _tensor_link(f"gradient of {grad.name}", Phase.BACKWARD, _value(grad.stats))


def _weight_link(update: UpdateRecord) -> ChainLink:
    return _tensor_link(f"weight {update.name}", Phase.UPDATE, None)


def _tensor_link(tensor: str, phase: Phase | None, after: ChainValue | None) -> ChainLink:
    return ChainLink(op=None, tensor=tensor, module=None, source=None, phase=phase, before=None, after=after)


def _badness(stats: TensorStats) -> tuple[float, ...]:
    return (stats.nan_count, stats.inf_count, flushed_fraction(stats), stats.abs_max)


def _value(stats: TensorStats) -> ChainValue:
    return ChainValue(
        dtype=stats.dtype,
        numel=stats.numel,
        nan_count=stats.nan_count,
        inf_count=stats.inf_count,
        abs_max=stats.abs_max,
        recheck_nonfinite=shadow_bad_count(stats),
        recheck_abs_max=stats.shadow_abs_max,
        flushed_fraction=flushed_fraction(stats),
    )


def _read(trail: Trail, op: OpRecord) -> ChainValue | None:
    """The input with the most NaN, Inf or flushed elements; of sound ones the largest."""
    values = [(record, trail.value(op, record)) for record in op.inputs]
    if not values:
        return None
    # A few flushed elements are no news; in hundredths, the larger number goes first then.
    record, value = max(values, key=lambda rv: (rv[1].nan, rv[1].inf, round(rv[1].flushed_fraction, 2), rv[1].abs_max))
    numel = 1
    for size in record.shape:
        numel *= size
    return ChainValue(
        record.dtype,
        numel,
        value.nan,
        value.inf,
        value.abs_max,
        value.shadow_bad,
        value.shadow_abs_max,
        value.flushed_fraction,
    )
