"""Cases for remedies: a script's text with a finding at the line that carries a mark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import builders
from nanprobe.catalogue import entry
from nanprobe.findings import Finding, Severity
from nanprobe.records import CallRecord, Phase, Source, StageName, StageTrace
from nanprobe.remedies.candidate import Candidate, Case
from nanprobe.remedies.sources import Sources

MARK = "  # here"


def finding(code: str, source: Source | None, stage: StageName = StageName.FP32, **details: Any) -> Finding:
    plain: dict[str, Any] = {"step": 3, "phase": Phase.FORWARD}
    return Finding(code, entry(code).kind, Severity.ERROR, code, stage, source=source, **{**plain, **details})


def case(
    folder: Path,
    text: str,
    code: str,
    stage: StageName = StageName.FP32,
    *,
    calls: dict[str, int] | None = None,
    trace: StageTrace | None = None,
    **details: Any,
) -> Case:
    """A case whose finding is at the marked line; `calls` are names with their lines."""
    path = folder / "train.py"
    path.write_text(text, encoding="utf-8")
    lines = text.splitlines()
    marked = next((n for n, line in enumerate(lines, 1) if line.endswith(MARK)), 1)
    records = tuple(
        CallRecord(0, 0, name, Source(str(path), line, lines[line - 1].strip()), {})
        for name, line in (calls or {"backward": len(lines)}).items()
    )
    seen = trace or builders.trace(stage, calls=records)
    source = Source(str(path), marked, lines[marked - 1].strip())
    stages = (seen,) if stage is StageName.FP32 else (builders.trace(StageName.FP32), seen)
    return Case(finding(code, source, stage, **details), builders.run(*stages), Sources(str(folder)))


def edited(candidate: Candidate) -> str:
    """The one text that a candidate changes."""
    (edit,) = candidate.treatment.edits
    return edit.text


def changed_lines(before: str, after: str) -> list[str]:
    """Lines of the new text that the old one does not have."""
    known = before.splitlines()
    return [line for line in after.splitlines() if line not in known]
