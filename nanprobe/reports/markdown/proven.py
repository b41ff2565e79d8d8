"""The remedies that were tried, in Markdown: which helped, at what cost, and the lines to write."""

from __future__ import annotations

from nanprobe.findings import Remedy, Verification
from nanprobe.reports.markdown.page import Page
from nanprobe.reports.markdown.syntax import escape, fence, head, prose, row
from nanprobe.reports.terminal.proven import describe_verification, list_cells

_TRIED, _DIFF_LINES = 20, 60
_SHORT = 300


def write_proven(page: Page, verification: Verification) -> None:
    """A table of everything that was tried, verified first; then the diff of the first that helps."""
    tried = sorted(verification.tried, key=lambda remedy: not remedy.verified)
    helping = [remedy for remedy in tried if remedy.verified]
    blocks = [escape(describe_verification(verification, len(helping)))]
    if tried:
        titles = ["", *(title.lower() for title in list_cells(tried[0])), "what"]
        blocks.append("\n".join([head(titles), *(row(_write(remedy)) for remedy in tried[:_TRIED])]))
    shown = next((remedy for remedy in helping if remedy.diff), None)
    if shown is not None:
        lines = (shown.diff or "").splitlines()
        cut = [] if len(lines) <= _DIFF_LINES else ["…"]
        blocks += [f"What to write for **{prose(shown.text, _SHORT)}**:", fence([*lines[:_DIFF_LINES], *cut], "diff")]
    page.section("Proven remedies", *blocks)


def _write(remedy: Remedy) -> list[str]:
    told = remedy.text if remedy.verified else f"{remedy.text}: {remedy.reason}"
    return ["✔" if remedy.verified else "✖", *map(escape, list_cells(remedy).values()), prose(told, _SHORT)]
