"""Updates that disappear in rounding: w + dw == w in the weight's own format (NP202)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nanprobe.diagnosis import averages
from nanprobe.diagnosis.compose import compose
from nanprobe.diagnosis.scene import Scene, base_severity
from nanprobe.diagnosis.wording import figure, percent
from nanprobe.findings import Finding, Severity
from nanprobe.formats import format_named
from nanprobe.records import Phase, UpdateRecord

# Source: DESIGN section 6: an error when at least nine in ten elements that should change stay as they were.
SWALLOWED_ERROR = 0.9


def findings(scene: Scene) -> list[Finding]:
    """Parameters that stand still; an error when nearly the whole model does, a warning for single parameters."""
    made = [*scene.deep.updates, *averages.hand_made_updates(scene)]
    moving = [u for u in made if u.dtype in ("float16", "bfloat16") and _meant(u) > 0.0 and not _only_decays(scene, u)]
    still = [u for u in moving if _share(u) >= SWALLOWED_ERROR]
    if not still:
        return averages.findings(scene)
    meant = sum(_weight(scene, u) for u in moving)
    overall = sum(_weight(scene, u) * _share(u) for u in moving) / meant
    severity = base_severity(scene.trace)
    if severity is Severity.ERROR and overall < SWALLOWED_ERROR:
        severity = Severity.WARNING
    found = _finding(scene, sorted(still, key=lambda u: (-_weight(scene, u), u.name)), overall, severity)
    return [found, *averages.findings(scene)]


def _only_decays(scene: Scene, update: UpdateRecord) -> bool:
    """Whether the weight has had no gradient yet, in the re-check neither: what is swallowed is weight decay alone."""
    grad = next((g for g in scene.deep.grads if g.name == update.name), None)
    if grad is None or grad.shadow_norm != 0.0:
        return False
    position = next((k for k, p in enumerate(scene.trace.parameters) if p.name == update.name), None)
    before = [s.grad_abs_max for s in scene.trace.steps if s.index <= scene.step]
    return position is not None and all(len(g) > position and not g[position] for g in before)


def _finding(scene: Scene, still: Sequence[UpdateRecord], overall: float, severity: Severity) -> Finding:
    worst, record = still[0], scene.record
    fmt, largest = format_named(worst.dtype), worst.update_abs_max
    names = tuple(u.name for u in still)
    rates = dict.fromkeys(record.learning_rates) if record is not None else {}
    return compose(
        scene.trace,
        "NP202",
        severity=severity,
        step=scene.step,
        phase=Phase.UPDATE,
        parameter=worst.name,
        source=record.source if record is not None else None,
        parameters=names,
        slots={
            "swallowed": percent(_share(worst)),
            "where": names[0] if len(names) == 1 else f"{len(names)} parameters ({names[0]}, ...)",
            "dtype": fmt.name,
            "value": figure(largest),
            "largest_weight": figure(largest * 2.0 / fmt.eps if largest is not None else None),
            "learning_rate": " / ".join(figure(rate) for rate in rates) or "unknown",
        },
        evidence={
            "swallowed_fraction": _share(worst),
            "swallowed_overall": overall,
            "update_abs_max": largest,
            "parameters": len(names),
            "dtype": fmt.name,
        },
        why=f"{_of_all(overall)} that the optimizer step changes in the FP32 re-check are the same "
        "before "
        f"and after it in {fmt.name} (half a step between neighbours is {figure(fmt.eps / 2)} of the weight). No FP32 "
        "master copy takes the update.",
    )


def _of_all(fraction: float) -> str:
    return "All elements" if fraction >= 1.0 else f"{percent(fraction)} of the elements"


def _meant(update: UpdateRecord) -> float:
    """Share of elements that the step was to change."""
    return update.changed_fraction + update.swallowed_fraction


def _share(update: UpdateRecord) -> float:
    return update.swallowed_fraction / _meant(update)


def _weight(scene: Scene, update: UpdateRecord) -> float:
    """Number of elements that the step was to change."""
    shape = next((p.shape for p in scene.trace.parameters if p.name == update.name), (1,))
    return math.prod(shape) * _meant(update)
