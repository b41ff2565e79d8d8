"""The verdict: what broke, where, on what evidence, why, and what to do."""

from __future__ import annotations

from nanprobe.findings import BatchPlace, Finding, Kind, Remedy, Verification
from nanprobe.records import Phase, RunRecord, Source
from nanprobe.reports.evidence import list_evidence
from nanprobe.reports.excerpt import read_excerpt, show_line
from nanprobe.reports.numbers import count_noun, show_indices
from nanprobe.reports.terminal.canvas import Canvas
from nanprobe.reports.terminal.proven import draw_proven

KIND_WORDS: dict[Kind, str] = {
    Kind.OVERFLOW: "OVERFLOW",
    Kind.UNDERFLOW: "UNDERFLOW",
    Kind.DATA: "BAD DATA",
    Kind.GRAPH: "GRAPH FAULT",
    Kind.DIVERGENCE: "DIVERGENCE",
    Kind.MISUSE: "AMP MISUSE",
}


PHASE_WORDS: dict[Phase, str] = {
    Phase.DATA: "in the data",
    Phase.FORWARD: "in the forward pass",
    Phase.BACKWARD: "in the backward pass",
    Phase.UPDATE: "in the optimizer's update",
    Phase.CALLS: "in the order of calls",
}


def draw_verdict(canvas: Canvas, run: RunRecord, verdict: Finding, verification: Verification | None = None) -> None:
    """The root cause, in the order a reader asks for it; what was tried before what is only advised."""
    canvas.rule(("✖ ", "bold red"), (KIND_WORDS[verdict.kind], "bold red"), "  ", (verdict.code, "bold"), style="red")
    canvas.paragraph((verdict.title, "bold"))
    canvas.heading("WHERE")
    if verdict.source is not None:
        draw_source(canvas, verdict.source)
    canvas.rows(list_places(verdict))
    evidence = list_evidence(verdict, dtype_of(run, verdict))
    if evidence:
        canvas.heading("EVIDENCE")
        canvas.rows(evidence)
    if verdict.why:
        canvas.heading("WHY")
        canvas.paragraph(verdict.why, indent=2)
    remedies = verdict.remedies
    if verification is not None:
        draw_proven(canvas, verification)
        remedies = tuple(remedy for remedy in remedies if remedy.verified is None)
    if remedies:
        canvas.heading("WHAT TO DO")
        draw_remedies(canvas, remedies)


def draw_source(canvas: Canvas, source: Source) -> None:
    """File and line, then the line among its neighbours."""
    function = f", in {source.function}" if source.function else ""
    canvas.line("  ", (show_line(source), "bold cyan"), function, whole=True)
    lines = read_excerpt(source)
    digits = max(len(str(line.number)) for line in lines)
    for line in lines:
        style = "bold" if line.marked else "dim"
        sign = ("  ▶ ", "bold red") if line.marked else "    "
        canvas.line(sign, (f"{line.number:>{digits}} │ ", "dim"), (line.text, style))


def list_places(finding: Finding) -> list[tuple[str, str]]:
    """Everything else that says where: module, parameter, operation, step, batch."""
    rows = [("module", finding.module), ("parameter", finding.parameter), ("operation", finding.op)]
    places = [(label, text) for label, text in rows if text]
    if len(finding.parameters) > 1:
        places.append(("parameters", _list_names(finding.parameters)))
    places.append(("when", _show_when(finding)))
    return places + (list_batch(finding.batch) if finding.batch else [])


def _show_when(finding: Finding) -> str:
    when = f"{finding.stage.value} stage"
    if finding.step is not None:
        when += f", step {finding.step} (counted from 0)" if finding.step >= 0 else ", before the first step"
    return when if finding.phase is None else f"{when}, {PHASE_WORDS[finding.phase]}"


def list_batch(batch: BatchPlace) -> list[tuple[str, str]]:
    """The batch, its rows, the samples of the dataset behind them, and the columns."""
    rows = [] if batch.index is None else [("batch", str(batch.index))]
    named = (("rows", batch.rows), ("dataset indices", batch.dataset_indices), ("columns", batch.columns))
    return rows + [(label, show_indices(indices)) for label, indices in named if indices]


def draw_remedies(canvas: Canvas, remedies: tuple[Remedy, ...]) -> None:
    """Numbered, each with what came of it where it was tried."""
    for number, remedy in enumerate(remedies, 1):
        canvas.paragraph(remedy.text, lead=[(f"{number}. ", "bold")], indent=2)
        if remedy.verified is not None:
            over = f" over {count_noun(remedy.steps, 'step')}" if remedy.steps else ""
            sign, style, came = ("✔", "green", "it works") if remedy.verified else ("✖", "red", "it does not help")
            canvas.paragraph((f"{sign} tried{over}: {came}", style), indent=5)


def dtype_of(run: RunRecord, finding: Finding) -> str:
    """The format the finding's stage computed in."""
    return next((stage.dtype for stage in run.stages if stage.name is finding.stage), "float16")


def _list_names(names: tuple[str, ...], limit: int = 4) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
