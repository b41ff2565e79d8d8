"""Memory that was never filled, or loaded broken: parameters and buffers not finite before the first step."""

from __future__ import annotations

from nanprobe.diagnosis.compose import at_op, compose
from nanprobe.diagnosis.graph_table import LOADERS
from nanprobe.diagnosis.origins import Origin, origin_op
from nanprobe.diagnosis.scene import Scene, base_severity
from nanprobe.diagnosis.trail import base_name
from nanprobe.diagnosis.wording import line_of, op_label
from nanprobe.findings import Finding
from nanprobe.records import ExternalRecord, OpRecord, Phase, TensorStats


def poisoned_at_start(scene: Scene, external: ExternalRecord, reader: OpRecord | None) -> Finding:
    """The finding for a parameter or buffer that is not finite when the first step reads it (NP304)."""
    stats, name = external.stats, external.name or "a tensor made outside the step"
    return compose(
        scene.trace,
        "NP304",
        severity=base_severity(scene.trace),
        step=scene.step,
        phase=Phase.DATA,
        op=reader.op if reader else None,
        module=(external.name or "").rpartition(".")[0] or None,
        parameter=external.name,
        source=external.source or (reader.source if reader else None),
        slots={"where": name, "what": f"{_bad(stats)} of {stats.numel} elements"},
        evidence=_counts(stats),
        why=f"At step {scene.step} no operation has written {name} yet, and {stats.nan_count} of its elements are NaN, "
        f"{stats.inf_count} Inf: consistent with memory that was allocated and never filled, or a damaged checkpoint.",
    )


def never_filled(scene: Scene, origin: Origin) -> Finding:
    """The finding for memory that was allocated and read without being written, or loaded like that (NP304, NP301)."""
    op = origin_op(origin)
    stats, line = op.outputs[0], line_of(op.source)
    name = _parameter_of(scene, origin)
    loaded = base_name(op.op) in LOADERS
    if loaded and name is None:
        return at_op(
            scene,
            op,
            "NP301",
            phase=Phase.DATA,
            slots={
                "what": f"{stats.nan_count} NaN and {stats.inf_count} Inf",
                "where": f"what line {line} loads",
                "items": "that file",
            },
            why=f"The numbers were not finite when line {line} brought them in; no operation had touched them.",
        )
    done = "loads" if loaded else "allocates"
    return at_op(
        scene,
        op,
        "NP304",
        phase=Phase.DATA,
        module=op.module or ((name or "").rpartition(".")[0] or None),
        parameter=name,
        slots={"where": name or f"the tensor of line {line}", "what": f"{_bad(stats)} of {stats.numel} elements"},
        evidence=_counts(stats),
        why=f"{op_label(op)} at line {line} {done} {stats.numel} elements, and nothing writes them before they are "
        f"read: {stats.nan_count} are NaN and {stats.inf_count} Inf.",
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


def _bad(stats: TensorStats) -> int:
    return stats.nan_count + stats.inf_count


def _counts(stats: TensorStats) -> dict[str, object]:
    return {"nan_count": stats.nan_count, "inf_count": stats.inf_count, "numel": stats.numel}
