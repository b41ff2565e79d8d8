"""Walks the operations of a deep step back from a NaN or Inf to where it began.

Three births matter: finite numbers that become Inf, Inf that becomes NaN, finite numbers that become NaN.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanprobe.diagnosis.origins import Birth, Origin, distinct, from_op, is_mask, path_from
from nanprobe.diagnosis.trail import Lane, Trail, base_name, op_is_wrong
from nanprobe.diagnosis.wrong_values import wrong_origins
from nanprobe.records import InputRecord, OpRecord

SOFTMAXES = frozenset({"softmax", "log_softmax", "logsumexp", "safe_softmax", "scaled_dot_product_attention"})
# Sums and maxima of rows in which -Inf stands for "left out".
_TAKES_MASKS = frozenset({"logsumexp", "logcumsumexp", "logaddexp"})


def nonfinite_origins(trail: Trail, starts: Iterable[int]) -> tuple[Origin, ...]:
    """Origins of the NaN and Inf that operations `starts` left, earliest first; empty when none of them is at fault."""
    roots = tuple(trail.ops[s] for s in starts if s in trail.ops)
    nan_roots = [op for op in roots if any(s.nan_count for s in op.outputs)]
    inf_roots = [op for op in roots if op not in nan_roots and any(s.inf_count for s in op.outputs)]
    found = list(_search_nan(trail, nan_roots))
    found += _culprits(trail, inf_roots)
    settled = [origin for first in found for origin in _settle(trail, first)]
    return distinct(settled)


def _search_nan(trail: Trail, roots: list[OpRecord]) -> list[Origin]:
    found: list[Origin] = []
    parents: dict[int, int] = {}
    stack = list(roots)
    seen = {op.index for op in roots}
    while stack:
        op = stack.pop()
        lane_inputs = [(lane, [i for i in lane.inputs if trail.value(op, i).nan]) for lane in _nan_lanes(trail, op)]
        for lane, carriers in lane_inputs:
            if not carriers:
                found += _nan_birth(trail, op, lane, path_from(parents, op.index))
                continue
            for record in carriers:
                origin = _external_origin(trail, op, record, Birth.NAN, parents)
                if origin is not None:
                    found.append(origin)
                    continue
                writers = [w for w in trail.writers(op, record) if any(s.nan_count for s in w.outputs)]
                if not writers:  # written by something that was not recorded
                    found.append(from_op(op, Birth.NAN, path_from(parents, op.index)))
                _push(stack, seen, parents, op, writers)
    return found


def _nan_lanes(trail: Trail, op: OpRecord) -> list[Lane]:
    return [lane for lane in trail.lanes(op) if lane.nan]


def _nan_birth(trail: Trail, op: OpRecord, lane: Lane, path: tuple[int, ...]) -> list[Origin]:
    """NaN was made here; when Inf went in, the first operation that made that Inf is the origin instead."""
    carriers = [i for i in lane.inputs if trail.value(op, i).inf]
    if not carriers:
        return [from_op(op, Birth.NAN, path)]
    guilty: list[Origin] = []
    masks: list[Origin] = []
    for record in carriers:
        for origin in _inf_behind(trail, op, record):
            (masks if _legal(origin, op) else guilty).append(replace(origin, path=origin.path + path))
    return guilty or _let_through(trail, masks) or [replace(from_op(op, Birth.NAN, path), masked=True)]


def _inf_behind(trail: Trail, op: OpRecord, record: InputRecord) -> list[Origin]:
    external = _external_origin(trail, op, record, Birth.INF, {})
    if external is not None:
        return [external]
    writers = [w for w in trail.writers(op, record) if any(s.inf_count for s in w.outputs)]
    return _search_inf(trail, writers) if writers else []


def _culprits(trail: Trail, roots: list[OpRecord]) -> list[Origin]:
    """Origins of an Inf that is itself the symptom; one written on purpose puts the blame on who let it through."""
    found: list[Origin] = []
    for root in roots:
        origins = _search_inf(trail, [root])
        guilty = [o for o in origins if not _legal(o, root)]
        found += (
            guilty
            or _let_through(trail, origins)
            or [replace(from_op(root, Birth.INF, (root.index,)), masked=True, precise=False)]
        )
    return found


def _let_through(trail: Trail, masks: list[Origin]) -> list[Origin]:
    """The reduction that a mask came out of again: it takes -Inf beside numbers, and this row held nothing else."""
    for mask in masks:
        for position, index in enumerate(mask.path):
            op = trail.ops.get(index)
            if op is not None and base_name(op.op) in _TAKES_MASKS and any(s.inf_count for s in op.outputs):
                return [replace(from_op(op, Birth.INF, mask.path[position:]), masked=True, precise=False)]
    return []


def _search_inf(trail: Trail, roots: list[OpRecord]) -> list[Origin]:
    found: list[Origin] = []
    parents: dict[int, int] = {}
    stack = list(roots)
    seen = {op.index for op in roots}
    while stack:
        op = stack.pop()
        path = path_from(parents, op.index)
        if op.deliberate:
            found.append(replace(from_op(op, Birth.INF, path), masked=True))
            continue
        for lane in trail.lanes(op):
            if lane.inf:
                _inf_step(trail, op, lane, found, stack, seen, parents, path)
    return found


def _inf_step(
    trail: Trail,
    op: OpRecord,
    lane: Lane,
    found: list[Origin],
    stack: list[OpRecord],
    seen: set[int],
    parents: dict[int, int],
    path: tuple[int, ...],
) -> None:
    carriers = [i for i in lane.inputs if trail.value(op, i).inf]
    born_here = op_is_wrong(op) and not any(trail.value(op, i).wrong for i in lane.inputs)
    if not carriers or born_here:
        broken = [i for i in lane.inputs if trail.value(op, i).nan]
        if broken and not born_here:
            found += _search_nan(trail, [w for i in broken for w in trail.writers(op, i)])
        else:
            found.append(from_op(op, Birth.INF, path))
        return
    for record in carriers:
        origin = _external_origin(trail, op, record, Birth.INF, parents)
        if origin is not None:
            found.append(origin)
            continue
        writers = [w for w in trail.writers(op, record) if any(s.inf_count for s in w.outputs)]
        if not writers:
            found.append(from_op(op, Birth.INF, path))
        _push(stack, seen, parents, op, writers)


def _settle(trail: Trail, origin: Origin) -> list[Origin]:
    """In low precision, looks behind an operation that is right to blow up: was what it divided by flushed to 0?"""
    op = origin.op
    if op is None or not origin.precise or not trail.low_precision or origin.masked:
        return [origin]
    return wrong_origins(trail, op, origin.birth, outcome=op)


def _external_origin(
    trail: Trail, op: OpRecord, record: InputRecord, birth: Birth, parents: dict[int, int]
) -> Origin | None:
    external = trail.external(record)
    if external is None or trail.writers(op, record):
        return None
    return Origin(birth, external=external, reader=op, path=path_from(parents, op.index))


def _legal(origin: Origin, reader: OpRecord) -> bool:
    """An Inf that was put there on purpose: written as a constant, or a mask that came from outside.

    What a softmax is given as -Inf beside numbers (a mask added to a position bias) is a mask all the same.
    """
    external = origin.external
    if external is not None and origin.birth is Birth.INF:
        return is_mask(external) or (base_name(reader.op) in SOFTMAXES and not external.stats.nan_count)
    return origin.masked and origin.birth is Birth.INF


def _push(
    stack: list[OpRecord], seen: set[int], parents: dict[int, int], child: OpRecord, writers: Iterable[OpRecord]
) -> None:
    for writer in writers:
        if writer.index not in seen:
            seen.add(writer.index)
            parents[writer.index] = child.index
            stack.append(writer)
