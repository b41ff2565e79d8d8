"""The way from origin to symptom as a line of stops: what each read, what it made, and its source line."""

from __future__ import annotations

from nanprobe.findings import ChainLink, ChainValue, Finding
from nanprobe.records import StageName
from nanprobe.reports.excerpt import show_line
from nanprobe.reports.html.markup import Markup, element
from nanprobe.reports.html.tables import section
from nanprobe.reports.numbers import count_noun, show_number, show_percent
from nanprobe.reports.terminal.verdict import PHASE_WORDS

NEWS = 0.001  # share of flushed elements from which it is told


def chain_section(finding: Finding) -> Markup:
    """The chain of the verdict; nothing where it has none."""
    if not finding.chain:
        return Markup()
    lead = "The shortest way by which the fault reached what you see, operation by operation."
    return section("From origin to symptom", "chain", chain_list(finding), lead=lead)


def chain_list(finding: Finding) -> Markup:
    """The stops, first things first."""
    chain, higher = finding.chain, "FP64" if finding.stage is StageName.FP32 else "FP32"
    stops: list[Markup] = []
    for k, link in enumerate(chain):
        if link.skipped != 0:
            left_out = "some operations" if link.skipped is None else count_noun(link.skipped, "operation")
            stops.append(element("li", f"{left_out} more", class_="gap"))
        place = "origin" if k == 0 else "symptom" if k == len(chain) - 1 else None
        stops.append(_stop(link, place, higher))
    return element("ol", *stops, class_="chain")


def _stop(link: ChainLink, place: str | None, higher: str) -> Markup:
    name = link.tensor if link.op is None else link.op
    where = " · ".join(part for part in (link.module, PHASE_WORDS[link.phase] if link.phase else None) if part)
    head = element(
        "div",
        element("b", name, class_=None if link.op is None else "op"),
        element("span", place, class_="place") if place else None,
        element("span", where, class_="where") if where else None,
    )
    line = None
    if link.source is not None:
        line = element("div", element("span", show_line(link.source), class_="line"), element("code", link.source.code))
    said = element("div", head, line)
    return element("li", said, _values(link, higher), class_=f"{place or 'carrier'} {_state(link.after)}")


def _values(link: ChainLink, higher: str) -> Markup | None:
    """What it read and what it made, in words."""
    parts = []
    if link.before is not None:
        parts += [element("span", "read ", element("b", show_value(link.before)))]
    if link.after is not None:
        made = " → made " if parts else ""
        parts.append(element("span", made, element("b", show_value(link.after)), _recheck(link.after, higher)))
    return element("div", *parts, class_="values") if parts else None


def show_value(value: ChainValue) -> str:
    """A tensor in a few words: "13 Inf of 131,072", "at most 422.8", "99.9% flushed to 0"."""
    bad = " and ".join(
        f"{show_number(count)} {name}" for count, name in ((value.nan_count, "NaN"), (value.inf_count, "Inf")) if count
    )
    if bad:
        return bad if value.numel == 1 else f"{bad} of {show_number(value.numel)}"
    largest = f"at most {show_number(value.abs_max)}"
    if value.flushed_fraction >= NEWS:
        return f"{show_percent(value.flushed_fraction)} flushed to 0" + (f", {largest}" if value.abs_max else "")
    return "all zero" if value.abs_max == 0 else largest


def _recheck(value: ChainValue, higher: str) -> str | None:
    """The re-check beside it, where it says something else."""
    is_faulty = value.nan_count or value.inf_count or value.flushed_fraction
    if value.recheck_abs_max is None or not is_faulty:
        return None
    if value.recheck_nonfinite:
        return f", {show_number(value.recheck_nonfinite)} not finite in {higher} either"
    return f" ({higher}: at most {show_number(value.recheck_abs_max)})"


def _state(value: ChainValue | None) -> str:
    if value is None:
        return "sound"
    return "nan" if value.nan_count else "inf" if value.inf_count else "lost" if value.flushed_fraction else "sound"
