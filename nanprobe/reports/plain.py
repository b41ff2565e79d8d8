"""A finding as plain text, for logs and test reports: no width, no colour, nothing cut off."""

from __future__ import annotations

from nanprobe.findings import Finding
from nanprobe.records import RunRecord
from nanprobe.reports.evidence import list_evidence
from nanprobe.reports.excerpt import show_line


def write_finding(run: RunRecord, finding: Finding) -> str:
    """Title, place, evidence, why and what to do, in this order."""
    dtype = next((stage.dtype for stage in run.stages if stage.name is finding.stage), "float16")
    evidence = [f"  {label}: {value}" for label, value in list_evidence(finding, dtype)]
    remedies = [f"  {number}. {remedy.text}" for number, remedy in enumerate(finding.remedies, 1)]
    parts = [
        f"{finding.severity.value} {finding.code}: {finding.title}",
        f"where: {write_place(finding)}",
        *(["evidence:", *evidence] if evidence else []),
        *([f"why: {finding.why}"] if finding.why else []),
        *(["what to do:", *remedies] if remedies else []),
    ]
    return "\n".join(parts)


def write_place(finding: Finding) -> str:
    """Everything that says where, on one line: "train.py:41, module encoder.3, amp stage, step 12"."""
    step = f", step {finding.step}" if finding.step is not None and finding.step >= 0 else ""
    parts = [
        show_line(finding.source) if finding.source is not None else None,
        f"module {finding.module}" if finding.module else None,
        f"parameter {finding.parameter}" if finding.parameter else None,
        f"{finding.stage.value} stage{step}",
    ]
    return ", ".join(part for part in parts if part)
