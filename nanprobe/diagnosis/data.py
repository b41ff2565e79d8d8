"""Data: what was not finite, absurd or missing before any operation could be blamed."""

from __future__ import annotations

from collections.abc import Sequence

from nanprobe.diagnosis.batches import place_of, typical_abs_max
from nanprobe.diagnosis.compose import batch_rows, compose
from nanprobe.diagnosis.graph_table import AVERAGES, CTC, LOADERS, NLL, names
from nanprobe.diagnosis.origins import Origin, origin_op
from nanprobe.diagnosis.scene import Scene, base_severity
from nanprobe.diagnosis.trail import base_name
from nanprobe.diagnosis.wording import figure, op_evidence, op_label
from nanprobe.findings import BatchPlace, Finding, Severity
from nanprobe.records import ExternalKind, ExternalRecord, OpRecord, Phase, Source, StageTrace, TensorStats

# A number this large is none that a sensor, an image or a sound delivers: our choice.
ABSURD = 1e15
# So many times the other batches' largest value: our choice, far beyond any outlier worth training on.
ABSURD_RATIO = 1e8

_POISONED = (ExternalKind.PARAMETER, ExternalKind.BUFFER, ExternalKind.OPTIMIZER_STATE)


def explain_external(scene: Scene, origin: Origin) -> Finding | None:
    """The finding for a tensor that came in non-finite; None when an earlier step made it so."""
    external = origin.external
    assert external is not None
    if external.kind in _POISONED:
        if scene.step > _first_step(scene.trace):
            return None
        return _uninitialised(scene, external, origin.reader)
    return _nonfinite_input(scene, external, origin.reader)


def explain_op(scene: Scene, origin: Origin) -> Finding | None:
    """The finding for an operation that fails because of what the batch lacks; None when it is none of those."""
    op = origin_op(origin)
    known = set(names(op))
    if known & CTC:
        return _ctc(scene, op)
    empty = any(0 in record.shape for record in op.inputs)
    if origin.birth.value == "nan" and (known & NLL or (known & AVERAGES and empty)) and not origin.masked:
        return _nothing_left(scene, op, empty)
    return None


def absurd_input(scene: Scene, external: ExternalRecord, value: float, op: OpRecord) -> Finding | None:
    """The finding for a finite value far beyond reason (NP305); None when the value is a usual one.

    `value` is the largest magnitude that came from the external, `op` the operation that could not hold it.
    """
    if external.kind not in (ExternalKind.BATCH, ExternalKind.CONSTANT):
        return None
    typical = typical_abs_max(scene.trace, scene.step, value)
    if value < ABSURD and not (typical and value > ABSURD_RATIO * typical):
        return None
    compared = f"where other batches stay below {figure(typical)}" if typical else "far beyond any measured quantity"
    place = place_of(scene.trace, scene.step, external, value)
    label = _label(external, place)
    slots = {
        "where": label,
        "value": figure(value),
        "compared": compared,
        "items": _items(place),
        "sane": figure(typical * 1e3 if typical else 1e6),
    }
    why = (
        f"{op_label(op)} at line {_line(op.source)} is the first result beyond FP32; followed back by magnitude, "
        "it comes "
        f"from {label}, whose largest value is {figure(value)}, {compared}."
    )
    return compose(
        scene.trace,
        "NP305",
        severity=base_severity(scene.trace),
        slots=slots,
        step=scene.step,
        phase=Phase.DATA,
        op=op.op,
        module=op.module,
        source=op.source,
        batch=place or batch_rows(scene, op),
        evidence={**op_evidence(op), "input_abs_max": value, "typical_abs_max": typical},
        why=why,
    )


def written_on_purpose(scene: Scene, origin: Origin) -> Finding:
    """The finding for a NaN that the script itself wrote, as a mark for what is missing (NP301)."""
    op = origin_op(origin)
    count = sum(s.nan_count for s in op.outputs)
    slots = {"what": f"{count} NaN", "where": f"what line {_line(op.source)} writes", "items": "that line"}
    return compose(
        scene.trace,
        "NP301",
        severity=base_severity(scene.trace),
        slots=slots,
        step=scene.step,
        phase=Phase.DATA,
        op=op.op,
        module=op.module,
        source=op.source,
        batch=_any_batch(scene),
        evidence=op_evidence(op),
        why=f"{op_label(op)} writes NaN as a constant, and it reaches the loss or its gradient: NaN × 0 is NaN, so "
        "masking "
        "the result does not take it out.",
    )


def never_filled(scene: Scene, origin: Origin) -> Finding:
    """The finding for memory that was allocated and read without being written, or loaded like that (NP304, NP301)."""
    op = origin_op(origin)
    stats = op.outputs[0]
    bad = stats.nan_count + stats.inf_count
    name = _parameter_of(scene, origin)
    if base_name(op.op) in LOADERS and name is None:
        return _loaded(scene, op, stats)
    slots = {"where": name or f"the tensor of line {_line(op.source)}", "what": f"{bad} of {stats.numel} elements"}
    return compose(
        scene.trace,
        "NP304",
        severity=base_severity(scene.trace),
        slots=slots,
        step=scene.step,
        phase=Phase.DATA,
        op=op.op,
        module=op.module or ((name or "").rpartition(".")[0] or None),
        parameter=name,
        source=op.source,
        evidence={"nan_count": stats.nan_count, "inf_count": stats.inf_count, "numel": stats.numel},
        why=f"{op_label(op)} at line {_line(op.source)} brings in {stats.numel} elements, and nothing writes them "
        "before "
        f"they are read: {stats.nan_count} are NaN and {stats.inf_count} Inf.",
    )


def _loaded(scene: Scene, op: OpRecord, stats: TensorStats) -> Finding:
    slots = {
        "what": f"{stats.nan_count} NaN and {stats.inf_count} Inf",
        "where": f"what line {_line(op.source)} loads",
        "items": "that file",
    }
    return compose(
        scene.trace,
        "NP301",
        severity=base_severity(scene.trace),
        slots=slots,
        step=scene.step,
        phase=Phase.DATA,
        op=op.op,
        source=op.source,
        evidence={"nan_count": stats.nan_count, "inf_count": stats.inf_count, "numel": stats.numel},
        why=f"The numbers were not finite when line {_line(op.source)} brought them in; no operation had touched them.",
    )


def _parameter_of(scene: Scene, origin: Origin) -> str | None:
    """The parameter that memory became: the one of its shape that its line names, or the only one of its shape.

    Memory that was loaded has the shape it was given later: that of what was copied from it.
    """
    op = origin_op(origin)
    shapes = {op.outputs[0].shape}
    if base_name(op.op) in LOADERS:
        followers = [scene.trail.ops[i] for i in origin.path[1:3] if i in scene.trail.ops]
        shapes = {s.shape for f in followers if base_name(f.op) in {"copy", "clone", "to_copy"} for s in f.outputs}
    alike = [p.name for p in scene.trace.parameters if p.shape in shapes]
    code = op.source.code if op.source else ""
    named = [name for name in alike if name.rpartition(".")[2] in code]
    return named[0] if named else (alike[0] if len(alike) == 1 else None)


def labels_out_of_range(scene: Scene) -> Finding | None:
    """Targets of a binary cross-entropy that are no probabilities (NP302): its loss has no lower bound then."""
    for op in scene.deep.ops:
        if base_name(op.op) not in {"binary_cross_entropy_with_logits", "binary_cross_entropy"} or len(op.inputs) < 2:
            continue
        target = scene.trail.value(op, op.inputs[1])
        if op.phase is Phase.FORWARD and target.abs_max > 1.0 and not target.bad:
            return _not_probabilities(scene, op, target.abs_max)
    return None


def _not_probabilities(scene: Scene, op: OpRecord, largest: float) -> Finding:
    losses = [s.loss for s in scene.trace.steps if s.loss is not None]
    unbounded = any(loss < 0.0 for loss in losses)
    severity = base_severity(scene.trace) if unbounded else Severity.WARNING
    hint = "divide masks read from image files by 255" if largest == 255.0 else f"the largest is {figure(largest)}"
    slots = {
        "what": f"targets up to {figure(largest)} where probabilities are expected",
        "range": "[0, 1]",
        "hint": hint,
    }
    lowest = f" The loss fell to {figure(min(losses))}; a cross-entropy cannot be negative." if unbounded else ""
    external = scene.trail.external(op.inputs[1])
    return compose(
        scene.trace,
        "NP302",
        severity=severity,
        slots=slots,
        step=scene.step,
        phase=Phase.DATA,
        op=op.op,
        module=op.module,
        source=op.source,
        batch=place_of(scene.trace, scene.step, external) if external is not None else None,
        evidence={"target_abs_max": largest, "lowest_loss": min(losses) if losses else None},
        why=f"{op_label(op)} is defined for targets between 0 and 1; here they reach {figure(largest)}.{lowest}",
    )


def _uninitialised(scene: Scene, external: ExternalRecord, reader: OpRecord | None) -> Finding:
    stats = external.stats
    bad, name = stats.nan_count + stats.inf_count, _label(external, None)
    slots = {"where": name, "what": f"{bad} of {stats.numel} elements"}
    made = external.source or (reader.source if reader else None)
    why = (
        f"At step {scene.step} no operation has written {name} yet, and {stats.nan_count} of its elements are NaN, "
        f"{stats.inf_count} Inf: consistent with memory that was allocated and never filled, or a damaged checkpoint."
    )
    return compose(
        scene.trace,
        "NP304",
        severity=base_severity(scene.trace),
        slots=slots,
        step=scene.step,
        phase=Phase.DATA,
        op=reader.op if reader else None,
        module=(external.name or "").rpartition(".")[0] or None,
        parameter=external.name,
        source=made,
        evidence={"nan_count": stats.nan_count, "inf_count": stats.inf_count, "numel": stats.numel},
        why=why,
    )


def _nonfinite_input(scene: Scene, external: ExternalRecord, reader: OpRecord | None) -> Finding:
    stats, place = external.stats, place_of(scene.trace, scene.step, external)
    label = _label(external, place)
    what = " and ".join(f"{n} {kind}" for n, kind in ((stats.nan_count, "NaN"), (stats.inf_count, "Inf")) if n)
    slots = {"what": what, "where": label, "items": _items(place)}
    read = f" It is first read by {op_label(reader)} at line {_line(reader.source)}." if reader else ""
    why = (
        f"{label} holds {what} among {stats.numel} elements before any operation has touched it "
        f"({_items(place)}).{read}"
    )
    return compose(
        scene.trace,
        "NP301",
        severity=base_severity(scene.trace),
        slots=slots,
        step=scene.step,
        phase=Phase.DATA,
        op=reader.op if reader else None,
        module=reader.module if reader else None,
        source=(reader.source if reader else None) or external.source,
        batch=place,
        evidence={
            "nan_count": stats.nan_count,
            "inf_count": stats.inf_count,
            "numel": stats.numel,
            "field": external.name,
        },
        why=why,
    )


def _ctc(scene: Scene, op: OpRecord) -> Finding:
    rows = op.rows
    items = f"rows {_listed(rows)} of the batch" if rows else "the rows that are too short"
    what = f"{items}: the input is shorter than the target needs"
    return compose(
        scene.trace,
        "NP306",
        severity=base_severity(scene.trace),
        slots={"what": what, "items": items},
        step=scene.step,
        phase=op.phase,
        op=op.op,
        module=op.module,
        source=op.source,
        batch=batch_rows(scene, op) or (BatchPlace(rows=rows) if rows else None),
        evidence=op_evidence(op),
        why="The CTC loss is not finite although every log-probability is, in the re-check as well: no alignment "
        "exists.",
    )


def _nothing_left(scene: Scene, op: OpRecord, empty: bool) -> Finding:
    numel = max((_numel(r.shape) for r in op.inputs), default=0)
    what = "an empty selection" if empty else "every label is ignored"
    why = f"{op_label(op)} is NaN from finite inputs, in the re-check as well: the mean of no elements is 0/0. " + (
        "The tensor it averages has no elements." if empty else f"All labels of the batch ({numel} inputs) are ignored."
    )
    return compose(
        scene.trace,
        "NP303",
        severity=base_severity(scene.trace),
        slots={"what": what, "items": "these rows"},
        step=scene.step,
        phase=op.phase,
        op=op.op,
        module=op.module,
        source=op.source,
        batch=_any_batch(scene),
        evidence=op_evidence(op),
        why=why,
    )


def _first_step(trace: StageTrace) -> int:
    return trace.steps[0].index if trace.steps else 0


def _any_batch(scene: Scene) -> BatchPlace | None:
    external = next(
        (e for e in scene.deep.externals if e.kind is ExternalKind.BATCH and e.batch_index is not None), None
    )
    return None if external is None else BatchPlace(external.batch_index)


def _items(place: BatchPlace | None) -> str:
    if place is None:
        return "the tensor"
    if place.dataset_indices:
        return f"dataset items {_listed(place.dataset_indices)}"
    batch = f"batch {place.index}" if place.index is not None else "the batch"
    return f"rows {_listed(place.rows)} of {batch}" if place.rows else batch


def _label(external: ExternalRecord, place: BatchPlace | None) -> str:
    if external.kind is ExternalKind.BATCH:
        batch = f"batch {place.index}" if place is not None and place.index is not None else "the batch"
        return f"{external.name} of {batch}" if external.name and external.name != "batch" else batch
    return external.name or "a tensor made outside the step"


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(n) for n in numbers[:6])
    return f"{shown}, ..." if len(numbers) > 6 else shown


def _line(source: Source | None) -> str:
    return str(source.line) if source else "?"


def _numel(shape: Sequence[int]) -> int:
    n = 1
    for size in shape:
        n *= size
    return n
