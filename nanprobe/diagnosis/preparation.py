"""What the script did before its first step: the operation that made data or a parameter non-finite."""

from __future__ import annotations

from nanprobe.diagnosis import graph
from nanprobe.diagnosis.graph_table import ALLOCATORS
from nanprobe.diagnosis.origins import Birth, Origin
from nanprobe.diagnosis.scene import Scene
from nanprobe.diagnosis.trail import bad_count, base_name
from nanprobe.findings import Finding
from nanprobe.records import DeepStep, ExternalRecord, OpRecord


def explain(scene: Scene, origin: Origin) -> Finding | None:
    """The finding for the preparing operation that made `origin`'s tensor non-finite; None where none is known."""
    maker = maker_of(scene, origin)
    if maker is None or scene.setup is None:
        return None
    before = Scene(scene.trace, scene.setup)
    born = Origin(Birth.NAN if any(s.nan_count for s in maker.outputs) else Birth.INF, op=maker)
    return graph.explain(before, born)


def maker_of(scene: Scene, origin: Origin) -> OpRecord | None:
    """The operation before the first step that made `origin`'s tensor non-finite; None where none is known."""
    return None if scene.setup is None or origin.external is None else _maker(scene.setup, origin.external)


def _maker(setup: DeepStep, external: ExternalRecord) -> OpRecord | None:
    """The first operation that made NaN or Inf from finite numbers, if its result looks like the tensor's source.

    "Looks like": the bad columns of the tensor are among those the operation made bad, or the shapes agree. A NaN in a
    metric that was computed on the way has another shape.
    """
    for op in setup.ops:
        if op.deliberate or base_name(op.op) in ALLOCATORS or not any(bad_count(s) for s in op.outputs):
            continue
        if any((record.nan_count or 0) + (record.inf_count or 0) for record in op.inputs):
            continue
        if any(_alike(op, s.shape, external) for s in op.outputs):
            return op
    return None


def _alike(op: OpRecord, shape: tuple[int, ...], external: ExternalRecord) -> bool:
    if shape == external.stats.shape:
        return True
    if not shape or not external.stats.shape:
        return False
    same_width = shape[-1] == external.stats.shape[-1] and len(shape) == len(external.stats.shape)
    return same_width and (not external.columns or set(external.columns) <= set(op.columns))
