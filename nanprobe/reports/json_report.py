"""The JSON report: the document of `nanprobe.reports.document`, as text."""

from __future__ import annotations

import json

from nanprobe.findings import Diagnosis
from nanprobe.records import RunRecord
from nanprobe.reports.document import build_document


class JsonReport:
    """The document, indented, always strict JSON."""

    def render(self, run: RunRecord, diagnosis: Diagnosis) -> str:
        """The document as text, ending in a newline."""
        return json.dumps(build_document(run, diagnosis), indent=2, allow_nan=False) + "\n"
