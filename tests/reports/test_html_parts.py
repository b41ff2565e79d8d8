"""The parts of the HTML report: axes, curves, pictures, classes of headroom, zones of a format."""

import base64
import math
import re
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanprobe.formats import BF16, FP16
from nanprobe.reports.html import headroom, svg
from nanprobe.reports.html.charts import Curve, Lane, step_chart, step_ticks, thin_out
from nanprobe.reports.html.exponents import Spread, describe, histogram, pool
from nanprobe.reports.html.figures import shorten, show_exponent, show_power, with_powers
from nanprobe.reports.html.markup import Markup, element, join
from nanprobe.reports.html.raster import Ink, picture
from nanprobe.reports.html.zones import Zone, cut_range, full_range
from reports.pages import Page

NAN, INF = math.nan, math.inf
FINITE = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e30, max_value=1e30)


def test_elements_escape_text_and_attributes_and_keep_markup():
    made = element("p", "a<b", element("b", "&"), None, title='"x"', hidden=True, lang=None, aria_label="y", class_="z")
    assert made == '<p title="&quot;x&quot;" hidden aria-label="y" class="z">a&lt;b<b>&amp;</b></p>'
    assert element("br") == "<br>" and join(["<", Markup("<i>")], " ") == "&lt; <i>"


def test_powers_and_names_are_short():
    assert show_exponent(-14) == "2⁻¹⁴" and show_power(65536.0) == "2¹⁶" and show_power(0.3) == "0.3"
    assert with_powers("from 2^16 to 2^-3, x2^4") == "from 2¹⁶ to 2⁻³, x2^4"
    assert shorten("encoder.layers.11.self_attn.in_proj_weight", 30) == "encoder.layers.…in_proj_weight"
    assert all(len(shorten("a.b" * 40, width)) <= width for width in (12, 20, 34))
    assert shorten("short", 12) == "short"


@given(st.lists(FINITE, max_size=20))
def test_an_axis_holds_what_it_was_fitted_to(values):
    axis = svg.fit_axis(values)
    assert all(-1e-6 <= axis.at(value) <= 1 + 1e-6 for value in values)
    shown = svg.ticks(axis)
    assert len(shown) <= 12 and all(-0.01 <= axis.at(tick) <= 1.01 for tick in shown)


def test_an_axis_is_logarithmic_where_values_span_orders():
    assert svg.fit_axis([1e-3, 10.0]).log and not svg.fit_axis([1.0, 40.0]).log
    assert not svg.fit_axis([-1.0, 1e9]).log and not svg.fit_axis([0.0, 1e9, NAN, INF]).log
    assert svg.ticks(svg.Axis(1e-3, 10.0, log=True)) == pytest.approx([1e-3, 1e-2, 1e-1, 1.0, 10.0])


def test_a_line_breaks_where_there_is_no_number():
    drawn = svg.polyline([(0.0, 0.0), (0.5, 1.0), None, (0.75, 0.5), None], 100, "c")
    assert drawn == '<path d="M0 100L500 0M750 50h0" class="c"></path>'
    assert svg.polyline([(0.0, 0.0), (0.5, 1.0)], 10, "c", stairs=True) == '<path d="M0 10H500V0" class="c"></path>'
    assert svg.polyline([None], 10, "c") == ""


@given(st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=3000))
def test_a_long_line_keeps_its_extremes(values):
    points = [None if v is None else (k / len(values), v) for k, v in enumerate(values)]
    thin = [p for p in thin_out(points) if p is not None]
    known = [p for p in points if p is not None]
    assert len(thin) <= max(1200, 0) and thin == sorted(thin)
    if known:
        assert {min(p[1] for p in known), max(p[1] for p in known)} <= {p[1] for p in thin}


def test_a_chart_of_two_curves_for_before_and_after():
    made = step_chart(
        [Curve("before", [1.0, NAN, 3.0], "curve a"), Curve("after", [1.0, 0.5], "curve b")],
        [Lane("skipped", [False, True, True], "mark skip")],
        [Curve("loss scale", [65536.0, 32768.0, None])],
        "Loss before and after",
    )
    page = Page(made)
    (data,) = page.hover_data()
    assert [data["texts"][cell] for cell in data["cells"][0]] == [
        "before 1 · after 1 · loss scale 2¹⁶",
        "before NaN · after 0.5 · loss scale 2¹⁵ · skipped",
        "before 3 · skipped",
    ]
    assert len(page.of("path")) == 3 and "Loss before and after" in made
    marks = [rect for rect in page.of("rect") if rect["class"] == "mark skip"]
    assert len(marks) == 1, "steps side by side share a mark"


def test_a_chart_of_nothing_is_nothing():
    assert step_chart([], [], [], "t") == ""
    made = step_chart([Curve("loss", [NAN, None, INF])], [], [], "t")
    assert "<path" not in made and "Inf" in made


@pytest.mark.parametrize("count", [1, 2, 7, 50, 51, 1234])
def test_steps_below_a_chart(count):
    shown = step_ticks(count)
    assert shown[0] == 0 and shown == sorted(set(shown)) and shown[-1] < count and len(shown) <= 9


def read_png(address: str) -> list[list[tuple[int, ...]]]:
    """The pixels of an indexed PNG without filters."""
    data = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    chunks, at = {}, 8
    while at < len(data):
        (size,), name = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + size]
        assert zlib.crc32(name + body) == struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0]
        chunks[name], at = body, at + 12 + size
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    raw = zlib.decompress(chunks[b"IDAT"])
    colours = [(*chunks[b"PLTE"][3 * k : 3 * k + 3], alpha) for k, alpha in enumerate(chunks[b"tRNS"])]
    return [[colours[k] for k in raw[y * (width + 1) + 1 : (y + 1) * (width + 1)]] for y in range(height)]


def test_a_picture_has_a_colour_a_class_and_a_cross_where_it_is_asked_for():
    red, blue, white = (200, 0, 0, 255), (0, 0, 200, 90), (255, 255, 255, 255)
    pixels = read_png(picture([[0, 1]], [Ink(red), Ink(blue, cross=white)], (8, 8)))
    assert (len(pixels), len(pixels[0])) == (8, 16)
    assert {p for row in pixels[:7] for p in row[:7]} == {red}
    crossed = [p for row in pixels[:7] for p in row[8:15]]
    assert set(crossed) == {blue, white} and crossed.count(white) == 9
    assert all(pixels[y][7] == (0, 0, 0, 0) for y in range(8)), "a gap between cells"
    small = read_png(picture([[1]], [Ink(red), Ink(blue, cross=white)], (12, 4)))
    assert {white, blue} <= {p for row in small for p in row}, "hatched where a cross has no room"


@pytest.mark.parametrize(
    ("value", "expected", "words"),
    [
        (None, headroom.NONE, "no gradient"),
        (NAN, headroom.BROKEN, "NaN"),
        (INF, headroom.BROKEN, "Inf"),
        (0.0, headroom.ZERO, "all zero"),
        (2.0**-25, headroom.ZERO, "41.0 bits, largest 3.0e-8"),
        (2.0**-20, headroom.SUBNORMAL, "36.0 bits, largest 9.5e-7"),
        (2.0**-14, headroom.LOW, "30.0 bits, largest 6.1e-5"),
        (1.0, headroom.ROOM, "16.0 bits, largest 1.0e0"),
        (2000.0, headroom.SOME, "5.0 bits, largest 2.0e3"),
        (16000.0, headroom.LITTLE, "2.0 bits, largest 1.6e4"),
        (65504.0, headroom.EDGE, "0.00 bits, largest 6.6e4"),
        (1e6, headroom.EDGE, "-3.9 bits, largest 1.0e6"),
    ],
)
def test_classes_of_headroom(value, expected, words):
    assert headroom.classify(value, FP16) == expected
    assert headroom.tell(value, FP16) == words


def test_the_worst_of_a_piece():
    assert math.isnan(headroom.worst([1.0, NAN, INF])) and headroom.worst([None, 2.0, INF]) == INF
    assert headroom.worst([None]) is None and headroom.worst([0.5, 0.25]) == 0.5


def test_zones_of_fp16_and_bf16():
    axis = full_range(FP16)
    zones = {e: axis.zone_of(e) for e in (-26, -25, -15, -14, 15, 16)}
    assert list(zones.values()) == [Zone.FLUSHED, Zone.SUBNORMAL, Zone.SUBNORMAL, Zone.NORMAL, Zone.NORMAL, Zone.OVER]
    assert [text for _, text in axis.ticks] == ["2⁻²⁵", "2⁻¹⁴", "2⁰", "65,504"]
    assert 0 < axis.at(2.0**-25) < axis.at(2.0**-14) < axis.at(65504.0) < 1 and axis.at(1e30) == 1 and axis.at(0.0) == 0
    assert full_range(BF16).ticks[-1][1] == "3.4e38"
    assert full_range(BF16).zone_of(-135) is Zone.FLUSHED and full_range(BF16).zone_of(100) is Zone.NORMAL


def test_the_axis_of_a_wide_format_is_cut_to_what_occurs():
    axis = cut_range(BF16, [-30, 2])
    assert (axis.low, axis.high) == (-40, 12) and axis.rules == ()
    assert [text for _, text in axis.ticks] == ["2⁻⁴⁰", "2⁻³⁰", "2⁻²⁰", "2⁻¹⁰", "2⁰", "2¹⁰"]
    assert cut_range(BF16, [-140, 127]) == full_range(BF16) and cut_range(FP16, [0]) == full_range(FP16)
    assert len(cut_range(BF16, [-133, 0]).rules) == 2
    assert cut_range(BF16, []) == full_range(BF16)


def test_shares_of_exponents():
    spread = Spread("w", -27, (2, 0, 1, 5, 0, 2))
    assert describe(spread, full_range(FP16)) == "20% flushed to 0, 80% subnormal"
    both = pool([spread, Spread("b", 16, (10,))], "all")
    assert (both.offset, both.total, both.share(16)) == (-27, 20, 0.5)
    assert describe(both, full_range(FP16)) == "10% flushed to 0, 40% subnormal, 50% above the limit"
    (data,) = Page(histogram(both, full_range(FP16), "t")).hover_data()
    assert data["x"][0] == "2⁻⁴⁰ to 2⁻³⁹" and "50% of the elements" in data["texts"]


def test_what_lies_beyond_the_axis_stands_at_its_ends():
    made = histogram(Spread("w", -80, (1, *[0] * 120, 3)), full_range(FP16), "t")
    (data,) = Page(made).hover_data()
    told = [data["texts"][cell] for cell in data["cells"][0]]
    assert told[0] == "25% of the elements" and told[-1] == "75% of the elements"
    assert len(re.findall("<rect", made)) == 2
