"""The remedies that were tried: a table, losses before and after those that help, and the lines to write."""

from __future__ import annotations

from nanprobe.findings import Diagnosis, Remedy, Verification
from nanprobe.records import RunRecord, StageName
from nanprobe.reports.html.charts import Curve, Lane, Values, step_chart
from nanprobe.reports.html.figures import badge
from nanprobe.reports.html.losses import is_broken
from nanprobe.reports.html.markup import Child, Markup, element, join
from nanprobe.reports.html.tables import Column, folded, legend, section, table
from nanprobe.reports.html.verdict import with_code
from nanprobe.reports.numbers import NOT_MEASURED, count_noun, show_number, show_percent
from nanprobe.reports.terminal.proven import describe_verification

CHARTS = 3  # remedies whose losses are drawn
_COLUMNS = (
    Column("remedy"),
    Column("came of it"),
    Column("steps", number=True),
    Column("final loss", number=True),
    Column("FP32's", number=True),
    Column("gradient error", number=True),
    Column("time", number=True),
    Column("memory", number=True),
)
_DIFF_STYLES = {"+": "added", "-": "removed", "@": "place"}


def proven_section(run: RunRecord, diagnosis: Diagnosis) -> Markup:
    """Everything that was tried, verified first; nothing where nothing was."""
    verification = diagnosis.verification
    if verification is None:
        return Markup()
    tried = sorted(verification.tried, key=lambda remedy: not remedy.verified)
    helping = [remedy for remedy in tried if remedy.verified]
    drawn = [_figure(run, verification, remedy) for remedy in helping if remedy.losses][:CHARTS]
    marks = [("used", "before"), ("after", "after"), ("stage fp32", "fp32 stage")]
    return section(
        "Proven remedies",
        "proven",
        table(_COLUMNS, [_cells(remedy) for remedy in tried], "Remedies that were tried") if tried else None,
        element("div", *drawn, class_="charts") if drawn else None,
        legend(marks) if drawn else None,
        *(_diff(remedy, open_=k == 0) for k, remedy in enumerate(r for r in helping if r.diff)),
        *(_reason(remedy) for remedy in tried if remedy.reason),
        lead=describe_verification(verification, len(helping)),
    )


def _cells(remedy: Remedy) -> list[Child]:
    cost, error = remedy.cost, remedy.gradient_error
    came = badge("✔", "it helps", "good") if remedy.verified else badge("✖", "refused", "bad")
    return [
        remedy.kind or remedy.text,
        came,
        f"{remedy.steps or 0:,}",
        show_number(remedy.final_loss),
        show_number(remedy.reference_loss),
        show_percent(error),
        _ratio(None if cost is None else cost.time_ratio),
        _ratio(None if cost is None else cost.memory_ratio),
    ]


def _ratio(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.2f}×"


def _figure(run: RunRecord, verification: Verification, remedy: Remedy) -> Markup:
    """The loss of the stage that fails, of the same with the remedy, and of the fp32 stage behind both."""
    length = len(remedy.losses)
    before = _losses(run, verification.stage)[: max(length, 1)]
    reference = _losses(run, StageName.FP32)[: max(length, 1)]
    curves = [
        Curve("fp32", reference, "curve behind"),
        Curve("before", before),
        Curve("after", remedy.losses, "curve after"),
    ]
    lanes = [Lane("before NaN/Inf", [is_broken(loss) for loss in before], "mark bad")]
    name = remedy.kind or remedy.text
    title = f"Loss by step before and after: {name}"
    chart = step_chart([c for c in curves if c.values], [lane for lane in lanes if any(lane.steps)], [], title)
    caption = element("figcaption", element("b", name), f" over {count_noun(remedy.steps or length, 'step')}")
    return element("figure", caption, chart)


def _losses(run: RunRecord, stage: StageName) -> Values:
    return [step.loss for trace in run.stages if trace.name is stage for step in trace.steps]


def _diff(remedy: Remedy, *, open_: bool) -> Markup:
    lines = [
        element("span", line or " ", class_=f"line {_DIFF_STYLES.get(line[:1], '')}".strip())
        for line in (remedy.diff or "").splitlines()
    ]
    head = join(["What to write for ", element("b", with_code(remedy.text))])
    return folded(head, element("figure", element("pre", *lines), class_="source diff"), open_=open_)


def _reason(remedy: Remedy) -> Markup:
    head = join([badge("✖", "refused", "bad"), " ", with_code(remedy.text)])
    return folded(head, element("p", with_code(remedy.reason or "")))
