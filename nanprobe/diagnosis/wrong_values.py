"""Walks wrong values back: not finite, or 0, where the re-check says otherwise. Low precision only.

An operation is at fault when it is wrong although everything it read was right.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanprobe.diagnosis.origins import Birth, Origin, distinct, from_op, path_from
from nanprobe.diagnosis.trail import Lane, Trail, base_name, flushed_fraction, op_is_wrong
from nanprobe.formats import format_named
from nanprobe.records import InputRecord, OpRecord

# Operations that blow up when one input is 0, and the position of that input (negative: from the end).
# Source: their definitions; addcdiv(x, a, b) = x + v a / b.
SINGULAR_AT_ZERO = {
    "div": -1,
    "true_divide": -1,
    "divide": -1,
    "addcdiv": -1,
    "log": 0,
    "log2": 0,
    "log10": 0,
    "reciprocal": 0,
    "rsqrt": 0,
    "pow": 0,
    "digamma": 0,
    "lgamma": 0,
    "remainder": -1,
    "fmod": -1,
    "atan2": 0,
    "xlogy": -1,
}

# Add or clamp with a small constant: when the constant is 0 in the operation's format, here is where it is lost.
_GUARDS = frozenset({"add", "clamp", "clamp_min", "maximum", "sub", "rsub", "max", "clip"})

# An operation loses the majority itself unless an input already lacks this share of what is missing: our choice.
_MAJORITY = 0.5


def zero_origins(trail: Trail, starts: Iterable[int]) -> tuple[Origin, ...]:
    """Origins of the zeros that operations `starts` left where the re-check is not zero, earliest first."""
    found: list[Origin] = []
    for start in starts:
        op = trail.ops.get(start)
        if op is not None and (any(flushed_fraction(s) for s in op.outputs) or op_is_wrong(op)):
            found += wrong_origins(trail, op, Birth.ZERO, outcome=None)
    return distinct(found)


def lost_guard(op: OpRecord) -> float | None:
    """The small constant an add or clamp carries that is 0 in the operation's format; None if there is none."""
    if base_name(op.op) not in _GUARDS or not op.outputs:
        return None
    number_format = format_named(op.outputs[0].dtype)
    lost = [s for s in op.scalars if number_format.flushes(s)]
    return lost[0] if lost else None


def wrong_origins(trail: Trail, root: OpRecord, birth: Birth, outcome: OpRecord | None) -> list[Origin]:
    """From a wrong result back to the first operation that is wrong although all it read was right."""
    found: list[Origin] = []
    parents: dict[int, int] = {}
    stack: list[tuple[OpRecord, Birth]] = [(root, birth)]
    seen = {root.index}
    while stack:
        op, want = stack.pop()
        suspects = _suspects(trail, op, want)
        pushed = False
        for record, kind in suspects:
            for writer in trail.writers(op, record):
                if not _explains(writer, kind) or writer.index in seen:
                    pushed = pushed or writer.index in seen
                    continue
                seen.add(writer.index)
                parents[writer.index] = op.index
                stack.append((writer, kind))
                pushed = True
        if not pushed:
            flushed_before_blow_up = want is Birth.ZERO and outcome is not None
            origin = from_op(op, want, path_from(parents, op.index))
            found.append(replace(origin, precise=True, outcome=outcome if flushed_before_blow_up else None))
    return found


def _suspects(trail: Trail, op: OpRecord, want: Birth) -> list[tuple[InputRecord, Birth]]:
    """The inputs of a wrong operation that are wrong themselves, and in which way."""
    lanes = [lane for lane in trail.lanes(op) if _concerned(lane, want)]
    values = [(record, trail.value(op, record)) for lane in lanes for record in lane.inputs]
    broken = [(r, Birth.NAN if v.nan else Birth.INF) for r, v in values if v.wrong]
    if broken:
        return broken
    if want is Birth.ZERO:
        if lost_guard(op) is not None:
            return []
        lost = max((flushed_fraction(s) for s in op.outputs), default=0.0)
        return [(r, Birth.ZERO) for r, v in values if v.flushed_fraction >= _MAJORITY * lost > 0.0]
    position = SINGULAR_AT_ZERO.get(base_name(op.op))
    if position is None:
        return []
    # A division by a plain number has one tensor: what is divided.
    fewest = 2 if position < 0 else 1
    divisors = [lane.inputs[position] for lane in lanes if len(lane.inputs) >= fewest]
    return [(r, Birth.ZERO) for r in divisors if trail.value(op, r).flushed_fraction > 0.0]


def _concerned(lane: Lane, want: Birth) -> bool:
    if want is Birth.ZERO:
        return any(flushed_fraction(s) for s in lane.outputs)
    return bool(lane.nan or lane.inf)


def _explains(writer: OpRecord, kind: Birth) -> bool:
    if kind is Birth.ZERO:
        return any(flushed_fraction(s) for s in writer.outputs)
    return op_is_wrong(writer)
