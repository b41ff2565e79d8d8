"""The verdict: of everything that was found, the one root cause; and what could not be told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from nanprobe.diagnosis.examine import findings_of
from nanprobe.diagnosis.first_warning import with_first_warning
from nanprobe.diagnosis.handmade import with_handmade_scale
from nanprobe.diagnosis.layers import layer_rows
from nanprobe.diagnosis.noise import without_noise
from nanprobe.diagnosis.proportion import scale_in_backward
from nanprobe.findings import Diagnosis, Finding, Kind, Severity, Status
from nanprobe.records import Outcome, Phase, RunRecord, StageName, StageTrace

# What a misuse, or gradients too far apart for any scale, can bring about: where one of these is found beside it, it is
# the cause. Source: DESIGN section 6.
_BRINGS_ABOUT = {
    "NP106": frozenset({"NP103", "NP201", "NP204"}),
    "NP601": frozenset({"NP201", "NP202"}),
    "NP602": frozenset({"NP101", "NP102", "NP103", "NP104", "NP105", "NP108", "NP501", "NP411", "NP418", "NP408"}),
    "NP603": frozenset({"NP102", "NP103", "NP201", "NP204", "NP105"}),
    "NP604": frozenset({"NP102", "NP103", "NP201", "NP204"}),
    "NP605": frozenset({"NP201", "NP202"}),
    "NP606": frozenset({"NP201", "NP202", "NP501"}),
    "NP608": frozenset({"NP105", "NP400", "NP408", "NP418", "NP301", "NP304", "NP501"}),
    "NP613": frozenset({"NP102", "NP103", "NP105", "NP201", "NP204", "NP501"}),
    "NP616": frozenset({"NP101", "NP102", "NP103", "NP104", "NP108", "NP501"}),
    "NP617": frozenset({"NP103", "NP201", "NP204"}),
    "NP619": frozenset({"NP201"}),
    "NP621": frozenset({"NP102", "NP103"}),
}


def diagnose(run: RunRecord) -> Diagnosis:
    """The whole answer about a run: status, verdict, all findings, the per-layer table. Pure."""
    run = without_noise(run)
    by_stage = [(trace, findings_of(trace)) for trace in run.stages]
    found = [(trace, finding) for trace, findings in by_stage for finding in findings]
    disproportion = scale_in_backward(run)
    if disproportion is not None:
        found.append((next(t for t in run.stages if t.name is disproportion.stage), disproportion))
    errors = [(trace, f) for trace, f in found if f.severity is Severity.ERROR]
    verdict = _root_cause(errors)
    reasons = _inconclusive(run, [f for _, f in found])
    if verdict is not None:
        verdict = with_first_warning(verdict, next(t for t in run.stages if t.name is verdict.stage))
        verdict = _with_exception(verdict, run)
        status = Status.FAILING
    else:
        status = Status.INCONCLUSIVE if reasons else Status.HEALTHY
    findings = _ordered(verdict, found)
    return Diagnosis(
        status, verdict, findings, layer_rows(with_handmade_scale(run), findings), reasons if verdict is None else ()
    )


def _root_cause(errors: Sequence[tuple[StageTrace, Finding]]) -> Finding | None:
    if not errors:
        return None
    ranked = [finding for _, finding in sorted(errors, key=lambda e: _rank(*e))]
    first = ranked[0]
    # A misuse that explains what came first is the root of it.
    for other in ranked:
        if other.stage is first.stage and first.code in _BRINGS_ABOUT.get(other.code, ()):
            return other
    return first


def _rank(trace: StageTrace, finding: Finding) -> tuple[int, int, int, float, int]:
    """FP32 before precision, as written before put around, numbers before habits, then the earliest step."""
    stage = (StageName.FP32, StageName.FP16, StageName.AMP).index(finding.stage)
    as_written = 0 if trace.name is StageName.FP32 or trace.as_written else 1
    first = 0 if trace.name is StageName.FP32 else 1
    step = finding.step if finding.step is not None else math.inf
    return (first, as_written, _certainty(finding), step, stage)


# The most direct evidence first: a value that broke, then calls that cannot work, then what only stands still.
_DIRECT = (Kind.DATA, Kind.GRAPH, Kind.OVERFLOW, Kind.UNDERFLOW, Kind.DIVERGENCE)


def _certainty(finding: Finding) -> int:
    if finding.code in ("NP608", "NP607", "NP602", "NP603"):
        return 0
    if finding.code in ("NP103", "NP204", "NP202"):
        return 2
    return 0 if finding.kind in _DIRECT else 1


def _ordered(verdict: Finding | None, found: Sequence[tuple[StageTrace, Finding]]) -> tuple[Finding, ...]:
    """The verdict, then errors, warnings and notes, each in the order of the ranking."""
    severity = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}
    ranked = [f for _, f in sorted(found, key=lambda e: (severity[e[1].severity], _rank(*e)))]
    if verdict is None:
        return tuple(ranked)
    rest = [f for f in ranked if not _same(f, verdict)]
    return (verdict, *rest)


def _same(one: Finding, other: Finding) -> bool:
    return (one.code, one.stage, one.step, one.source, one.parameter, one.module) == (
        other.code,
        other.stage,
        other.step,
        other.source,
        other.parameter,
        other.module,
    )


def _with_exception(verdict: Finding, run: RunRecord) -> Finding:
    """The exception that ended the script came after the fault: named, but no verdict of its own."""
    trace = next(t for t in run.stages if t.name is verdict.stage)
    error = trace.error
    if error is None or error.message[:60] in verdict.why:
        return verdict
    line = f" (line {error.source.line})" if error.source else ""
    said = f"{error.kind}: {error.message.strip()[:120]}"
    return replace(
        verdict,
        why=f"{verdict.why} The script then ended with {said}{line}.",
        evidence={**verdict.evidence, "exception": said},
    )


def _inconclusive(run: RunRecord, findings: Sequence[Finding]) -> tuple[str, ...]:
    """Why no verdict can be given, in plain words; empty when every stage ran its steps."""
    reasons = []
    for trace in run.stages:
        explained = any(f.stage is trace.name and f.phase is Phase.CALLS for f in findings)
        if not explained:
            reasons += _stage_reasons(trace)
    if not run.stages:
        reasons.append("no stage was run")
    return tuple(reasons)


def _stage_reasons(trace: StageTrace) -> list[str]:
    name = trace.name.value
    if trace.outcome is Outcome.SKIPPED:
        return [f"{name}: skipped ({trace.reason or 'no reason given'})"]
    if trace.outcome is Outcome.CRASHED:
        error = trace.error
        said = f"{error.kind}: {error.message.strip()[:160]}" if error else (trace.reason or "the process ended")
        where = f" at {error.source.file.rpartition('/')[2]}:{error.source.line}" if error and error.source else ""
        return [f"{name}: the script stopped in step {len(trace.steps)} with {said}{where}"]
    if trace.outcome is Outcome.TIMEOUT:
        return [f"{name}: {trace.reason or 'timed out'} after {len(trace.steps)} steps"]
    if not trace.steps:
        return [f"{name}: the script ended without a training step; there is nothing to judge"]
    return []
