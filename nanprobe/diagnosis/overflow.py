"""Overflow: a result that the format cannot hold and the re-check can."""

from __future__ import annotations

from collections.abc import Sequence

from nanprobe.diagnosis.compose import batch_rows, compose
from nanprobe.diagnosis.origins import Origin, origin_op
from nanprobe.diagnosis.scaling import Habit, scale_habit
from nanprobe.diagnosis.scene import Scene, base_severity
from nanprobe.diagnosis.trail import bad_count, is_wrong, op_is_wrong
from nanprobe.diagnosis.wording import figure, number_format, op_evidence, op_label, place_label, shadow_peak
from nanprobe.findings import Finding, Severity
from nanprobe.records import OpRecord, Phase, StageTrace


def explain(scene: Scene, origin: Origin) -> Finding | None:
    """The finding for an operation that overflowed; None for a loss scale that was only looking for its place."""
    op = origin_op(origin)
    if op.phase is Phase.BACKWARD or _is_scaling(scene, op):
        return _gradient(scene, origin, op)
    if op.phase is Phase.UPDATE:
        code = "NP107" if scene.trail.reads_gradients(op) and not _writes_weights(scene, op) else "NP105"
        return _plain(scene, op, code)
    scalar = op.outputs[0].numel == 1 and bool(scene.deep.loss_writers)
    return _plain(scene, op, "NP104" if scalar else "NP101")


def quantities_from_gradients(scenes: Sequence[Scene]) -> list[Finding]:
    """Norms and the like that overflow between backward and step although every gradient is finite (NP107).

    Once or twice is a hand-made scaler finding its scale; three times, or in a second step that was looked at, is a
    fault: our choice.
    """
    births = [(scene, op) for scene in scenes for op in scene.deep.ops if _overflows_from_gradients(scene, op)]
    places: dict[object, list[tuple[Scene, OpRecord]]] = {}
    for scene, op in births:
        places.setdefault((op.source.file, op.source.line) if op.source else op.op, []).append((scene, op))
    found = []
    for same in places.values():
        scene, op = same[0]
        rounds = {s.step for s, _ in same}
        repeated = len(rounds) > 1 or _rounds(same) >= 3
        severity = base_severity(scene.trace) if repeated else Severity.NOTE
        found.append(_plain(scene, op, "NP107", severity=severity, extra={"times_seen": len(same)}))
    return found


def unexplained_skips(trace: StageTrace, habit: Habit) -> Finding:
    """Repeated skips of which no step could be looked at operation by operation (NP103)."""
    step = habit.steps[-1]
    record = next(s for s in trace.steps if s.index == step)
    worst = max(range(len(record.grad_abs_max)), key=lambda k: _badness(record.grad_abs_max[k]), default=None)
    name = trace.parameters[worst].name if worst is not None and worst < len(trace.parameters) else None
    scale = record.loss_scale or 1.0
    slots = {
        "scale": figure(scale),
        "where": name or "the gradients",
        "value": "Inf",
        "unscaled": "unknown",
        "safe_scale": figure(scale / 4),
        "skipped": len(habit.steps),
        "steps": habit.total,
    }
    return compose(
        trace,
        "NP103",
        severity=_scale_severity(trace),
        slots=slots,
        step=step,
        phase=Phase.BACKWARD,
        parameter=name,
        source=record.source,
        evidence=habit.evidence(),
        why=habit.sentence(),
    )


def _gradient(scene: Scene, origin: Origin, op: OpRecord) -> Finding | None:
    scale = scene.loss_scale
    peak = shadow_peak(op) or 0.0
    if scale > 1.0 and not number_format(op).overflows(peak / scale):
        return _scale_too_high(scene, op, peak, scale)
    return _plain(scene, op, "NP102", divided_by=scale)


def _scale_too_high(scene: Scene, op: OpRecord, peak: float, scale: float) -> Finding | None:
    habit = scale_habit(scene.trace)
    record = scene.record
    poisoned = scene.applied and record is not None and bool(record.nonfinite_weights)
    if not poisoned and not habit.repeated:
        return None
    limit = number_format(op).max
    safe = 2.0 ** _floor_log2(limit * scale / peak / 2.0)
    slots = {
        "scale": figure(scale),
        "where": place_label(op),
        "value": figure(peak),
        "unscaled": figure(peak / scale),
        "safe_scale": figure(safe),
        "skipped": len(habit.steps),
        "steps": habit.total,
    }
    why = (
        f"Unscaled, the largest gradient of {op_label(op)} is {figure(peak / scale)}; times the loss scale of "
        f"{figure(scale)} it is {figure(peak)}, and {op.outputs[0].dtype} ends at {figure(limit)}. "
    )
    why += (
        f"The step was not skipped, so {record.nonfinite_weights[0]} became non-finite."
        if (poisoned and record is not None)
        else habit.sentence()
    )
    return compose(
        scene.trace,
        "NP103",
        severity=base_severity(scene.trace) if poisoned else _scale_severity(scene.trace),
        slots=slots,
        step=scene.step,
        phase=Phase.BACKWARD,
        op=op.op,
        module=op.module,
        source=op.source,
        evidence={
            **op_evidence(op),
            "limit": limit,
            "loss_scale": scale,
            "unscaled_abs_max": peak / scale,
            **habit.evidence(),
        },
        why=why,
    )


def _plain(
    scene: Scene,
    op: OpRecord,
    code: str,
    *,
    severity: Severity | None = None,
    divided_by: float = 1.0,
    extra: dict[str, object] | None = None,
) -> Finding:
    fmt = number_format(op)
    peak = (shadow_peak(op) or 0.0) / divided_by
    over = fmt.bits_over(peak) if peak > 0 else 0.0
    slots = {
        "where": place_label(op),
        "value": figure(peak),
        "dtype": fmt.name,
        "limit": figure(fmt.max),
        "times": figure(2.0 ** max(1, _ceil(over))),
        "unscaled": figure(peak / scene.loss_scale**2) if code == "NP107" else "unknown",
    }
    evidence: dict[str, object] = {**op_evidence(op), "limit": fmt.max, "bits_over": over, **(extra or {})}
    if divided_by != 1.0:
        evidence["loss_scale"] = divided_by
    return compose(
        scene.trace,
        code,
        severity=severity or base_severity(scene.trace),
        slots=slots,
        step=scene.step,
        phase=op.phase,
        op=op.op,
        module=op.module,
        source=op.source,
        batch=batch_rows(scene, op),
        evidence=evidence,
        why=_sentence(op, peak, fmt.name, fmt.max, over),
    )


def _sentence(op: OpRecord, peak: float, dtype: str, limit: float, over: float) -> str:
    bad = sum(bad_count(s) for s in op.outputs)
    numel = sum(s.numel for s in op.outputs)
    bits = f"{over:.1f} bits over" if over > 0 else "at the limit"
    return (
        f"{op_label(op)} gives {bad} of {numel} elements that are not finite in {dtype}; the same operation on the "
        "same "
        f"numbers in FP32 is finite, at most {figure(peak)}. {dtype} ends at {figure(limit)}: {bits}. Every input was "
        "still right, so this is where it began."
    )


def _overflows_from_gradients(scene: Scene, op: OpRecord) -> bool:
    if op.phase is not Phase.UPDATE or op.node is not None or not op_is_wrong(op):
        return False
    values = [scene.trail.value(op, record) for record in op.inputs]
    return (
        not any(v.bad for v in values)
        and number_format(op).name != "float32"
        and scene.trail.reads_gradients(op)
        and not _writes_weights(scene, op)
    )


def _rounds(same: Sequence[tuple[Scene, OpRecord]]) -> int:
    """Backward passes that lie between the births: each is a separate attempt at a step."""
    scene = same[0][0]
    indices = sorted(op.index for s, op in same if s is scene)
    rounds = 1 if indices else 0
    for earlier, later in zip(indices, indices[1:]):
        rounds += any(o.phase is Phase.BACKWARD for o in scene.deep.ops if earlier < o.index < later)
    return rounds


def _writes_weights(scene: Scene, op: OpRecord) -> bool:
    """Whether the update of some parameter was made non-finite by way of this operation."""
    reached = {op.index}
    for later in scene.deep.ops:
        if later.index > op.index and any(w in reached for record in later.inputs for w in record.writers):
            reached.add(later.index)
    return any(
        is_wrong(u.nan_count + u.inf_count, (u.shadow_nan_count or 0) + (u.shadow_inf_count or 0))
        and any(w in reached for w in u.writers)
        for u in scene.deep.updates
    )


def _is_scaling(scene: Scene, op: OpRecord) -> bool:
    """Whether the operation is the multiplication of the loss by its scale."""
    return op.index in scene.deep.loss_writers and scene.loss_scale > 1.0 and op.outputs[0].numel == 1


def _scale_severity(trace: StageTrace) -> Severity:
    """Error in the user's own loop; a warning where the scaler is one that nanprobe put in."""
    severity = base_severity(trace)
    return Severity.WARNING if severity is Severity.ERROR and not trace.as_written else severity


def _badness(value: float | None) -> float:
    if value is None:
        return -1.0
    return float("inf") if value != value else abs(value)


def _floor_log2(value: float) -> int:
    exponent = 0
    while 2.0 ** (exponent + 1) <= value:
        exponent += 1
    while exponent > -24 and 2.0**exponent > value:
        exponent -= 1
    return exponent


def _ceil(value: float) -> int:
    return int(value) + (value > int(value))
