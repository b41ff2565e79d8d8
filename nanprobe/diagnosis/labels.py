"""Labels: none left to average over, too many for the input, or outside the range of the loss."""

from __future__ import annotations

from nanprobe.diagnosis.batches import place_of
from nanprobe.diagnosis.compose import at_op, batch_rows
from nanprobe.diagnosis.graph_table import AVERAGES, CTC, NLL, names
from nanprobe.diagnosis.origins import Birth, Origin, origin_op
from nanprobe.diagnosis.scene import Scene, base_severity
from nanprobe.diagnosis.trail import base_name
from nanprobe.diagnosis.wording import figure, listed, op_label
from nanprobe.findings import BatchPlace, Finding, Severity
from nanprobe.records import ExternalKind, OpRecord, Phase

_CROSS_ENTROPIES = frozenset({"binary_cross_entropy_with_logits", "binary_cross_entropy"})


def explain(scene: Scene, origin: Origin) -> Finding | None:
    """The finding for a loss with nothing to average or no alignment (NP303, NP306); None for other operations."""
    op = origin_op(origin)
    known = set(names(op))
    if known & CTC:
        return _no_alignment(scene, op)
    empty = any(0 in record.shape for record in op.inputs)
    if origin.birth is Birth.NAN and not origin.masked and (known & NLL or (known & AVERAGES and empty)):
        return _nothing_left(scene, op, empty)
    return None


def out_of_range(scene: Scene) -> Finding | None:
    """Targets of a binary cross-entropy that are no probabilities (NP302): its loss has no lower bound then."""
    for op in scene.deep.ops:
        if base_name(op.op) not in _CROSS_ENTROPIES or len(op.inputs) < 2 or op.phase is Phase.BACKWARD:
            continue
        target = scene.trail.value(op, op.inputs[1])
        if target.abs_max > 1.0 and not target.bad:
            return _not_probabilities(scene, op, target.abs_max)
    return None


def batch_of_step(scene: Scene) -> BatchPlace | None:
    """The batch that this step read, as far as one is known."""
    batches = [e for e in scene.deep.externals if e.kind is ExternalKind.BATCH and e.batch_index is not None]
    return BatchPlace(batches[0].batch_index) if batches else None


def _not_probabilities(scene: Scene, op: OpRecord, largest: float) -> Finding:
    losses = [s.loss for s in scene.trace.steps if s.loss is not None]
    lowest = min(losses, default=None)
    # A loss below 0 proves that it has no bound; without that proof the labels may be meant so.
    unbounded = lowest is not None and lowest < 0.0
    fell = f" The loss fell to {figure(lowest)}; a cross-entropy cannot be negative." if unbounded else ""
    external = scene.trail.external(op.inputs[1])
    return at_op(
        scene,
        op,
        "NP302",
        severity=base_severity(scene.trace) if unbounded else Severity.WARNING,
        phase=Phase.DATA,
        batch=place_of(scene.trace, scene.step, external) if external is not None else None,
        slots={
            "what": f"targets up to {figure(largest)} where probabilities are expected",
            "range": "[0, 1]",
            "hint": "divide masks read from image files by 255" if largest == 255.0 else "they are no probabilities",
        },
        evidence={"target_abs_max": largest, "lowest_loss": lowest},
        why=f"{op_label(op)} is defined for targets between 0 and 1; here they reach {figure(largest)}.{fell}",
    )


def _no_alignment(scene: Scene, op: OpRecord) -> Finding:
    items = f"rows {listed(op.rows)} of the batch" if op.rows else "the rows that are too short"
    return at_op(
        scene,
        op,
        "NP306",
        batch=batch_rows(scene, op) or (BatchPlace(rows=op.rows) if op.rows else None),
        slots={"what": f"{items}: the input is shorter than the target needs", "items": items},
        why="The CTC loss is not finite although every log-probability is, in the re-check as well: no alignment "
        "exists.",
    )


def _nothing_left(scene: Scene, op: OpRecord, empty: bool) -> Finding:
    left = "The tensor it averages has no elements." if empty else "Every label of the batch is one to be ignored."
    return at_op(
        scene,
        op,
        "NP303",
        batch=batch_of_step(scene),
        slots={"what": "an empty selection" if empty else "every label is ignored", "items": "these rows"},
        why=f"{op_label(op)} is NaN from finite inputs, in the re-check as well: the mean of no elements is 0/0. "
        f"{left}",
    )
