"""A recipe's limits beside what was measured: skipped steps, flushed gradients, headroom, seconds. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable

from nanprobe.findings import Diagnosis, LayerRow
from nanprobe.recipe.model import Limits
from nanprobe.recipe.outcome import Comparison, Difference
from nanprobe.records import RunRecord, StageName, StageTrace


def compare_limits(limits: Limits, run: RunRecord, diagnosis: Diagnosis) -> Comparison:
    """All limits but the seconds, in the stages that say how the script itself fares in low precision.

    Those are `amp`, and `fp16` where the script trains in raw FP16 or bf16 as written: what a stage put around it
    would lose is no concern of a limit.
    """
    stages = [trace for trace in run.stages if trace.steps and _counts(trace)]
    names = [trace.name.value for trace in stages]
    return (
        _compare_skipped(limits.max_skipped_steps, stages)
        + _compare_flushed(limits.max_flushed_fraction, names, diagnosis.layers)
        + _compare_headroom(limits.min_headroom_bits, diagnosis.layers if names else ())
    )


def compare_seconds(limits: Limits, seconds: float) -> Comparison:
    """The time that the check took."""
    limit = limits.max_seconds
    if limit is None or seconds <= limit:
        return Comparison()
    return _exceeds("max_seconds", f"at most {limit:g} s", f"{seconds:.1f} s")


def _counts(trace: StageTrace) -> bool:
    return trace.name is StageName.AMP or (trace.name is StageName.FP16 and trace.as_written)


def _compare_skipped(limit: int | None, stages: list[StageTrace]) -> Comparison:
    if limit is None:
        return Comparison()
    if not stages:
        return _unmeasured("max_skipped_steps")
    skipped, worst = max(((sum(s.skipped for s in t.steps), t) for t in stages), key=lambda pair: pair[0])
    if skipped <= limit:
        return Comparison()
    found = f"{skipped} of {len(worst.steps)} steps in the {worst.name.value} stage"
    return _exceeds("max_skipped_steps", f"at most {limit}", found)


def _compare_flushed(limit: float | None, stages: list[str], layers: Iterable[LayerRow]) -> Comparison:
    if limit is None:
        return Comparison()
    shares = [
        (share, layer.name, stage)
        for layer in layers
        for stage in stages
        if (share := layer.flushed_fraction.get(stage)) is not None
    ]
    if not shares:
        return _unmeasured("max_flushed_fraction")
    share, layer, stage = max(shares, key=lambda found: found[0])
    if share <= limit:
        return Comparison()
    return _exceeds("max_flushed_fraction", f"at most {limit:.2g}", f"{share:.2g} of {layer} in the {stage} stage")


def _compare_headroom(limit: float | None, layers: Iterable[LayerRow]) -> Comparison:
    if limit is None:
        return Comparison()
    rows = [(row.headroom_bits, row.name) for row in layers if row.headroom_bits is not None]
    if not rows:
        return _unmeasured("min_headroom_bits")
    bits, layer = min(rows)
    return (
        Comparison()
        if bits >= limit
        else _exceeds("min_headroom_bits", f"at least {limit:g}", f"{bits:.1f} in {layer}")
    )


def _exceeds(limit: str, expected: str, found: str) -> Comparison:
    return Comparison((Difference(f"limits.{limit}", expected, found),))


def _unmeasured(limit: str) -> Comparison:
    return Comparison(reasons=(f"limits.{limit}: no low-precision stage ran far enough to measure it",))
