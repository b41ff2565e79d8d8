"""The way from an origin to its symptom as a few links, for people to read. Pure, from the records of a deep step.

The walk back (`causes`, `wrong_values`) stops at whatever symptom it started from; here the shortest way forward is
taken from the origin, over operations that hand the fault on, to the symptom people know: the loss, else a gradient,
else a weight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from nanprobe.diagnosis.links import external_link, op_link, symptoms_of
from nanprobe.diagnosis.origins import Origin
from nanprobe.diagnosis.preparation import maker_of
from nanprobe.diagnosis.scene import Scene
from nanprobe.diagnosis.trail import Trail, bad_count, flushed_fraction
from nanprobe.findings import ChainLink, Finding
from nanprobe.records import InputRecord, OpRecord

MAX_LINKS = 8  # more are not read


def build_chain(scene: Scene, origin: Origin, finding: Finding) -> tuple[ChainLink, ...]:
    """The links from `origin` to its symptom, first things first, the middle left out; empty when there is no way."""
    start = origin.op or origin.reader
    if start is None:
        return ()
    named = finding.parameters or ((finding.parameter,) if finding.parameter else ())
    parents = _reach(scene.trail, start)
    order = {index: n for n, index in enumerate(parents)}
    reached = [symptom for symptom in symptoms_of(scene, named) if symptom.writer in order]
    best = min(reached, key=lambda s: (s.rank, order[s.writer], s.link.tensor or ""), default=None)
    indices = _walked(origin, start) if best is None else _way(parents, best.writer)
    path = [op_link(scene.trail, scene.trail.ops[index]) for index in indices if index in scene.trail.ops]
    links = [*_before(scene, origin, finding, start), *path]
    return condense(links if best is None else [*links, best.link])


def condense(links: Sequence[ChainLink]) -> tuple[ChainLink, ...]:
    """At most MAX_LINKS of them: both ends, then where the fault changes its form or its phase, then the earliest."""
    if len(links) <= MAX_LINKS:
        return tuple(links)
    kept = sorted(sorted(range(len(links)), key=lambda k: (_rank(links, k), k))[:MAX_LINKS])
    gaps = [0, *(after - before - 1 for before, after in pairwise(kept))]
    return tuple(replace(links[k], skipped=gap or links[k].skipped) for k, gap in zip(kept, gaps, strict=True))


def _before(scene: Scene, origin: Origin, finding: Finding, start: OpRecord) -> list[ChainLink]:
    """What stands before the first operation that broke: a tensor from outside, or where the finding points."""
    if origin.external is not None:
        maker = maker_of(scene, origin)
        made = [] if maker is None or scene.setup is None else [op_link(Trail(scene.setup), maker)]
        return [*made, external_link(origin.external)]
    if finding.op is None or (finding.op, finding.module, finding.source) == (start.op, start.module, start.source):
        return []
    earlier = [op for op in scene.deep.ops if op.index < start.index and _is_at(op, finding)]
    return [op_link(scene.trail, earlier[-1])] if earlier else []


def _is_at(op: OpRecord, finding: Finding) -> bool:
    return (op.op, op.module, op.source) == (finding.op, finding.module, finding.source)


def _reach(trail: Trail, start: OpRecord) -> dict[int, int]:
    """Every operation that the fault came to from `start`, nearest first, with the one it came from on a shortest way.

    `start` is its own.
    """
    parents = {start.index: start.index}
    readers = _readers(trail)
    queue = deque([start.index])
    while queue:
        current = queue.popleft()
        for reader, record in readers.get(current, ()):
            if reader.index not in parents and _hands_on(trail, reader, record):
                parents[reader.index] = current
                queue.append(reader.index)
    return parents


def _way(parents: dict[int, int], end: int) -> list[int]:
    """The operations from the start of `parents` to `end`, both included."""
    way = [end]
    while parents[way[-1]] != way[-1]:
        way.append(parents[way[-1]])
    return way[::-1]


def _readers(trail: Trail) -> dict[int, list[tuple[OpRecord, InputRecord]]]:
    readers: dict[int, list[tuple[OpRecord, InputRecord]]] = {}
    for op in trail.deep.ops:
        for record in op.inputs:
            for writer in record.writers:
                if writer < op.index:
                    readers.setdefault(writer, []).append((op, record))
    return readers


def _hands_on(trail: Trail, reader: OpRecord, record: InputRecord) -> bool:
    """Whether an operation read the fault here, and passed it on: not finite, or 0 where the re-check is not."""
    value = trail.value(reader, record)
    return bool(value.bad or value.flushed_fraction) and any(_is_faulty(reader))


def _is_faulty(op: OpRecord) -> Iterator[bool]:
    return (bool(bad_count(stats) or flushed_fraction(stats)) for stats in op.outputs)


def _walked(origin: Origin, start: OpRecord) -> list[int]:
    """The way the walk back came, where none leads forward."""
    return sorted(index for index in {start.index, *origin.path} if index >= start.index)


def _rank(links: Sequence[ChainLink], k: int) -> int:
    """How much a chain would miss a link: 0 the ends, 1 those beside them and what changes, 2 a new module, 3 none."""
    link, before = links[k], links[k - 1]
    if k in (0, len(links) - 1):
        return 0
    made_nan = link.after is not None and link.after.nan_count and not (link.before and link.before.nan_count)
    if k in (1, len(links) - 2) or made_nan or link.phase is not before.phase:
        return 1
    return 2 if link.module != before.module else 3
