"""Data: what was not finite, or absurd, before any operation could be blamed."""

from __future__ import annotations

from nanprobe.diagnosis import labels, memory
from nanprobe.diagnosis.batches import (
    items_of,
    label_of,
    nonfinite_holder,
    picked,
    place_in_gathering,
    place_in_loading,
    place_of,
    typical_abs_max,
)
from nanprobe.diagnosis.compose import at_op, batch_rows, compose
from nanprobe.diagnosis.graph_table import ALLOCATORS, LOADERS
from nanprobe.diagnosis.origins import Birth, Origin, origin_op
from nanprobe.diagnosis.scene import Scene, base_severity
from nanprobe.diagnosis.trail import base_name
from nanprobe.diagnosis.wording import figure, line_of, op_label
from nanprobe.findings import BatchPlace, Finding
from nanprobe.records import ExternalKind, ExternalRecord, OpRecord, Phase, StageTrace

# A number this large is none that a sensor, an image or a sound delivers: our choice.
ABSURD = 1e15
# So many times the other batches' largest value: our choice, far beyond any outlier worth training on.
ABSURD_RATIO = 1e8

_POISONED = (
    ExternalKind.PARAMETER,
    ExternalKind.BUFFER,
    ExternalKind.OPTIMIZER_STATE,
    ExternalKind.GRADIENT,
)


def explain_external(scene: Scene, origin: Origin) -> Finding | None:
    """The finding for a tensor that came in non-finite; None when an earlier step made it so."""
    external = origin.external
    assert external is not None
    if external.kind not in _POISONED:
        return _nonfinite_input(scene, external, origin)
    first = scene.trace.steps[0].index if scene.trace.steps else 0
    return None if scene.step > first else memory.poisoned_at_start(scene, external, origin.reader)


def explain_op(scene: Scene, origin: Origin) -> Finding | None:
    """The finding for an operation that fails because of what it was given; None when it is none of those."""
    op = origin_op(origin)
    if origin.birth is Birth.NAN and op.deliberate:
        return written_on_purpose(scene, op)
    if base_name(op.op) in ALLOCATORS | LOADERS:
        return memory.never_filled(scene, origin)
    return labels.explain(scene, origin)


def absurd_input(scene: Scene, external: ExternalRecord, value: float, op: OpRecord) -> Finding | None:
    """The finding for a finite value far beyond reason (NP305); None when the value is a usual one.

    `value` is the largest magnitude that came from the external, `op` the operation that could not hold it.
    """
    if external.kind not in (ExternalKind.BATCH, ExternalKind.CONSTANT):
        return None
    typical = typical_abs_max(scene.trace, scene.step, value)
    if value < ABSURD and not (typical and value > ABSURD_RATIO * typical):
        return None
    compared = _compared(typical)
    place = place_of(scene.trace, scene.step, external, value)
    label = label_of(external, place)
    sane = figure(typical * 1e3 if typical else 1e6)
    return at_op(
        scene,
        op,
        "NP305",
        phase=Phase.DATA,
        batch=place or batch_rows(scene, op),
        slots={
            "where": label,
            "value": figure(value),
            "compared": compared,
            "items": items_of(place),
            "sane": sane,
        },
        evidence={"input_abs_max": value, "typical_abs_max": typical},
        why=f"{op_label(op)} at line {line_of(op.source)} is the first result beyond FP32; followed back by magnitude, "
        f"it comes from {label}, whose largest value is {figure(value)}, {compared}.",
    )


def absurd_batch(trace: StageTrace, found: Finding) -> Finding | None:
    """The finding (NP305) for a batch, handed out before `found` happened, with a number beyond reason in it.

    Such a number goes through a step or two as a finite one, and what it has made of the weights looks like divergence.
    """
    handed_out = [(b, f) for b in trace.batches if found.step is None or b.step <= found.step for f in b.fields]
    absurd = [(b, f) for b, f in handed_out if f.stats.abs_max >= ABSURD]
    if not absurd:
        return None
    batch, field = absurd[0]
    value = field.stats.abs_max
    place = BatchPlace(batch.index, field.rows, picked(field, batch.dataset_indices), field.columns)
    label = label_of(field, place)
    typical = typical_abs_max(trace, batch.step, value)
    compared = _compared(typical)
    return compose(
        trace,
        "NP305",
        severity=found.severity,
        step=batch.step,
        phase=Phase.DATA,
        source=found.source,
        batch=place,
        slots={
            "where": label,
            "value": figure(value),
            "compared": compared,
            "items": items_of(place),
            "sane": figure(typical * 1e3 if typical else 1e6),
        },
        evidence={"input_abs_max": value, "typical_abs_max": typical},
        why=f"{label} reaches {figure(value)}, {compared}, and step {found.step} fails after it: {found.title}.",
    )


def _compared(typical: float | None) -> str:
    return f"where other batches stay below {figure(typical)}" if typical else "far beyond any measured quantity"


def written_on_purpose(scene: Scene, op: OpRecord) -> Finding:
    """The finding for a NaN that the script itself wrote, as a mark for what is missing (NP301)."""
    count = sum(s.nan_count for s in op.outputs)
    return at_op(
        scene,
        op,
        "NP301",
        phase=Phase.DATA,
        batch=labels.batch_of_step(scene),
        slots={"what": f"{count} NaN", "where": f"what line {line_of(op.source)} writes", "items": "that line"},
        why=f"{op_label(op)} writes NaN as a constant, and it reaches the loss or its gradient: NaN × 0 is NaN, "
        "so masking the result does not take it out.",
    )


def _nonfinite_input(scene: Scene, external: ExternalRecord, origin: Origin) -> Finding:
    reader, place = origin.reader, place_of(scene.trace, scene.step, external)
    if reader is not None and (place is None or place.index is None):
        loaded = place_in_loading(scene.trace, scene.step, reader)
        place = loaded or place_in_gathering(scene.trail, (reader.index, *origin.path)) or place
    holder = nonfinite_holder(scene.trace, scene.step, external)
    stats, label = holder.stats, label_of(holder, place)
    counts = [f"{n} {kind}" for n, kind in ((stats.nan_count, "NaN"), (stats.inf_count, "Inf")) if n]
    what = " and ".join(counts) or "NaN or Inf"
    read = f" It is first read by {op_label(reader)} at line {line_of(reader.source)}." if reader else ""
    return compose(
        scene.trace,
        "NP301",
        severity=base_severity(scene.trace),
        step=scene.step,
        phase=Phase.DATA,
        op=reader.op if reader else None,
        module=reader.module if reader else None,
        source=(reader.source if reader else None) or external.source,
        batch=place,
        slots={"what": what, "where": label, "items": items_of(place)},
        evidence={
            "nan_count": stats.nan_count,
            "inf_count": stats.inf_count,
            "numel": stats.numel,
            "field": holder.name,
        },
        why=f"{label} holds {what} among {stats.numel} elements before any operation has touched it "
        f"({items_of(place)}).{read}",
    )
