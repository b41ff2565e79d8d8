"""Findings are composed here: the catalogue's templates, filled with the numbers of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nanprobe.catalogue import entry
from nanprobe.diagnosis.batches import place_in_loading
from nanprobe.diagnosis.scene import Scene, base_severity
from nanprobe.diagnosis.wording import line_of, op_evidence
from nanprobe.findings import BatchPlace, Finding, Remedy, Severity
from nanprobe.records import ExternalKind, OpRecord, Phase, Source, StageTrace


def compose(
    trace: StageTrace,
    code: str,
    *,
    severity: Severity,
    slots: Mapping[str, object],
    why: str,
    step: int | None = None,
    phase: Phase | None = None,
    op: str | None = None,
    module: str | None = None,
    parameter: str | None = None,
    source: Source | None = None,
    batch: BatchPlace | None = None,
    evidence: Mapping[str, object] | None = None,
    parameters: tuple[str, ...] = (),
    remedies: slice = slice(None),
) -> Finding:
    """A finding of the catalogue's `code` with its slots filled in; `remedies` are those of the page that apply."""
    page = entry(code)
    filled = {"device": trace.device, "line": line_of(source), **slots}
    return Finding(
        code=code,
        kind=page.kind,
        severity=severity,
        title=page.title.format(**filled),
        stage=trace.name,
        step=step,
        phase=phase,
        op=op,
        module=module,
        parameter=parameter,
        source=source,
        batch=batch,
        evidence=dict(evidence or {}),
        why=why,
        remedies=tuple(Remedy(text.format(**filled)) for text in page.remedies[remedies]),
        parameters=parameters,
    )


def at_op(
    scene: Scene,
    op: OpRecord,
    code: str,
    *,
    slots: Mapping[str, object],
    why: str,
    evidence: Mapping[str, object] | None = None,
    **details: Any,
) -> Finding:
    """A finding about one operation of a deep step: its place, its figures and the stage's severity are filled in.

    `details` are those of `compose`, and take the place of what the operation says.
    """
    plain: dict[str, Any] = {
        "severity": base_severity(scene.trace),
        "step": scene.step,
        "phase": op.phase,
        "op": op.op,
        "module": op.module,
        "source": op.source,
    }
    return compose(
        scene.trace,
        code,
        slots=slots,
        why=why,
        evidence={**op_evidence(op), **_backward_pass(scene), **(evidence or {})},
        **{**plain, **details},
    )


def _backward_pass(scene: Scene) -> dict[str, object]:
    """In a step of several backward passes, the first that left a gradient not finite."""
    bad = [g.backward for g in scene.deep.grads if g.stats.nan_count or g.stats.inf_count]
    passes = scene.record.backward_passes if scene.record is not None else 1
    return {"backward_pass": f"{min(bad) + 1} of {passes}"} if bad and passes > 1 else {}


def batch_rows(scene: Scene, op: OpRecord) -> BatchPlace | None:
    """The rows of the batch in which `op` went wrong, when its first dimension is the batch's or it made the batch."""
    loaded = place_in_loading(scene.trace, scene.step, op)
    if loaded is not None:
        return loaded
    if not op.rows or not op.outputs or not op.outputs[0].shape or op.phase is Phase.UPDATE:
        return None
    size = op.outputs[0].shape[0]
    for external in scene.deep.externals:
        if external.kind is ExternalKind.BATCH and external.stats.shape[:1] == (size,):
            picked = tuple(external.dataset_indices[r] for r in op.rows if r < len(external.dataset_indices))
            return BatchPlace(external.batch_index, op.rows, picked, ())
    return None
