"""Layer by step: how many times each gradient could double before it leaves the format, and where it is not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from nanprobe.findings import Diagnosis
from nanprobe.formats import FloatFormat
from nanprobe.records import RunRecord, StageName, StageTrace
from nanprobe.reports.condensing import name_format
from nanprobe.reports.html.charts import step_ticks
from nanprobe.reports.html.grids import Grid, heat_map
from nanprobe.reports.html.markup import Markup, element
from nanprobe.reports.html.raster import CLEAR, Ink
from nanprobe.reports.html.tables import folded, legend, section
from nanprobe.reports.html.zones import range_of, show_limit
from nanprobe.reports.numbers import count_noun, show_bits, show_magnitude

MOST_COLUMNS, MOST_ROWS = 250, 400  # a longer run is drawn by the worst step of each piece, more layers by module

# Orange where it is close to overflow, blue where it is close to zero, told apart by all kinds of colour vision; the
# cross marks what is not finite without any colour. Our choice of steps.
NONE, ZERO, SUBNORMAL, LOW, ROOM, SOME, LITTLE, EDGE, BROKEN = range(9)
INKS = (
    Ink(CLEAR),
    Ink((31, 78, 140, 255)),
    Ink((66, 133, 196, 210)),
    Ink((110, 170, 215, 115)),
    Ink((128, 128, 128, 38)),
    Ink((238, 190, 90, 130)),
    Ink((235, 150, 40, 200)),
    Ink((214, 96, 20, 255)),
    Ink((150, 0, 62, 255), cross=(226, 150, 180, 255)),
)


def headroom_section(run: RunRecord, diagnosis: Diagnosis) -> Markup:
    """A heat map for each stage that took a step; that of the verdict is open, or the last one."""
    fmt = range_of(run.stages).fmt
    ran = [trace for trace in run.stages if trace.steps and trace.parameters]
    chosen = diagnosis.verdict.stage if diagnosis.verdict else ran[-1].name if ran else None
    maps = [
        folded(_caption(trace, fmt), headroom_map(trace, fmt), open_=trace.name is chosen or len(ran) == 1)
        for trace in ran
    ]
    lead = (
        f"How many times the largest gradient of a layer could double before it leaves {name_format(fmt.name)} "
        f"(above {show_limit(fmt)}), in every step, the loss scale in it."
    )
    return section("Headroom by layer and step", "headroom", *maps, _legend(fmt) if maps else None, lead=lead)


def headroom_map(trace: StageTrace, fmt: FloatFormat) -> Markup:
    """The heat map of one stage, in a low-precision format."""
    size = math.ceil(len(trace.steps) / MOST_COLUMNS)
    groups = [range(k, min(k + size, len(trace.steps))) for k in range(0, len(trace.steps), size)]
    rows = _rows(trace)
    values = [[worst(trace.steps[s].grad_abs_max[p] for s in g for p in ps if p < _width(trace, s)) for g in groups]
              for _, ps in rows]  # fmt: skip
    first, count = trace.steps[0].index, len(trace.steps)
    columns = [f"step {first + g[0]}" if len(g) == 1 else f"steps {first + g[0]} to {first + g[-1]}" for g in groups]
    grid = Grid(
        rows=[name for name, _ in rows],
        columns=columns,
        classes=[[classify(value, fmt) for value in row] for row in values],
        inks=INKS,
        texts=[[tell(value, fmt) for value in row] for row in values],
        ticks=[((k + 0.5) / count, str(first + k)) for k in step_ticks(count)],
    )
    return heat_map(grid, f"Headroom by layer and step in the {trace.name.value} stage: {describe(trace, fmt)}")


def _width(trace: StageTrace, step: int) -> int:
    return len(trace.steps[step].grad_abs_max)


def _rows(trace: StageTrace) -> list[tuple[str, list[int]]]:
    """Rows and the parameters behind each: one a parameter, or one a module where there are too many."""
    rows = [(info.name, [k]) for k, info in enumerate(trace.parameters)]
    depth = 6
    while len(rows) > MOST_ROWS and depth:
        merged: dict[str, list[int]] = {}
        for k, info in enumerate(trace.parameters):
            merged.setdefault(".".join(info.name.split(".")[:-1][:depth]) or info.name, []).append(k)
        rows, depth = list(merged.items()), depth - 1
    return rows[:MOST_ROWS]


def worst(values: Iterable[float | None]) -> float | None:
    """NaN before Inf before the largest of the values; None when there is none."""
    known = [value for value in values if value is not None]
    return next((value for value in known if math.isnan(value)), max(known, default=None))


def classify(value: float | None, fmt: FloatFormat) -> int:
    """The class of a layer's largest gradient."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return BROKEN
    if value <= fmt.flush_threshold:
        return ZERO
    above_subnormal = math.log2(value / fmt.min_normal)
    if above_subnormal < 6:
        return SUBNORMAL if above_subnormal < 0 else LOW
    headroom = fmt.headroom_bits(value)
    return EDGE if headroom < 1 else LITTLE if headroom < 3 else SOME if headroom < 6 else ROOM


def tell(value: float | None, fmt: FloatFormat) -> str:
    """A cell in words and numbers."""
    if value is None:
        return "no gradient"
    if not math.isfinite(value):
        return show_magnitude(value)
    if value == 0:
        return "all zero"
    bits = round(fmt.headroom_bits(value), 1) + 0.0  # no "-0.0"
    return f"{show_bits(bits)}, largest {show_magnitude(value)}"


def describe(trace: StageTrace, fmt: FloatFormat) -> str:
    """The map in a sentence: how many layers and steps, how many are not finite, and the least headroom."""
    values = [value for step in trace.steps for value in step.grad_abs_max if value is not None]
    finite = [value for value in values if math.isfinite(value) and value > 0]
    broken = sum(any(v is not None and not math.isfinite(v) for v in step.grad_abs_max) for step in trace.steps)
    words = [f"{count_noun(len(trace.parameters), 'layer')}, {count_noun(len(trace.steps), 'step')}"]
    words.append(f"{count_noun(broken, 'step')} with NaN or Inf" if broken else "all finite")
    if finite:
        words.append(f"least headroom {show_bits(fmt.headroom_bits(max(finite)))}")
    return ", ".join(words)


def _caption(trace: StageTrace, fmt: FloatFormat) -> Markup:
    beside = f", were it held in {name_format(fmt.name)}" if trace.name is StageName.FP32 else ""
    return element("span", element("b", trace.name.value), f" {describe(trace, fmt)}{beside}")


def _legend(fmt: FloatFormat) -> Markup:
    return legend(_entries(fmt))


def _entries(fmt: FloatFormat) -> Sequence[tuple[str, str]]:
    return (
        ("h8", "NaN or Inf"),
        ("h7", "< 1 bit"),
        ("h6", "< 3 bits"),
        ("h5", "< 6 bits"),
        ("h4", "room on both sides"),
        ("h3", "less than 6 bits above subnormal"),
        ("h2", f"subnormal (below {show_magnitude(fmt.min_normal)})"),
        ("h1", "zero"),
    )
