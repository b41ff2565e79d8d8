"""Reports of `nanprobe check`: how every recipe fared, one renderer a format. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from typing_extensions import assert_never

if TYPE_CHECKING:  # the command line loads this for --help, which has no use for a YAML reader
    from nanprobe.recipe.outcome import CheckOutcome

__all__ = ["CheckFormat", "CheckReport", "make_check_report"]


class CheckFormat(str, Enum):
    """The values of `nanprobe check --format`."""

    TERMINAL = "terminal"
    JSON = "json"
    JUNIT = "junit"
    GITHUB = "github"


class CheckReport(Protocol):
    """Renders outcomes; reads nothing but its argument, and never prints."""

    def render(self, outcomes: Sequence[CheckOutcome]) -> str:
        """The whole report, ending in a newline."""
        ...


def make_check_report(form: CheckFormat, *, width: int = 80, color: bool = False) -> CheckReport:
    """The renderer of a format. Width (columns) and colour concern the terminal only."""
    if form is CheckFormat.TERMINAL:
        from nanprobe.reports.check.terminal import CheckTerminalReport

        return CheckTerminalReport(width=width, color=color)
    if form is CheckFormat.JSON:
        from nanprobe.reports.check.document import CheckJsonReport

        return CheckJsonReport()
    if form is CheckFormat.JUNIT:
        from nanprobe.reports.check.junit import CheckJunitReport

        return CheckJunitReport()
    if form is CheckFormat.GITHUB:
        from nanprobe.reports.check.github import CheckGithubReport

        return CheckGithubReport()
    assert_never(form)
