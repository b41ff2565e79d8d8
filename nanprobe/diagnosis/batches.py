"""Finds the batch that a tensor of a deep step came from, among those the DataLoader handed out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from nanprobe.diagnosis.trail import Trail, base_name
from nanprobe.diagnosis.wording import listed
from nanprobe.findings import BatchPlace
from nanprobe.records import BatchRecord, ExternalKind, ExternalRecord, OpRecord, Phase, StageTrace

# Batches are fetched a little before they are used; one step is as far ahead as a plain loop gets.
_STEPS_AHEAD = 1


def place_of(trace: StageTrace, step: int, external: ExternalRecord, largest: float = 0.0) -> BatchPlace | None:
    """Where in the data a tensor from outside stands; None when no batch is known to hold it.

    Args:
        trace: the stage.
        step: the step in which it was read.
        external: the tensor.
        largest: for a finite fault, the magnitude to look for.
    """
    if external.kind is not ExternalKind.BATCH:
        return None
    if external.batch_index is not None:
        return _place(external, external.batch_index, external.dataset_indices)
    if largest:
        found = _field(trace, step, lambda f: abs(f.stats.abs_max - largest) <= 0.01 * largest)
    else:
        found = _field(trace, step, _is_nonfinite)
    if found is None:
        return _place(external, None, ()) if external.rows else None
    batch, field = found
    return _place(field, batch.index, _indices(batch, field))


def place_in_loading(trace: StageTrace, step: int, op: OpRecord) -> BatchPlace | None:
    """Where in the data an operation of the data set's or the collate function's own stands; None for others."""
    if op.phase is not Phase.DATA:
        return None
    found = _field(trace, step, lambda f: bool(f.stats.nan_count or f.stats.inf_count))
    if found is None:
        return None
    batch, field = found
    return _place(field, batch.index, _indices(batch, field))


def place_in_gathering(trail: Trail, path: Sequence[int]) -> BatchPlace | None:
    """The rows of the batch that a script made by itself, `torch.stack` or `torch.cat` of samples, on the way of a
    fault; None when there is no such operation.
    """
    ops = (trail.ops[index] for index in path if index in trail.ops)
    gathered = next((op for op in ops if op.phase is Phase.DATA and base_name(op.op) in {"stack", "cat"}), None)
    return None if gathered is None or not gathered.rows else BatchPlace(None, gathered.rows, (), gathered.columns)


def nonfinite_holder(trace: StageTrace, step: int, external: ExternalRecord) -> ExternalRecord:
    """The batch field in which the non-finite numbers of a tensor from outside were counted, else the tensor itself.

    A tensor is measured when it is first read, which for a data set held in one tensor is some other sample of it.
    """
    if external.kind is not ExternalKind.BATCH or _is_nonfinite(external):
        return external
    found = _field(trace, step, _is_nonfinite)
    return found[1] if found is not None else external


def label_of(external: ExternalRecord, place: BatchPlace | None) -> str:
    """A tensor from outside in a sentence: "x of batch 4", "field 1 of batch 4"."""
    if external.kind is not ExternalKind.BATCH and place is None:
        return external.name or "a tensor made outside the step"
    batch = f"batch {place.index}" if place is not None and place.index is not None else "the batch"
    if not external.name or external.name == "batch":
        return batch
    # Tuples have no names, only positions.
    return f"{'field ' if external.name.isdigit() else ''}{external.name} of {batch}"


def items_of(place: BatchPlace | None) -> str:
    """Which items to look at: samples of the data set where they are known, else rows of the batch."""
    if place is None:
        return "the tensor"
    if place.dataset_indices:
        items = "dataset item" if len(place.dataset_indices) == 1 else "dataset items"
        return f"{items} {listed(place.dataset_indices)}"
    batch = f"batch {place.index}" if place.index is not None else "the batch"
    return f"rows {listed(place.rows)} of {batch}" if place.rows else batch


def typical_abs_max(trace: StageTrace, step: int, value: float) -> float | None:
    """The middle of the largest magnitudes of the batches at other steps; None when there are no others.

    Fields are told apart by name: only those are compared whose name the field with `value` has, if it is known.
    """
    named = {f.name for b in trace.batches if b.step == step for f in b.fields if f.stats.abs_max >= 0.99 * value}
    others = [
        f.stats.abs_max
        for b in trace.batches
        if b.step != step
        for f in b.fields
        if (not named or f.name in named) and 0.0 < f.stats.abs_max < 0.01 * value
    ]
    return median(others) if others else None


def _is_nonfinite(field: ExternalRecord) -> bool:
    return bool(field.stats.nan_count or field.stats.inf_count)


def _field(
    trace: StageTrace, step: int, wanted: Callable[[ExternalRecord], bool]
) -> tuple[BatchRecord, ExternalRecord] | None:
    near = [b for b in trace.batches if step - _STEPS_AHEAD <= b.step <= step]
    for batch in sorted(near, key=lambda b: (b.step, b.index), reverse=True):
        for field in batch.fields:
            if wanted(field):
                return batch, field
    return None


def _indices(batch: BatchRecord, field: ExternalRecord) -> tuple[int, ...]:
    """Dataset indices of a field's rows; those of the batch where no row stands out.

    A field that is longer or shorter than the batch (a collate function left samples out) has rows nobody can map.
    """
    return field.dataset_indices if field.rows else batch.dataset_indices


def _place(external: ExternalRecord, index: int | None, indices: tuple[int, ...]) -> BatchPlace:
    columns = external.columns if len(external.stats.shape) > 1 else ()
    return BatchPlace(index, external.rows, picked(external, indices), columns)


def picked(external: ExternalRecord, indices: tuple[int, ...]) -> tuple[int, ...]:
    """The samples of the data set in the rows that stand out; those of all rows where none does; at most 16."""
    rows = external.rows
    return (tuple(indices[row] for row in rows if row < len(indices)) if rows else indices)[:16]
