"""The verdict: what broke, where, on what evidence, why, and what to do; or that there is none, and why not."""

from __future__ import annotations

from collections.abc import Sequence

from nanprobe.findings import Diagnosis, Finding, Remedy, Status, Verification
from nanprobe.records import ErrorRecord, RunRecord, Source
from nanprobe.reports.evidence import list_evidence
from nanprobe.reports.excerpt import read_excerpt, show_line
from nanprobe.reports.html.figures import badge, with_powers
from nanprobe.reports.html.markup import Child, Markup, element, join
from nanprobe.reports.html.tables import facts
from nanprobe.reports.numbers import count_noun
from nanprobe.reports.stage_summary import StageSummary
from nanprobe.reports.terminal.conclusion import list_advice
from nanprobe.reports.terminal.verdict import KIND_WORDS, list_places


def answer(run: RunRecord, diagnosis: Diagnosis, summaries: Sequence[StageSummary]) -> Markup:
    """The first thing on the page."""
    if diagnosis.verdict is not None:
        return _verdict(run, diagnosis.verdict, diagnosis.verification)
    return _healthy(summaries) if diagnosis.status is Status.HEALTHY else _inconclusive(run, diagnosis)


def banner(style: str, sign: str, word: str, code: str | None, title: str, *parts: Child) -> Markup:
    """The answer in a frame: a sign and a word, then a sentence in large type."""
    head = element("p", badge(sign, word, style), element("span", code, class_="code") if code else None, class_="kind")
    return element("section", head, element("h1", with_powers(title)), *parts, class_=f"answer {style}", id="verdict")


def _verdict(run: RunRecord, verdict: Finding, verification: Verification | None) -> Markup:
    evidence = evidence_rows(run, verdict)
    where = element(
        "div",
        element("h2", "Where"),
        show_source(verdict.source) if verdict.source is not None else None,
        facts(list_places(verdict)),
    )
    left = element("div", where, class_="half")
    right = element(
        "div",
        join([element("h2", "Evidence"), facts(evidence)]) if evidence else None,
        join([element("h2", "Why"), element("p", with_code(verdict.why))]) if verdict.why else None,
        class_="half",
    )
    remedies = shown_remedies(verdict.remedies, verification)
    todo = join([element("h2", "What to do"), remedy_list(remedies)]) if remedies else None
    columns = element("div", left, right, class_="halves")
    return banner("bad", "✖", KIND_WORDS[verdict.kind], verdict.code, verdict.title, columns, todo)


def evidence_rows(run: RunRecord, finding: Finding) -> list[tuple[str, str]]:
    """The evidence of a finding, labelled."""
    dtype = next((stage.dtype for stage in run.stages if stage.name is finding.stage), "float16")
    return [(label, with_powers(value)) for label, value in list_evidence(finding, dtype)]


def show_source(source: Source) -> Markup:
    """File and line, then the line among its neighbours."""
    function = f", in {source.function}" if source.function else None
    lines = [
        element(
            "span",
            element("span", str(line.number), class_="number"),
            element("span", line.text or " "),
            class_="line marked" if line.marked else "line",
        )
        for line in read_excerpt(source)
    ]
    name = element("figcaption", element("code", show_line(source)), function)
    return element("figure", name, element("pre", *lines), class_="source")


def remedy_list(remedies: Sequence[Remedy]) -> Markup:
    """Numbered, each with what came of it where it was tried."""
    return element("ol", *(element("li", with_code(r.text), _tried(r)) for r in remedies), class_="remedies")


def shown_remedies(remedies: Sequence[Remedy], verification: Verification | None) -> list[Remedy]:
    """What to do: all remedies, or, where they were tried, those that help and those that were not tried."""
    return [remedy for remedy in remedies if verification is None or remedy.verified is not False]


def with_code(words: str) -> Markup:
    """Words in which what stands between backquotes is code."""
    pieces = words.split("`")
    if len(pieces) % 2 == 0:
        return join([with_powers(words)])
    return join(element("code", piece) if k % 2 else with_powers(piece) for k, piece in enumerate(pieces))


def _tried(remedy: Remedy) -> Markup | None:
    if remedy.verified is None:
        return None
    over = f"tried over {count_noun(remedy.steps, 'step')}" if remedy.steps else "tried"
    came = badge("✔", f"{over}: it works", "good") if remedy.verified else badge("✖", f"{over}: no help", "bad")
    return element("div", came)


def _healthy(summaries: Sequence[StageSummary]) -> Markup:
    steps = sum(summary.steps for summary in summaries)
    title = f"No error found in {count_noun(steps, 'step')} of {count_noun(len(summaries), 'stage')}"
    return banner("good", "✔", "HEALTHY", None, title)


def _inconclusive(run: RunRecord, diagnosis: Diagnosis) -> Markup:
    failed = next((stage for stage in run.stages if stage.error is not None), None)
    error = None
    if failed is not None and failed.error is not None:
        error = join([element("h2", f"The script's error, in the {failed.name.value} stage"), _error(failed.error)])
    advice = element("ol", *(element("li", text) for text in list_advice(run)), class_="remedies")
    return banner(
        "warn",
        "?",
        "COULD NOT TELL",
        None,
        "Not enough was seen to call this training healthy or failing",
        reasons(diagnosis),
        error,
        element("h2", "What to do"),
        advice,
    )


def reasons(diagnosis: Diagnosis) -> Markup | None:
    """What could not be told and why, a point each."""
    if not diagnosis.reasons:
        return None
    points = element("ul", *(element("li", reason) for reason in diagnosis.reasons))
    return join([element("h2", "What could not be told, and why"), points])


def _error(error: ErrorRecord) -> Markup:
    last = f"{error.kind}: {error.message}"
    lines = [*(line.rstrip() for line in error.traceback)]
    if not lines or not lines[-1].startswith(error.kind):
        lines.append(last)
    source = show_source(error.source) if error.source is not None else None
    return join([source, element("pre", "\n".join(lines), class_="traceback")])
