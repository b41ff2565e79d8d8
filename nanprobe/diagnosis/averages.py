"""What the script itself changes in place in FP16 or bf16: averages of the weights (NP207), hand-made updates."""

from __future__ import annotations

from nanprobe.diagnosis.compose import compose
from nanprobe.diagnosis.scene import Scene
from nanprobe.diagnosis.wording import figure, percent
from nanprobe.findings import Finding, Severity
from nanprobe.formats import format_named
from nanprobe.records import ExternalKind, OpRecord, Phase, UpdateRecord

# An average that keeps less than half of what it is told lags behind for good: our choice, as for flushed gradients.
SWALLOWED_WARNING = 0.5
_MAX_OPERATIONS = 32  # behind a write, in which the old value must be read for it to be a step from there: our choice


def hand_made_updates(scene: Scene) -> list[UpdateRecord]:
    """Changes of parameters that have a gradient in this step: what an optimizer would have done."""
    trained = {g.name for g in scene.deep.grads}
    return [u for u in _steps_from_old_values(scene) if u.name in trained]


def findings(scene: Scene) -> list[Finding]:
    """The finding for averages of the weights that stand still (NP207): one for all of a step; none when they move."""
    trained = {g.name for g in scene.deep.grads}
    averages = [u for u in _steps_from_old_values(scene) if u.name not in trained and _is_of_weights(scene, u)]
    still = [u for u in averages if _share(u) >= SWALLOWED_WARNING]
    return [_standing_still(scene, sorted(still, key=lambda u: (-_share(u), u.name)), len(averages))] if still else []


def _steps_from_old_values(scene: Scene) -> list[UpdateRecord]:
    return [u for u in scene.deep.rewritten if _meant(u) > 0.0 and _reads_itself(scene, u)]


def _reads_itself(scene: Scene, update: UpdateRecord) -> bool:
    """Whether the new value was made from the old one: a copy of FP32 master weights is no update of its own."""
    stack = [scene.trail.ops[w] for w in update.writers if w in scene.trail.ops]
    for _ in range(_MAX_OPERATIONS):
        if not stack:
            return False
        op = stack.pop()
        if any(r.external == update.external for r in op.inputs):
            return True
        stack += [w for r in op.inputs for w in scene.trail.writers(op, r)]
    return False


def _is_of_weights(scene: Scene, update: UpdateRecord) -> bool:
    """A parameter or buffer, or a tensor shaped like one: a sum of losses for the log is none."""
    external = scene.trail.externals.get(update.external if update.external is not None else -1)
    if external is None:
        return False
    if external.kind in (ExternalKind.PARAMETER, ExternalKind.BUFFER):
        return True
    return any(p.shape == external.stats.shape for p in scene.trace.parameters)


def _standing_still(scene: Scene, still: list[UpdateRecord], total: int) -> Finding:
    worst, fmt = still[0], format_named(still[0].dtype)
    op = _last_writer(scene, worst)
    names = tuple(u.name for u in still if u.name)
    line = f"line {op.source.line}" if op is not None and op.source else "the script"
    where = names[0] if len(names) == 1 else (f"{len(names)} tensors ({names[0]}, ...)" if names else f"of {line}")
    return compose(
        scene.trace,
        "NP207",
        severity=Severity.WARNING,
        step=scene.step,
        phase=Phase.UPDATE,
        op=op.op if op is not None else None,
        parameter=worst.name or None,
        parameters=names,
        source=op.source if op is not None else None,
        slots={"where": where, "swallowed": percent(_share(worst)), "dtype": fmt.name},
        evidence={
            "swallowed_fraction": _share(worst),
            "update_abs_max": worst.update_abs_max,
            "parameters": len(still),
            "dtype": fmt.name,
        },
        why=f"{line[0].upper()}{line[1:]} changes {total} tensors in place, and in {len(still)} of them at least half "
        f"of the elements that change in the FP32 re-check stay as they were in {fmt.name} ({percent(_share(worst))} "
        f"in the worst). The largest change is {figure(worst.update_abs_max)}; half a step between neighbours is "
        f"{figure(fmt.eps / 2)} of the number.",
    )


def _last_writer(scene: Scene, update: UpdateRecord) -> OpRecord | None:
    return next((scene.trail.ops[w] for w in reversed(update.writers) if w in scene.trail.ops), None)


def _meant(update: UpdateRecord) -> float:
    return update.changed_fraction + update.swallowed_fraction


def _share(update: UpdateRecord) -> float:
    return update.swallowed_fraction / _meant(update)
