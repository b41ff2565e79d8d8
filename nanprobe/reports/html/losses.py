"""Loss and loss scale by step, a chart a stage, with the steps marked that were skipped or were not finite."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from nanprobe.records import RunRecord, StageName, StageTrace
from nanprobe.reports.html.charts import Curve, Lane, step_chart
from nanprobe.reports.html.markup import Markup, element
from nanprobe.reports.html.tables import section
from nanprobe.reports.numbers import count_noun, show_number


def loss_section(run: RunRecord) -> Markup:
    """A chart for each stage that took a step; the loss of the fp32 stage stands behind the others."""
    ran = [trace for trace in run.stages if trace.steps]
    told = {lane.name for trace in ran for lane in _lanes(trace) if any(lane.steps)}
    charts = [_figure(trace, run.stages, told) for trace in ran]
    lead = "The loss as backward started from it, the loss scale taken out. A gap is a loss that is not finite."
    behind = any(trace.name is not StageName.FP32 for trace in ran) and any(t.name is StageName.FP32 for t in ran)
    if behind:
        lead += " The thin line is the fp32 stage."
    return section(
        "Loss and loss scale", "loss", element("div", *charts, class_="charts") if charts else None, lead=lead
    )


def _figure(trace: StageTrace, stages: Sequence[StageTrace], told: Collection[str]) -> Markup:
    """The chart of a stage; all have the lanes that are `told` of in any, so that they stand beside one another."""
    losses = [step.loss for step in trace.steps]
    described = describe(trace)
    curves = [Curve("loss", losses, f"curve {trace.name.value}")]
    if trace.name is not StageName.FP32:
        behind = next((t for t in stages if t.name is StageName.FP32 and t.steps), None)
        reference = [] if behind is None else [step.loss for step in behind.steps[: len(losses)]]
        curves.insert(0, Curve("fp32 loss", reference, "curve behind"))
    scale = Curve("loss scale", [step.loss_scale for step in trace.steps], "curve scale")
    title = f"Loss by step in the {trace.name.value} stage: {described}"
    lanes = [lane for lane in _lanes(trace) if lane.name in told]
    chart = step_chart([c for c in curves if c.values], lanes, [scale], title)
    caption = element("figcaption", element("b", trace.name.value), f" {described}")
    return element("figure", caption, chart)


def describe(trace: StageTrace) -> str:
    """What a stage's loss did, in a line: "2.31 → 0.48, 12 steps skipped"."""
    measured = [step.loss for step in trace.steps if step.loss is not None]
    finite = [loss for loss in measured if math.isfinite(loss)]
    words = [f"{show_number(measured[0])} → {show_number(measured[-1])}"] if measured else ["no loss seen"]
    if len(finite) < len(measured):
        words.append(f"{len(measured) - len(finite)} not finite")
    skipped = sum(step.skipped for step in trace.steps)
    return ", ".join(words + ([f"{count_noun(skipped, 'step')} skipped"] if skipped else []))


def _lanes(trace: StageTrace) -> list[Lane]:
    return [
        Lane("loss NaN/Inf", [is_broken(step.loss) for step in trace.steps], "mark bad"),
        Lane("grad NaN/Inf", [any(map(is_broken, step.grad_abs_max)) for step in trace.steps], "mark hot"),
        Lane("weights NaN/Inf", [bool(step.nonfinite_weights) for step in trace.steps], "mark bad"),
        Lane("skipped", [step.skipped for step in trace.steps], "mark skip"),
    ]


def is_broken(value: float | None) -> bool:
    """Whether a number was measured and is not finite."""
    return value is not None and not math.isfinite(value)
