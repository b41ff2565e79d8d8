"""The sweep's JSON document, schema version 1: the head of the diagnosis' document, and what every scale does.

`window` is null where no scale is safe; `conflict` then says which layer overflows and which needs more. Fractions are
of 1, gradients unscaled. Absent things are null; numbers that are not finite are "NaN", "Infinity", "-Infinity".
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from nanprobe.loss_scale.conflict import find_conflict
from nanprobe.loss_scale.outcomes import ScaleRow
from nanprobe.loss_scale.policies import ScalerPolicy
from nanprobe.loss_scale.replay import PolicyOutcome, Spread
from nanprobe.loss_scale.result import Advice, Confirmation, RealRun, ScalerHistory, SweepResult
from nanprobe.loss_scale.window import LayerWindow, Window
from nanprobe.reports.document import SCHEMA_VERSION, to_plain


class SweepJsonReport:
    """The document, indented, always strict JSON."""

    def render(self, result: SweepResult) -> str:
        """The document as text, ending in a newline."""
        return json.dumps(build_sweep_document(result), indent=2, allow_nan=False) + "\n"


def build_sweep_document(result: SweepResult) -> dict[str, Any]:
    """The whole answer as plain, strictly JSON-able data."""
    run = result.run
    document = {
        "schema_version": SCHEMA_VERSION,
        "nanprobe": run.nanprobe_version,
        "torch": run.torch_version,
        "device": run.device,
        "target": {"path": run.target.path, "argv": list(run.target.argv), "mode": run.target.mode},
        "status": result.status,
        "reasons": result.reasons,
        "notices": run.notices,
        "number_format": result.number_format,
        "steps": run.steps,
        "seed": run.seed,
        "measured_scale": run.measured_scale,
        "limits": asdict(result.limits),
        "window": _build_window(result.window),
        "conflict": _build_conflict(result.window),
        "layers": [_build_layer(row) for row in result.layers],
        "scales": [_build_scale(row) for row in result.scales],
        "step_highest_scales": result.step_highest_scales,
        "scaler": None if result.scaler is None else _build_scaler(result.scaler),
        "bootstrap": result.bootstrap or None,
        "policies": [_build_outcome(outcome) for outcome in result.policies],
        "growth_intervals": [_build_outcome(outcome) for outcome in result.growth_intervals],
        "advice": None if result.advice is None else _build_advice(result.advice),
        "confirmations": [_build_confirmation(each) for each in result.confirmations],
        "runs": [_build_real_run(each) for each in result.real_runs],
    }
    return {key: to_plain(value) for key, value in document.items()}


def _build_window(window: Window | None) -> dict[str, Any] | None:
    """The safe scales; an edge that nothing sets has no layer."""
    if window is None or not window.is_safe:
        return None
    return {
        "lowest_scale": window.lowest_scale,
        "highest_scale": window.highest_scale,
        "low_set_by": window.low_set_by,
        "high_set_by": window.high_set_by,
        "bits": window.bits,
    }


def _build_conflict(window: Window | None) -> dict[str, Any] | None:
    conflict = None if window is None else find_conflict(window)
    if conflict is None:
        return None
    return {
        "overflowing_layer": conflict.overflowing_layer,
        "overflows_from": conflict.overflows_from,
        "needing_layer": conflict.needing_layer,
        "needed_scale": conflict.needed_scale,
        "text": f"no safe scale: {conflict.describe()}",
    }


def _build_layer(row: LayerWindow) -> dict[str, Any]:
    return {
        "name": row.layer,
        "window": _build_window(row.window),
        "conflict": _build_conflict(row.window),
        "tensors": row.tensors,
        "grad_abs_max": row.grad_abs_max,
        "scales": [_build_scale(each) for each in row.scales],
    }


def _build_scale(row: ScaleRow) -> dict[str, Any]:
    return {
        "scale": row.scale,
        "overflowing_tensors": row.overflowing_tensors,
        "overflowing_steps": row.overflowing_steps,
        "flushed_fraction": row.flushed_fraction,
        "lost_norm_fraction": row.lost_norm_fraction,
    }


def _build_policy(policy: ScalerPolicy) -> dict[str, Any]:
    settings = asdict(policy)
    return {key: settings[key] for key in settings if key not in ("max_scale", "stop_scale")} | {
        "max_scale": None if settings["max_scale"] == float("inf") else settings["max_scale"]
    }


def _build_scaler(scaler: ScalerHistory) -> dict[str, Any]:
    return {
        **_build_policy(scaler.policy),
        "as_written": scaler.as_written,
        "scales": scaler.scales,
        "skipped": scaler.skipped,
        "skipped_steps": scaler.skipped_steps,
        "effective_step_fraction": scaler.effective_step_fraction,
    }


def _build_outcome(outcome: PolicyOutcome) -> dict[str, Any]:
    """Means over the resamples under the plain names, their extremes beside them."""
    recorded = outcome.recorded
    return {
        **_build_policy(outcome.policy),
        "steps": outcome.extended_steps,
        "skipped_steps": outcome.skipped_steps.mean,
        "effective_step_fraction": outcome.effective_step_fraction.mean,
        "flushed_fraction": None if outcome.flushed_fraction is None else outcome.flushed_fraction.mean,
        "lowest_scale": outcome.lowest_scale,
        "highest_scale": outcome.highest_scale,
        "spread": {
            "skipped_steps": _build_spread(outcome.skipped_steps),
            "effective_step_fraction": _build_spread(outcome.effective_step_fraction),
            "flushed_fraction": None if outcome.flushed_fraction is None else _build_spread(outcome.flushed_fraction),
        },
        "resamples_stopped_by_an_error": outcome.stopped,
        "recorded": {
            "steps": recorded.steps,
            "skipped_steps": recorded.skipped_steps,
            "effective_step_fraction": recorded.effective_step_fraction,
            "flushed_fraction": recorded.flushed_fraction,
            "lowest_scale": recorded.lowest_scale,
            "highest_scale": recorded.highest_scale,
            "stopped_at": recorded.stopped_at,
        },
    }


def _build_spread(spread: Spread) -> list[float]:
    return [spread.low, spread.high]


def _build_advice(advice: Advice) -> dict[str, Any]:
    return {
        "init_scale": advice.init_scale,
        "growth_interval": advice.growth_interval,
        "why": advice.why,
        "code": advice.code,
        "remedies": advice.remedies,
    }


def _build_confirmation(confirmation: Confirmation) -> dict[str, Any]:
    return {
        "edge": confirmation.edge,
        "agrees": confirmation.agrees,
        "predicted": _build_scale(confirmation.predicted),
        "real": _build_real_run(confirmation.real),
    }


def _build_real_run(run: RealRun) -> dict[str, Any]:
    return asdict(run)
