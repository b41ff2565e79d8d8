"""Each layer's gradients against the limits of the low-precision format, a bar a stage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nanprobe.findings import Diagnosis
from nanprobe.records import RunRecord, StageTrace
from nanprobe.reports.condensing import name_format
from nanprobe.reports.html import svg
from nanprobe.reports.html.figures import show_exponent
from nanprobe.reports.html.layers import by_urgency
from nanprobe.reports.html.markup import Markup, element
from nanprobe.reports.html.tables import folded, legend, section
from nanprobe.reports.html.zones import Range, range_of
from nanprobe.reports.numbers import count_noun, show_magnitude

SHOWN = 20  # layers, the most urgent ones; the others are folded
LANE = 8.0  # pixels of a stage's bar
Exponents = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Reach:
    """How far the gradients of one layer reach in one stage, the loss scale in them."""

    stage: str
    lowest_peak: float | None  # of the finite non-zero largest gradients of all steps
    highest_peak: float | None
    elements: Exponents | None  # lowest and highest exponent of single elements, in the steps looked at closely
    nonfinite_steps: int
    zero_steps: int


def range_section(run: RunRecord, diagnosis: Diagnosis) -> Markup:
    """The bars of the most urgent layers, in the model's order; the others below, folded."""
    ran = [trace for trace in run.stages if trace.steps]
    reaches = reach_by_layer(ran)
    if not reaches:
        return Markup()
    axis = range_of(run.stages)
    urgent = {row.name for row in by_urgency(diagnosis.layers)[:SHOWN]} or set(list(reaches)[:SHOWN])
    first = [name for name in reaches if name in urgent]
    rest = [name for name in reaches if name not in urgent]
    more = folded(count_noun(len(rest), "more layer"), _table(rest, reaches, axis)) if rest else None
    fmt = name_format(axis.fmt.name)
    lead = (
        f"Thick: the largest gradient of the layer, from its smallest to its largest over the steps. Thin: single "
        f"elements, in the steps looked at closely. The loss scale is in them, so this is what {fmt} has to hold."
    )
    stages = [(f"stage {trace.name.value}", trace.name.value) for trace in ran]
    zones = [
        ("zone flushed", "flushed to 0"),
        ("zone subnormal", "subnormal"),
        ("zone normal", "full precision"),
        ("zone over", "overflow"),
    ]
    return section("Gradient range", "ranges", _table(first, reaches, axis), more, legend([*stages, *zones]), lead=lead)


def reach_by_layer(traces: Sequence[StageTrace]) -> dict[str, list[Reach]]:
    """The reach of every parameter in every stage that watched it, in the order the model names them."""
    found: dict[str, list[Reach]] = {}
    for trace in traces:
        elements = _elements(trace)
        for k, info in enumerate(trace.parameters):
            values = [s.grad_abs_max[k] for s in trace.steps if k < len(s.grad_abs_max)]
            found.setdefault(info.name, []).append(_reach(trace.name.value, values, elements.get(info.name)))
    return found


def _reach(stage: str, values: Sequence[float | None], elements: Exponents | None) -> Reach:
    known = [value for value in values if value is not None]
    finite = [value for value in known if math.isfinite(value) and value > 0]
    return Reach(
        stage=stage,
        lowest_peak=min(finite, default=None),
        highest_peak=max(finite, default=None),
        elements=elements,
        nonfinite_steps=sum(not math.isfinite(value) for value in known),
        zero_steps=sum(value == 0 for value in known),
    )


def _elements(trace: StageTrace) -> dict[str, Exponents]:
    found: dict[str, Exponents] = {}
    for grad in (grad for deep in trace.deep_steps for grad in deep.grads if grad.exponent_counts):
        low, high = grad.exponent_offset, grad.exponent_offset + len(grad.exponent_counts)
        before = found.get(grad.name, (low, high))
        found[grad.name] = (min(before[0], low), max(before[1], high))
    return found


def _table(names: Sequence[str], reaches: dict[str, list[Reach]], axis: Range) -> Markup:
    head = element(
        "tr",
        element("th", "layer", scope="col"),
        element("th", *_axis(axis), scope="col", class_="scale", aria_label="gradient, by stage"),
    )
    rows = [element("tr", element("th", _name(name), scope="row"), _cell(reaches[name], axis)) for name in names]
    zones = f"--zones:{axis.background}"
    return element("table", element("thead", head), element("tbody", *rows), class_="ranges", style=zones)


def _name(name: str) -> Markup:
    return element("span", name, title=name)


def _axis(axis: Range) -> list[Markup]:
    return [svg.drawing(*(svg.label(text, x, 11, "tick", "middle") for x, text in axis.ticks), height=14)]


def _cell(reaches: Sequence[Reach], axis: Range) -> Markup:
    bars = [_bar(reach, axis, k * LANE + 2) for k, reach in enumerate(reaches)]
    told = "; ".join(map(tell, reaches))
    return element("td", svg.drawing(*bars, height=LANE * len(reaches) + 4, title=told), title=told)


def _bar(reach: Reach, axis: Range, top: float) -> Markup:
    parts = []
    if reach.elements is not None:
        low, high = map(axis.at_exponent, reach.elements)
        parts.append(svg.rectangle(low, high, top + LANE / 2 - 1, 1.5, f"thin {reach.stage}"))
    if reach.lowest_peak is not None and reach.highest_peak is not None:
        low, high = axis.at(reach.lowest_peak), axis.at(reach.highest_peak)
        parts.append(svg.rectangle(low, max(high, low + 0.004), top + 1, LANE - 2.5, f"thick {reach.stage}"))
    if reach.nonfinite_steps:
        parts.append(svg.mark("✕", 0.985, top + LANE - 0.5, f"cross {reach.stage}"))
    return element("g", *parts) if parts else Markup()


def tell(reach: Reach) -> str:
    """A bar in words: "amp: largest 3.1e-4 to 0.2, elements 2⁻³⁰ to 2⁻², 3 steps with NaN or Inf"."""
    words = []
    if reach.lowest_peak is not None:
        words.append(f"largest {show_magnitude(reach.lowest_peak)} to {show_magnitude(reach.highest_peak)}")
    if reach.elements is not None:
        words.append(f"elements {show_exponent(reach.elements[0])} to {show_exponent(reach.elements[1])}")
    if reach.zero_steps:
        words.append(f"{count_noun(reach.zero_steps, 'step')} all zero")
    if reach.nonfinite_steps:
        words.append(f"{count_noun(reach.nonfinite_steps, 'step')} with NaN or Inf")
    return f"{reach.stage}: {', '.join(words) or 'no gradient'}"
