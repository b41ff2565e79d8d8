"""The HTML report: one file that opens from disk, without network, in light and dark, on paper, narrow and wide."""

from __future__ import annotations

from nanprobe.findings import Diagnosis, Status
from nanprobe.records import RunRecord
from nanprobe.reports.html.chain import chain_section
from nanprobe.reports.html.exponents import exponent_section
from nanprobe.reports.html.findings import finding_section
from nanprobe.reports.html.headroom import headroom_section
from nanprobe.reports.html.layers import layer_section
from nanprobe.reports.html.losses import loss_section
from nanprobe.reports.html.markup import Child, element
from nanprobe.reports.html.page import masthead, page
from nanprobe.reports.html.proven import proven_section
from nanprobe.reports.html.ranges import range_section
from nanprobe.reports.html.stages import stage_section
from nanprobe.reports.html.verdict import answer
from nanprobe.reports.numbers import count_noun
from nanprobe.reports.stage_summary import summarize_stages
from nanprobe.reports.terminal.closing import list_next
from nanprobe.reports.terminal.header import show_target

__all__ = ["HtmlReport"]


class HtmlReport:
    """The report for a browser."""

    def render(self, run: RunRecord, diagnosis: Diagnosis) -> str:
        """The page as text, ending in a newline."""
        summaries = summarize_stages(run.stages, diagnosis)
        verdict = diagnosis.verdict
        sections = [
            answer(run, diagnosis, summaries),
            *([chain_section(verdict)] if verdict is not None else []),
            proven_section(run, diagnosis),
            finding_section(run, diagnosis),
            stage_section(run, summaries),
            loss_section(run),
            headroom_section(run, diagnosis),
            range_section(run, diagnosis),
            exponent_section(run, diagnosis),
            layer_section(diagnosis),
        ]
        details = [run.device, f"torch {run.torch_version}", f"nanprobe {run.nanprobe_version}"]
        details += [f"{count_noun(run.steps, 'step')} a stage", f"seed {run.seed}"]
        title = f"{_word(diagnosis)}: {run.target.path}"
        heading = masthead("diagnose", show_target(run.target), details)
        return page(f"nanprobe: {title}", heading, sections, closing(list_next(run, diagnosis)))


def closing(commands: list[tuple[str, str]]) -> list[Child]:
    """What to run next, and what each is for."""
    items = [element("li", element("code", command), f" {purpose}") for command, purpose in commands]
    return [element("h2", "Next"), element("ul", *items)] if items else []


def _word(diagnosis: Diagnosis) -> str:
    if diagnosis.verdict is not None:
        return f"{diagnosis.verdict.kind.value} {diagnosis.verdict.code}"
    return "healthy" if diagnosis.status is Status.HEALTHY else "could not tell"
