"""Where a symptom began: the result of a walk back through the operations of a deep step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from nanprobe.diagnosis.trail import op_is_wrong
from nanprobe.records import ExternalKind, ExternalRecord, OpRecord


class Birth(str, Enum):
    """What an origin made."""

    NAN = "nan"
    INF = "inf"
    ZERO = "zero"  # 0 here, not 0 in the re-check


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a symptom began: an operation, or a tensor that no operation wrote."""

    birth: Birth
    op: OpRecord | None = None
    external: ExternalRecord | None = None
    reader: OpRecord | None = None  # the operation that first read the external
    path: tuple[int, ...] = ()  # operations from the origin to the symptom
    precise: bool = False  # the re-check is right here: the number format is the cause
    masked: bool = False  # an Inf that was written on purpose fed it
    outcome: OpRecord | None = None  # for a flushed zero: the operation that made Inf or NaN of it

    @property
    def order(self) -> tuple[int, int]:
        """Sorts origins by when they happened; what an operation read comes before what it made."""
        if self.op is not None:
            return (self.op.index, 1)
        return (self.reader.index if self.reader is not None else -1, 0)


def origin_op(origin: Origin) -> OpRecord:
    """The operation of an origin that is known to have one."""
    assert origin.op is not None
    return origin.op


def from_op(op: OpRecord, birth: Birth, path: tuple[int, ...]) -> Origin:
    """An origin at an operation; precise when the re-check of it is finite."""
    return Origin(birth, op=op, path=path, precise=op_is_wrong(op))


def path_from(parents: dict[int, int], index: int) -> tuple[int, ...]:
    """The operations from `index` to the symptom, by way of each one's parent."""
    path = [index]
    while path[-1] in parents:
        path.append(parents[path[-1]])
    return tuple(path)


def distinct(origins: Iterable[Origin]) -> tuple[Origin, ...]:
    """One origin for each place, earliest first; order of the symptoms does not matter."""
    chosen: dict[tuple[int, int, str], Origin] = {}
    for origin in sorted(origins, key=lambda o: (o.order, o.birth.value)):
        external = origin.external.index if origin.external is not None else -1
        op = origin.op.index if origin.op is not None else -1
        chosen.setdefault((op, external, ""), origin)
    return tuple(chosen.values())


def is_mask(external: ExternalRecord) -> bool:
    """Whether an external with Inf is a mask: nothing but Inf and 0, or a buffer or constant that holds no NaN.

    A batch whose other values are numbers is data, and its Inf a fault.
    """
    stats = external.stats
    if not stats.inf_count or stats.nan_count:
        return False
    if external.kind in (ExternalKind.BUFFER, ExternalKind.CONSTANT):
        return True
    return external.kind is ExternalKind.BATCH and stats.abs_max == 0.0
