"""Norms and the like that overflow between backward and the step, although every gradient is finite (NP107)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from nanprobe.diagnosis import moments
from nanprobe.diagnosis.overflow import beyond_format, writes_weights
from nanprobe.diagnosis.scene import Scene, base_severity
from nanprobe.diagnosis.silent_overflow import OFF
from nanprobe.diagnosis.trail import bad_count, op_is_wrong
from nanprobe.diagnosis.wording import number_format
from nanprobe.findings import Finding, Severity
from nanprobe.records import OpRecord, Phase, TensorStats

# Once or twice is a hand-made scaler finding its scale; three times is a fault: our choice.
_REPEATED = 3


def findings(scenes: Sequence[Scene]) -> list[Finding]:
    """One finding for each line that computes such a quantity; a note while it may be calibration."""
    places: dict[object, list[tuple[Scene, OpRecord]]] = {}
    for scene in scenes:
        for op in scene.deep.ops:
            if _overflows(scene, op):
                place = (op.source.file, op.source.line) if op.source else op.op
                places.setdefault(place, []).append((scene, op))
    return [_finding(births) for births in places.values()]


def _finding(births: list[tuple[Scene, OpRecord]]) -> Finding:
    scene, op = births[0]
    steps = {s.step for s, _ in births}
    repeated = len(steps) > 1 or _attempts(births) >= _REPEATED
    severity = base_severity(scene.trace) if repeated else Severity.NOTE
    return beyond_format(scene, op, "NP107", severity=severity, evidence={"times_seen": len(births)})


def _overflows(scene: Scene, op: OpRecord) -> bool:
    if op.phase is not Phase.UPDATE or op.node is not None or not op_is_wrong(op):
        return False
    if number_format(op).name == "float32" or any(scene.trail.value(op, record).bad for record in op.inputs):
        return False
    if moments.writes_state(scene, op):
        return False
    return scene.trail.reads_gradients(op) and not writes_weights(scene, op) and _does_harm(scene, op)


def _does_harm(scene: Scene, origin: OpRecord) -> bool:
    """Whether the Inf leaves something wrong behind; one that is cut to the limit it would be cut to anyway does not.

    What no operation reads, the script may: it counts as harm.
    """
    seen, stack = {origin.index}, [origin]
    while stack:
        readers = [r for r in scene.trail.readers(stack.pop().index) if r.index not in seen]
        if not readers:
            return True
        for reader in readers:
            seen.add(reader.index)
            if any(bad_count(s) for s in reader.outputs):
                stack.append(reader)
            elif any(_is_off(s) for s in reader.outputs):
                return True
    return False


def _is_off(stats: TensorStats) -> bool:
    shadow = stats.shadow_abs_max
    return stats.flushed_count > 0 or (shadow is not None and abs(stats.abs_max - shadow) > OFF * shadow)


def _attempts(births: list[tuple[Scene, OpRecord]]) -> int:
    """Backward passes that lie between the births: each is a separate attempt at a step."""
    scene = births[0][0]
    indices = sorted(op.index for s, op in births if s is scene)
    backward = [op.index for op in scene.deep.ops if op.phase is Phase.BACKWARD]
    return 1 + sum(any(a < k < b for k in backward) for a, b in itertools.pairwise(indices))
