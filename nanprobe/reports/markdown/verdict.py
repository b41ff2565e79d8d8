"""The verdict in Markdown: what broke, where, on what evidence, why, and what to do."""

from __future__ import annotations

from nanprobe.findings import Finding, Remedy, Verification
from nanprobe.records import RunRecord, Source
from nanprobe.reports.evidence import list_evidence
from nanprobe.reports.excerpt import read_excerpt, show_line
from nanprobe.reports.markdown.page import Page
from nanprobe.reports.markdown.proven import write_proven
from nanprobe.reports.markdown.syntax import code, escape, fence, head, prose, row
from nanprobe.reports.numbers import count_noun
from nanprobe.reports.terminal.closing import shorten_home
from nanprobe.reports.terminal.verdict import KIND_WORDS, dtype_of, list_places

_CODE_PLACES = ("module", "parameter", "parameters", "operation")
LONGEST_PROSE = 4000


def write_verdict(page: Page, run: RunRecord, verdict: Finding, verification: Verification | None = None) -> None:
    """The root cause, in the order a reader asks for it; what was tried before what is only advised."""
    page.add(f"## ✖ {KIND_WORDS[verdict.kind]} ({verdict.code})\n\n**{prose(verdict.title)}**")
    if verdict.source is not None:
        page.add(quote_source(verdict.source))
    places = [(label, code(text) if label in _CODE_PLACES else escape(text)) for label, text in list_places(verdict)]
    page.add(_list_rows("where", places))
    evidence = list_evidence(verdict, dtype_of(run, verdict))
    if evidence:
        page.section("Evidence", _list_rows("measured", [(label, escape(text)) for label, text in evidence]))
    if verdict.why:
        page.section("Why", prose(verdict.why, LONGEST_PROSE))
    remedies = verdict.remedies
    if verification is not None:
        write_proven(page, verification)
        remedies = tuple(remedy for remedy in remedies if remedy.verified is None)
    if remedies:
        page.section("What to do", write_remedies(remedies))


def quote_source(source: Source) -> str:
    """File and line, then the line among its neighbours, marked."""
    function = f", in {code(source.function)}" if source.function else ""
    excerpt = read_excerpt(source)
    lines = [
        f"{line.text}  # <-- line {line.number}" if line.marked and len(excerpt) > 1 else line.text for line in excerpt
    ]
    return f"{code(shorten_home(show_line(source)))}{function}:\n\n{fence(lines, 'python')}"


def write_remedies(remedies: tuple[Remedy, ...]) -> str:
    """A numbered list, each with what came of it where it was tried."""
    lines = []
    for number, remedy in enumerate(remedies, 1):
        lines.append(f"{number}. {prose(remedy.text)}")
        if remedy.verified is not None:
            over = f" over {count_noun(remedy.steps, 'step')}" if remedy.steps else ""
            came = "✔ it works" if remedy.verified else "✖ it does not help"
            lines[-1] += f" *(tried{over}: {came})*"
    return "\n".join(lines)


def _list_rows(title: str, rows: list[tuple[str, str]]) -> str:
    return "\n".join([head([title, ""]), *(row([escape(label), text]) for label, text in rows)])
