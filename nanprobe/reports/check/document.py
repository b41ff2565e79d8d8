"""The check's JSON document, schema version 1. Absent things are null."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import nanprobe
from nanprobe.recipe.outcome import CheckOutcome, verdict_of
from nanprobe.reports.document import SCHEMA_VERSION, build_finding, to_plain
from nanprobe.reports.excerpt import shorten_path


class CheckJsonReport:
    """The document, indented, always strict JSON."""

    def render(self, outcomes: Sequence[CheckOutcome]) -> str:
        """The document as text, ending in a newline."""
        return json.dumps(build_check_document(outcomes), indent=2, allow_nan=False) + "\n"


def build_check_document(outcomes: Sequence[CheckOutcome]) -> dict[str, Any]:
    """All outcomes as plain, strictly JSON-able data; `found` is a finding as in the diagnosis' document."""
    return {
        "schema_version": SCHEMA_VERSION,
        "nanprobe": nanprobe.__version__,
        "verdict": verdict_of(tuple(outcomes)).value,
        "checks": [_build_outcome(outcome) for outcome in outcomes],
    }


def _build_outcome(outcome: CheckOutcome) -> dict[str, Any]:
    plain = {
        "name": outcome.name,
        "recipe": shorten_path(str(outcome.path.absolute())),
        "about": outcome.about,
        "verdict": outcome.verdict,
        "seconds": outcome.seconds,
        "differences": [asdict(difference) for difference in outcome.comparison.differences],
        "reasons": outcome.comparison.reasons,
        "status": outcome.status,
        "found": None if outcome.finding is None else build_finding(outcome.finding),
        "run": outcome.run_directory,
        "sweep_run": outcome.sweep_directory,
    }
    return {key: to_plain(value) for key, value in plain.items()}
