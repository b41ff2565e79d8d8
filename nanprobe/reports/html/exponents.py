"""How the elements of the gradients spread over the powers of two: all of them, and layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nanprobe.findings import Diagnosis
from nanprobe.records import DeepStep, GradRecord, RunRecord, StageName, StageTrace
from nanprobe.reports.html import svg
from nanprobe.reports.html.figures import show_exponent, show_power
from nanprobe.reports.html.grids import Grid, heat_map
from nanprobe.reports.html.hover import hover_data
from nanprobe.reports.html.markup import Markup, element
from nanprobe.reports.html.raster import CLEAR, Ink
from nanprobe.reports.html.tables import section
from nanprobe.reports.html.zones import Range, Zone, range_of
from nanprobe.reports.numbers import show_percent

HEIGHT = 72.0
SHARES = (0.0, 0.001, 0.01, 0.05, 0.12, 0.25)  # of a layer's elements: where a darker step begins; our choice
INKS = (Ink(CLEAR), *(Ink((58, 104, 190, alpha)) for alpha in (36, 72, 115, 160, 205, 255)))
MOST_ROWS = 400


@dataclass(frozen=True, slots=True)
class Spread:
    """Elements by exponent: `counts[i]` of them from 2^(offset+i) to twice that."""

    name: str
    offset: int
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        """All elements that were counted."""
        return sum(self.counts)

    def share(self, exponent: int) -> float:
        """The share of elements with an exponent."""
        k = exponent - self.offset
        return self.counts[k] / self.total if 0 <= k < len(self.counts) and self.total else 0.0

    def share_in(self, axis: Range, zone: Zone) -> float:
        """The share of elements in a zone of a format."""
        inside = sum(n for k, n in enumerate(self.counts) if axis.zone_of(self.offset + k) is zone)
        return inside / self.total if self.total else 0.0


def exponent_section(run: RunRecord, diagnosis: Diagnosis) -> Markup:
    """A histogram for the steps that were looked at closely, then one step layer by layer; nothing where none was."""
    axis = range_of(run.stages)
    looks = [(trace, deep) for trace in run.stages for deep in _chosen(trace, diagnosis) if spreads_of(deep.grads)]
    if not looks:
        return Markup()
    figures = [_figure(trace, deep, axis) for trace, deep in looks]
    stage, deep = _closest(looks, diagnosis)
    rows = spreads_of(deep.grads)
    title = f"Exponents of the gradients of each layer, {stage.name.value} stage, step {deep.step}"
    by_layer = element("figure", element("figcaption", title), exponent_map(rows, axis, title))
    lead = (
        "Elements of the re-checked gradients by power of two, the loss scale in them: what the format has to hold. "
        "Elements that are 0 in the re-check too are not counted."
    )
    return section("Exponents", "exponents", element("div", *figures, class_="charts small"), by_layer, lead=lead)


def spreads_of(grads: Sequence[GradRecord]) -> list[Spread]:
    """The histograms of the gradients that were counted."""
    return [Spread(g.name, g.exponent_offset, g.exponent_counts) for g in grads if g.exponent_counts]


def pool(spreads: Sequence[Spread], name: str) -> Spread:
    """All elements of several histograms in one."""
    low = min(s.offset for s in spreads)
    counts = [0] * (max(s.offset + len(s.counts) for s in spreads) - low)
    for spread in spreads:
        for k, count in enumerate(spread.counts):
            counts[spread.offset - low + k] += count
    return Spread(name, low, tuple(counts))


def histogram(spread: Spread, axis: Range, title: str) -> Markup:
    """The bars of one histogram over the range of the format; what lies beyond the axis stands at its ends."""
    shares = {e: spread.share(e) for e in range(axis.low, axis.high)}
    shares[axis.low] += sum(spread.share(e) for e in range(spread.offset, axis.low))
    shares[axis.high - 1] += sum(spread.share(e) for e in range(axis.high, spread.offset + len(spread.counts)))
    top = max(shares.values()) or 1.0
    bars = [
        svg.rectangle(axis.at_exponent(e) + 0.001, axis.at_exponent(e + 1) - 0.001, HEIGHT * (1 - share / top),
                      HEIGHT * share / top, f"zone {axis.zone_of(e).value}")
        for e, share in shares.items() if share
    ]  # fmt: skip
    rules = [svg.rule(x, 0, HEIGHT, "limit") for x in axis.rules]
    base = element("line", x1="0", x2="100%", y1=f"{HEIGHT:g}", y2=f"{HEIGHT:g}", class_="axis")
    names = [svg.label(text, x, HEIGHT + 14, "tick", "middle") for x, text in axis.ticks]
    texts = [f"{show_percent(share)} of the elements" for share in shares.values()]
    columns = [f"{show_exponent(e)} to {show_exponent(e + 1)}" for e in shares]
    plot = svg.drawing(*rules, *bars, base, *names, height=HEIGHT + 18, title=title)
    area = element("div", plot, class_="area", data_hover=True)
    return element("div", area, hover_data(columns, [""], [texts]), class_="chart bare")


def exponent_map(spreads: Sequence[Spread], axis: Range, title: str) -> Markup:
    """A row a layer, a column a power of two, darker where more of the layer's elements are."""
    rows, exponents = spreads[:MOST_ROWS], range(axis.low, axis.high)
    grid = Grid(
        rows=[row.name for row in rows],
        columns=[f"{show_exponent(e)} to {show_exponent(e + 1)}" for e in exponents],
        classes=[[_class(row.share(e)) for e in exponents] for row in rows],
        inks=INKS,
        texts=[[f"{show_percent(row.share(e))} of its elements" for e in exponents] for row in rows],
        ticks=axis.ticks,
        rules=[(x, "limit") for x in axis.rules],
    )
    return heat_map(grid, title)


def describe(spread: Spread, axis: Range) -> str:
    """The shares in the zones that are not safe, in words."""
    words = {Zone.FLUSHED: "flushed to 0", Zone.SUBNORMAL: "subnormal", Zone.OVER: "above the limit"}
    told = [f"{show_percent(share)} {word}" for zone, word in words.items() if (share := spread.share_in(axis, zone))]
    return ", ".join(told) or "all in full precision"


def _figure(trace: StageTrace, deep: DeepStep, axis: Range) -> Markup:
    spread = pool(spreads_of(deep.grads), "all layers")
    scaled = f", loss scale {show_power(deep.loss_scale)}" if deep.loss_scale not in (None, 1.0) else ""
    told = describe(spread, axis)
    caption = element(
        "figcaption",
        element("b", trace.name.value),
        f" step {deep.step}{scaled}",
        element("br"),
        element("small", told),
    )
    title = f"Exponents of all gradients in the {trace.name.value} stage, step {deep.step}: {told}"
    return element("figure", caption, histogram(spread, axis, title))


def _chosen(trace: StageTrace, diagnosis: Diagnosis) -> list[DeepStep]:
    """The first step looked at closely, that of the verdict, and the last."""
    counted = [deep for deep in trace.deep_steps if deep.step >= 0 and any(g.exponent_counts for g in deep.grads)]
    verdict = diagnosis.verdict
    named = [d for d in counted if verdict is not None and verdict.stage is trace.name and d.step == verdict.step]
    steps = {deep.step: deep for deep in [*counted[:1], *named, *counted[-1:]]}
    return [steps[step] for step in sorted(steps)]


def _closest(looks: Sequence[tuple[StageTrace, DeepStep]], diagnosis: Diagnosis) -> tuple[StageTrace, DeepStep]:
    """The step of the verdict; without one the last of the amp stage, or of the last stage there is."""
    verdict = diagnosis.verdict
    if verdict is not None:
        named = [look for look in looks if look[0].name is verdict.stage]
        return next((look for look in named if look[1].step == verdict.step), (named or looks)[-1])
    return next((look for look in reversed(looks) if look[0].name is StageName.AMP), looks[-1])


def _class(share: float) -> int:
    return sum(share > limit for limit in SHARES)
