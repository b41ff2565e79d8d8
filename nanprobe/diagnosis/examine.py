"""One stage: its symptoms, its deep steps, and the findings they add up to."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from nanprobe.diagnosis import (
    classify,
    data,
    divergence,
    fallback,
    gradient_norms,
    high_scale,
    labels,
    misuse,
    moments,
    no_safe_scale,
    silent_overflow,
    state,
    swallowed,
    underflow,
)
from nanprobe.diagnosis.causes import nonfinite_origins
from nanprobe.diagnosis.chain import build_chain
from nanprobe.diagnosis.compose import compose
from nanprobe.diagnosis.origins import Origin
from nanprobe.diagnosis.scaling import scale_habit
from nanprobe.diagnosis.scene import Scene
from nanprobe.diagnosis.symptoms import abandoned_steps, starts
from nanprobe.diagnosis.wording import figure
from nanprobe.findings import Finding, Kind, Severity
from nanprobe.plan import SETUP_STEP
from nanprobe.records import Outcome, Phase, StageName, StageTrace


def findings_of(trace: StageTrace) -> tuple[Finding, ...]:
    """Everything a stage shows, the earliest cause first within each severity; empty for a healthy stage."""
    if trace.outcome is Outcome.SKIPPED:
        return ()
    scenes = _scenes(trace)
    found = list(misuse.findings(trace))
    for scene in scenes:
        found += _of_scene(scene)
    found = _only_lasting(trace, scenes, found)
    found += gradient_norms.findings(scenes)
    found = _without_advice_that_cannot_work(found, no_safe_scale.findings(scenes))
    found += _of_whole_stage(trace, found)
    found = [_with_the_cause(_led_back_to_data(trace, f), found) for f in found]
    return _sorted(_merged(_without_echoes(found)))


def _scenes(trace: StageTrace) -> list[Scene]:
    setup = next((d for d in trace.deep_steps if d.step == SETUP_STEP), None)
    deep = sorted((d for d in trace.deep_steps if d.step != SETUP_STEP), key=lambda d: d.step)
    return [Scene(trace, d, setup) for d in deep]


def _only_lasting(trace: StageTrace, scenes: list[Scene], found: list[Finding]) -> list[Finding]:
    """Under AMP that nanprobe put around, a flush seen in one step and not in another is a warning, no error."""
    flushed = [f for f in found if f.code == "NP201" and f.severity is Severity.ERROR]
    judged = [
        s for s in scenes if s.deep.grads and not any(g.stats.nan_count or g.stats.inf_count for g in s.deep.grads)
    ]
    if trace.as_written or len(flushed) >= len(judged):
        return found
    return [replace(f, severity=Severity.WARNING) if f in flushed else f for f in found]


def _without_advice_that_cannot_work(found: list[Finding], conflicts: list[Finding]) -> list[Finding]:
    """With NP106: a flush of the same gradients would be told to scale higher, the same overflow to scale lower."""
    settled = {name for f in conflicts if f.severity is Severity.ERROR for name in f.parameters}
    places = {f.source for f in conflicts if f.severity is Severity.ERROR and f.source is not None}
    useless = [
        f
        for f in found
        if (f.code == "NP201" and settled.issuperset(f.parameters)) or (f.code == "NP103" and f.source in places)
    ]
    return [*conflicts, *(f for f in found if f not in useless)]


def _of_scene(scene: Scene) -> list[Finding]:
    found: list[Finding] = []
    abandoned = scene.step in abandoned_steps(scene.trace)
    roots = {*starts(scene.deep, abandoned), *state.buffer_writers(scene)}
    origins = nonfinite_origins(scene.trail, sorted(roots))
    found += _explained(scene, origins)
    if not origins and scene.trail.low_precision:
        dead = underflow.dead_gradient_origins(scene)
        found += _explained(scene, dead)
        silent = silent_overflow.explain(scene) if not dead else None
        if silent is not None:
            found.append(silent)
        elif not dead:
            found += underflow.flushed_gradients(scene)
    found += swallowed.findings(scene)
    found += moments.findings(scene)
    found += state.findings(scene)
    outside = labels.out_of_range(scene)
    return [*found, outside] if outside is not None else found


def _explained(scene: Scene, origins: Iterable[Origin]) -> list[Finding]:
    """The finding of the earliest origin that has one; later origins of a step are its consequences or twins."""
    for origin in origins:
        finding = classify.explain(scene, origin)
        if finding is not None:
            return [replace(finding, chain=build_chain(scene, origin, finding))]
    return []


def _of_whole_stage(trace: StageTrace, found: list[Finding]) -> list[Finding]:
    more: list[Finding] = []
    errors = [f for f in found if f.severity is Severity.ERROR]
    habit = scale_habit(trace)
    if habit.repeated and not any(f.code in _EXPLAIN_SKIPS for f in found):
        more.append(high_scale.unexplained_skips(trace, habit))
    if habit.last_scale is not None and habit.last_scale < 1.0 and len(habit.steps) >= 1:
        more.append(_collapsed(trace, errors))
    if not errors:
        grown = divergence.finite_divergence(trace)
        more += [grown] if grown is not None else []
    if not any(f.severity is not Severity.WARNING for f in [*found, *more]):
        more += fallback.unexplained(trace)
    return more


_EXPLAIN_SKIPS = frozenset({"NP101", "NP102", "NP103", "NP104", "NP106", "NP203", "NP301", "NP303", "NP603"})


def _with_the_cause(finding: Finding, found: list[Finding]) -> Finding:
    """A finding about many skipped steps, at the layer that makes them: the place of the error that explains them."""
    if finding.code != "NP614":
        return finding
    causes = [f for f in found if f.code in _EXPLAIN_SKIPS and f.severity is Severity.ERROR]
    cause = min(causes, key=_when, default=None)
    if cause is None:
        return finding
    said = f"{finding.why.rstrip()} What makes them: {cause.code}, {cause.title}."
    return replace(finding, module=cause.module, parameter=cause.parameter, why=said)


def _collapsed(trace: StageTrace, errors: list[Finding]) -> Finding:
    habit = scale_habit(trace)
    slots = {"scale": figure(habit.last_scale), "skipped": len(habit.steps), "steps": habit.total}
    return compose(
        trace,
        "NP204",
        severity=Severity.WARNING if errors or not trace.as_written else Severity.ERROR,
        slots=slots,
        step=habit.steps[-1] if habit.steps else None,
        phase=Phase.BACKWARD,
        evidence=habit.evidence(),
        why=habit.sentence(),
    )


# What numbers beyond FP32 are called where nothing is known of where they came from.
_MAGNITUDE = frozenset({"NP105", "NP108", "NP501"})


def _led_back_to_data(trace: StageTrace, finding: Finding) -> Finding:
    """The batch behind a magnitude that FP32 itself cannot hold, where one was beyond reason; else the finding."""
    if finding.code not in _MAGNITUDE or finding.severity is not Severity.ERROR or trace.name is not StageName.FP32:
        return finding
    return data.absurd_batch(trace, finding) or finding


def _without_echoes(found: list[Finding]) -> list[Finding]:
    """Leaves out what PyTorch said of a number where the walk back found out how the number came about."""
    known = [f for f in found if f.severity is Severity.ERROR and f.phase is not Phase.CALLS and f.step is not None]
    earliest = min((_when(f)[0] for f in known), default=math.inf)
    said = (Kind.GRAPH, Kind.DATA)
    return [f for f in found if f.phase is not Phase.CALLS or f.kind not in said or _when(f)[0] < earliest]


def _merged(found: list[Finding]) -> list[Finding]:
    """The same fault at later steps is one finding: the first, with the number of steps it was seen in."""
    merged: dict[object, Finding] = {}
    for finding in sorted(found, key=_when):
        line = (finding.source.file, finding.source.line) if finding.source else None
        key = (finding.code, line, finding.module, finding.parameter if line is None else None, finding.severity)
        if key not in merged:
            merged[key] = finding
    return list(merged.values())


def _sorted(found: list[Finding]) -> tuple[Finding, ...]:
    rank = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}
    return tuple(sorted(found, key=lambda f: (rank[f.severity], _when(f))))


def _when(finding: Finding) -> tuple[float, str]:
    return (finding.step if finding.step is not None else math.inf, finding.code)
