"""What a comparison of two runs holds. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nanprobe.findings import Diagnosis, Finding
from nanprobe.records import RunRecord, StageName
from nanprobe.reports.stage_summary import StageSummary


class Change(str, Enum):
    """What the change came to, in a word."""

    FIXED = "fixed"  # A was failing, B is healthy
    HEALTHY = "healthy"  # B is healthy, and A was not failing
    BROKEN = "broken"  # B is failing, and A was not
    SAME_CAUSE = "same cause"  # both are failing, with one verdict
    OTHER_CAUSE = "other cause"  # both are failing, each with its own verdict
    UNKNOWN = "unknown"  # B could not be told


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs with its diagnosis."""

    run: RunRecord
    diagnosis: Diagnosis


@dataclass(frozen=True, slots=True)
class StageFigures:
    """One stage of one run."""

    summary: StageSummary
    final_loss: float | None  # of the last step that has one; may be NaN
    verdict: Finding | None  # the gravest error found in it


@dataclass(frozen=True, slots=True)
class StageChange:
    """One stage in both runs; None where a run does not have it."""

    name: StageName
    before: StageFigures | None
    after: StageFigures | None


@dataclass(frozen=True, slots=True)
class LayerFigures:
    """One layer of one run, in the stage that both runs are compared in."""

    headroom_bits: float | None
    flushed_fraction: float | None
    lost_norm_fraction: float | None
    nonfinite_steps: int | None


@dataclass(frozen=True, slots=True)
class LayerChange:
    """One layer in both runs; None where a run does not have it."""

    name: str
    before: LayerFigures | None
    after: LayerFigures | None
    size: float  # how much changed, for the order only
    changed: bool  # by more than from one seed to the next


@dataclass(frozen=True, slots=True)
class Comparison:
    """A is before, B after. Layers are ordered by how much they changed, findings by their gravity."""

    before: Side
    after: Side
    change: Change
    notes: tuple[str, ...]  # why the two are not quite alike
    stage: StageName | None  # the layers' figures are of this stage; None when no stage has steps in both
    stages: tuple[StageChange, ...]
    gone: tuple[Finding, ...]
    unseen: tuple[Finding, ...]  # A's, in stages that took no step in B, so that nobody looked
    new: tuple[Finding, ...]
    same: tuple[tuple[Finding, Finding], ...]  # before and after
    layers: tuple[LayerChange, ...]
