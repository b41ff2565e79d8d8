"""The JSON document, schema version 1: the contract with scripts that read nanprobe's answer.

Absent things are null. Numbers that are not finite are the strings "NaN", "Infinity", "-Infinity".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from enum import Enum
from typing import Any

from nanprobe.findings import BatchPlace, ChainLink, Diagnosis, Finding, LayerRow, Remedy, Verification
from nanprobe.records import RunRecord, Source
from nanprobe.reports.excerpt import shorten_path
from nanprobe.reports.stage_summary import StageSummary, summarize_stages

SCHEMA_VERSION = 1


def build_document(run: RunRecord, diagnosis: Diagnosis) -> dict[str, Any]:
    """The whole answer as plain, strictly JSON-able data."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "nanprobe": run.nanprobe_version,
        "torch": run.torch_version,
        "device": run.device,
        "target": {"path": run.target.path, "argv": list(run.target.argv), "mode": run.target.mode},
        "status": diagnosis.status,
        "verdict": None if diagnosis.verdict is None else build_finding(diagnosis.verdict),
        "findings": [build_finding(finding) for finding in diagnosis.findings],
        "stages": [_build_stage(summary) for summary in summarize_stages(run.stages, diagnosis)],
        "layers": [_build_layer(row) for row in diagnosis.layers],
        "verification": None if diagnosis.verification is None else _build_verification(diagnosis.verification),
    }
    return {key: to_plain(value) for key, value in document.items()}


def build_finding(finding: Finding) -> dict[str, Any]:
    """One finding with all its keys; its `source.file` is relative to the working directory when inside it."""
    return {
        "code": finding.code,
        "kind": finding.kind,
        "severity": finding.severity,
        "title": finding.title,
        "stage": finding.stage,
        "step": finding.step,
        "phase": finding.phase,
        "op": finding.op,
        "module": finding.module,
        "parameter": finding.parameter,
        "source": None if finding.source is None else _build_source(finding.source),
        "batch": None if finding.batch is None else _build_batch(finding.batch),
        "evidence": finding.evidence,
        "why": finding.why,
        "remedies": [_build_remedy(remedy) for remedy in finding.remedies],
        "chain": [_build_link(link) for link in finding.chain],
    }


def _build_link(link: ChainLink) -> dict[str, Any]:
    return {
        "op": link.op,
        "tensor": link.tensor,
        "module": link.module,
        "source": None if link.source is None else _build_source(link.source),
        "phase": link.phase,
        "before": None if link.before is None else asdict(link.before),
        "after": None if link.after is None else asdict(link.after),
        "skipped": link.skipped,
    }


def _build_remedy(remedy: Remedy) -> dict[str, Any]:
    cost = remedy.cost
    return {
        "text": remedy.text,
        "verified": remedy.verified,
        "steps": remedy.steps,
        "cost": None if cost is None else {"time_ratio": cost.time_ratio, "memory_ratio": cost.memory_ratio},
        "kind": remedy.kind,
        "reason": remedy.reason,
        "final_loss": remedy.final_loss,
        "reference_loss": remedy.reference_loss,
        "gradient_error": remedy.gradient_error,
        "diff": remedy.diff,
        "losses": list(remedy.losses) if remedy.losses else None,
    }


def _build_verification(verification: Verification) -> dict[str, Any]:
    return {
        "stage": verification.stage,
        "tried": len(verification.tried),
        "verified": sum(bool(remedy.verified) for remedy in verification.tried),
        "runs": verification.runs,
        "seconds": verification.seconds,
        "budget": verification.budget,
        "stopped": verification.stopped,
    }


def to_plain(value: object) -> Any:
    """Any value as strict JSON: enums by their value, tuples and sets as lists, non-finite numbers by name."""
    if isinstance(value, Enum):
        return to_plain(value.value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _name_nonfinite(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, Iterable) else str(value)


def _name_nonfinite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _build_source(source: Source) -> dict[str, Any]:
    return {"file": shorten_path(source.file), "line": source.line, "code": source.code}


def _build_batch(batch: BatchPlace) -> dict[str, Any]:
    return {
        "index": batch.index,
        "rows": batch.rows,
        "dataset_indices": batch.dataset_indices,
        "columns": batch.columns,
    }


def _build_stage(summary: StageSummary) -> dict[str, Any]:
    trace = summary.trace
    return {
        "name": trace.name,
        "dtype": trace.dtype,
        "as_written": trace.as_written,
        "outcome": trace.outcome,
        "reason": trace.reason,
        "steps": summary.steps,
        "skipped_steps": summary.skipped_steps,
        "first_nonfinite_step": summary.first_nonfinite_step,
        "loss": [step.loss for step in trace.steps],
        "loss_scale": [step.loss_scale for step in trace.steps],
        "seconds": trace.seconds,
    }


def _build_layer(row: LayerRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "module": row.module,
        "kind": row.kind,
        "grad_abs_max": row.grad_abs_max,
        "flushed_fraction": row.flushed_fraction,
        "lost_norm_fraction": row.lost_norm_fraction,
        "headroom_bits": row.headroom_bits,
        "nonfinite_steps": row.nonfinite_steps,
    }
