"""What every report is: a function from a run and its diagnosis to text."""

from __future__ import annotations

from typing import Protocol

from nanprobe.findings import Diagnosis
from nanprobe.records import RunRecord


class Report(Protocol):
    """Renders a run; reads nothing but its arguments and the user's source lines, and never prints."""

    def render(self, run: RunRecord, diagnosis: Diagnosis) -> str:
        """The whole report, ending in a newline."""
        ...
