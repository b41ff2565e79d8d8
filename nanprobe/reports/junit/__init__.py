"""The JUnit report: for each stage whether it ran, for each kind of fault whether it was found."""

from __future__ import annotations

from dataclasses import dataclass, field

from nanprobe.fail_on import FailOn
from nanprobe.findings import Diagnosis, Finding, Kind, Status
from nanprobe.records import Outcome, RunRecord, StageTrace
from nanprobe.reports.junit.cases import TestCase, render_suite
from nanprobe.reports.numbers import count_noun
from nanprobe.reports.plain import write_finding
from nanprobe.reports.stage_summary import summarize_stage
from nanprobe.reports.terminal.header import show_target

__all__ = ["JunitReport", "TestCase", "render_suite"]

STAGES, FINDINGS = "nanprobe.stages", "nanprobe.findings"
KIND_NAMES: dict[Kind, str] = {
    Kind.OVERFLOW: "no overflow",
    Kind.UNDERFLOW: "no underflow",
    Kind.DATA: "no bad data",
    Kind.GRAPH: "no graph fault",
    Kind.DIVERGENCE: "no divergence",
    Kind.MISUSE: "no AMP misuse",
}


@dataclass(frozen=True, slots=True)
class JunitReport:
    """A suite of one case a stage and one a kind of finding, always the same ones, so that CI can follow them."""

    failing: FailOn = field(default_factory=lambda: FailOn.parse("error"))  # findings that make a case fail

    def render(self, run: RunRecord, diagnosis: Diagnosis) -> str:
        """The document, ending in a newline."""
        cases = [_stage_case(trace, diagnosis) for trace in run.stages]
        cases += [self._kind_case(kind, run, diagnosis) for kind in Kind]
        return render_suite(f"nanprobe diagnose {show_target(run.target)}", cases)

    def _kind_case(self, kind: Kind, run: RunRecord, diagnosis: Diagnosis) -> TestCase:
        """Failed with the findings that fail, else passed with the others as output, or not looked at in full."""
        found = [finding for finding in diagnosis.findings if finding.kind is kind]
        failing = [finding for finding in found if self.failing.fails(finding)]
        others = [finding for finding in found if finding not in failing]
        return TestCase(
            name=KIND_NAMES[kind],
            group=FINDINGS,
            failure=_describe(failing, run) if failing else None,
            skipped=None if failing else _unseen(run, diagnosis),
            output="\n\n".join(write_finding(run, finding) for finding in others),
        )


def _describe(findings: list[Finding], run: RunRecord) -> tuple[str, str]:
    first = findings[0]
    texts = [write_finding(run, finding) for finding in findings]
    texts.append(f"run: {run.directory}\nnext: nanprobe explain {first.code}")
    return f"{first.code}: {first.title}", "\n\n".join(texts)


def _unseen(run: RunRecord, diagnosis: Diagnosis) -> str | None:
    """Why a kind that was not found may be there all the same; None where every stage was seen to its end."""
    if diagnosis.status is Status.INCONCLUSIVE:
        return f"could not be told: {'; '.join(diagnosis.reasons)}"
    cut = [trace for trace in run.stages if trace.outcome is not Outcome.COMPLETED]
    if not cut:
        return None
    return "could not be told: " + "; ".join(
        f"{trace.name.value} {trace.outcome.value}: {trace.reason}" for trace in cut
    )


def _stage_case(trace: StageTrace, diagnosis: Diagnosis) -> TestCase:
    """Whether a stage ran; what was found in it has cases of its own."""
    summary = summarize_stage(trace, diagnosis)
    name = f"{trace.name.value} stage runs"
    ran = f"{count_noun(summary.steps, 'step')} in {trace.dtype}, {summary.skipped_steps} skipped"
    if trace.outcome is Outcome.SKIPPED:
        return TestCase(name, STAGES, skipped=trace.reason or "no reason given")
    if trace.outcome is Outcome.COMPLETED and trace.steps:
        return TestCase(name, STAGES, trace.seconds, output=ran)
    reason = trace.reason or "the script ended without a training step"
    lines = [reason, ran, *(trace.error.traceback if trace.error is not None else ())]
    return TestCase(name, STAGES, trace.seconds, error=(reason, "\n".join(line.rstrip() for line in lines)))
