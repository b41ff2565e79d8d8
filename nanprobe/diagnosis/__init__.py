"""Records in, findings out: what broke, why, and what to do. Pure functions; no torch here."""

from __future__ import annotations

from nanprobe.diagnosis.examine import findings_of
from nanprobe.diagnosis.symptoms import steps_to_rerun, symptoms
from nanprobe.diagnosis.verdict import diagnose
from nanprobe.findings import Severity
from nanprobe.records import StageTrace

__all__ = ["diagnose", "fails", "findings_of", "steps_to_rerun", "symptoms"]


def fails(trace: StageTrace) -> bool:
    """Whether a stage has a fault of severity error, so that later stages need not be run."""
    return any(finding.severity is Severity.ERROR for finding in findings_of(trace))
