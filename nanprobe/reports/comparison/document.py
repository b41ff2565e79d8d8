"""The comparison's JSON document, schema version 1. Absent things are null; every layer of either run has a row."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from nanprobe.reports.comparison.model import Comparison, LayerChange, Side, StageChange, StageFigures
from nanprobe.reports.document import SCHEMA_VERSION, build_finding, to_plain


def render_document(comparison: Comparison) -> str:
    """The document as text, ending in a newline."""
    return json.dumps(build_comparison(comparison), indent=2, allow_nan=False) + "\n"


def build_comparison(comparison: Comparison) -> dict[str, Any]:
    """The whole comparison as plain, strictly JSON-able data."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "change": comparison.change,
        "before": _build_side(comparison.before),
        "after": _build_side(comparison.after),
        "notes": comparison.notes,
        "findings": {
            "gone": [build_finding(finding) for finding in comparison.gone],
            "not_looked_for": [build_finding(finding) for finding in comparison.unseen],
            "new": [build_finding(finding) for finding in comparison.new],
            "same": [{"before": build_finding(one), "after": build_finding(other)} for one, other in comparison.same],
        },
        "stages": [_build_stage(change) for change in comparison.stages],
        "layers_of_stage": comparison.stage,
        "layers": [_build_layer(change) for change in comparison.layers],
    }
    return {key: to_plain(value) for key, value in document.items()}


def _build_side(side: Side) -> dict[str, Any]:
    run, diagnosis = side.run, side.diagnosis
    return {
        "directory": run.directory,
        "target": {"path": run.target.path, "argv": run.target.argv, "mode": run.target.mode},
        "nanprobe": run.nanprobe_version,
        "torch": run.torch_version,
        "device": run.device,
        "steps": run.steps,
        "seed": run.seed,
        "status": diagnosis.status,
        "verdict": None if diagnosis.verdict is None else build_finding(diagnosis.verdict),
        "reasons": diagnosis.reasons,
    }


def _build_stage(change: StageChange) -> dict[str, Any]:
    return {
        "name": change.name,
        "before": None if change.before is None else _build_figures(change.before),
        "after": None if change.after is None else _build_figures(change.after),
    }


def _build_figures(figures: StageFigures) -> dict[str, Any]:
    summary = figures.summary
    return {
        "outcome": summary.trace.outcome,
        "result": summary.result,
        "steps": summary.steps,
        "skipped_steps": summary.skipped_steps,
        "first_nonfinite_step": summary.first_nonfinite_step,
        "final_loss": figures.final_loss,
        "verdict": None if figures.verdict is None else build_finding(figures.verdict),
    }


def _build_layer(change: LayerChange) -> dict[str, Any]:
    return {
        "name": change.name,
        "changed": change.changed,
        "before": None if change.before is None else asdict(change.before),
        "after": None if change.after is None else asdict(change.after),
    }
