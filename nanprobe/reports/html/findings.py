"""What else was found: a line each, with its reasons and remedies when asked for."""

from __future__ import annotations

from nanprobe.findings import Diagnosis, Finding, Severity
from nanprobe.records import RunRecord
from nanprobe.reports.html.chain import chain_list
from nanprobe.reports.html.figures import SEVERITY_SIGNS, badge
from nanprobe.reports.html.markup import Markup, element, join
from nanprobe.reports.html.tables import facts, folded, section
from nanprobe.reports.html.verdict import evidence_rows, remedy_list, show_source, with_code
from nanprobe.reports.terminal.findings import show_place


def finding_section(run: RunRecord, diagnosis: Diagnosis) -> Markup:
    """All findings but the verdict, the gravest first."""
    order = list(Severity)
    rest = [finding for finding in diagnosis.findings if finding is not diagnosis.verdict]
    rest.sort(key=lambda finding: order.index(finding.severity))
    return section("Also found", "findings", *(_entry(run, finding) for finding in rest))


def _entry(run: RunRecord, finding: Finding) -> Markup:
    sign, style = SEVERITY_SIGNS[finding.severity]
    head = element(
        "span",
        badge(sign, finding.severity.value, style),
        element("span", finding.code, class_="code"),
        element("span", finding.title),
        element("small", show_place(finding)),
        class_="finding",
    )
    parts = [
        element("p", with_code(finding.why)) if finding.why else None,
        show_source(finding.source) if finding.source is not None else None,
        facts(evidence_rows(run, finding)),
        remedy_list(finding.remedies) if finding.remedies else None,
        join([element("h3", "From origin to symptom"), chain_list(finding)]) if finding.chain else None,
    ]
    return folded(head, element("div", *parts, class_="body"))
