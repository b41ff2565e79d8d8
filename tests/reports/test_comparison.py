"""Two runs beside each other: what is gone, new and the same, which layers changed, and how it is shown."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

import samples
from nanprobe.findings import Diagnosis, Finding, Kind, Severity, Status
from nanprobe.records import Source, StageName
from nanprobe.reports.comparison import COMPARISON_FORMATS, Change, Side, compare, render_comparison
from nanprobe.reports.formats import ReportFormat

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def side(name: str, directory: str = "/x/run", project: str = samples.PROJECT) -> Side:
    return Side(*samples.ALL[name](directory, project))


def pair(before: str, after: str):
    return compare(side(before, "/x/before"), side(after, "/x/after"))


def show(comparison, form=ReportFormat.TERMINAL, **options) -> str:
    return render_comparison(comparison, form, **options)


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ("overflow", "healthy", Change.FIXED),
        ("inconclusive", "healthy", Change.HEALTHY),
        ("healthy", "healthy", Change.HEALTHY),
        ("healthy", "overflow", Change.BROKEN),
        ("inconclusive", "overflow", Change.BROKEN),
        ("overflow", "overflow", Change.SAME_CAUSE),
        ("graph", "overflow", Change.OTHER_CAUSE),
        ("overflow", "inconclusive", Change.UNKNOWN),
    ],
)
def test_the_change_in_a_word(before, after, change):
    assert pair(before, after).change is change


@pytest.mark.parametrize("form", COMPARISON_FORMATS.values())
@pytest.mark.parametrize("before", samples.ALL)
@pytest.mark.parametrize("after", ["overflow", "healthy", "inconclusive"])
def test_every_pair_is_rendered_in_every_format(form, before, after):
    text = show(pair(before, after), form, show_all=True)
    assert text.endswith("\n")
    assert "train.py" in text


@pytest.mark.parametrize(("before", "after"), [("overflow", "healthy"), ("graph", "overflow")])
def test_comparison(before, after, check_golden):
    check_golden(show(pair(before, after)))


def test_comparison_at_120_columns(check_golden):
    check_golden(show(pair("overflow", "healthy"), width=120, show_all=True))


def test_comparison_in_markdown(check_golden):
    check_golden(show(pair("healthy", "overflow"), ReportFormat.MARKDOWN))


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_lines_fit_and_color_changes_no_character(width):
    comparison = pair("overflow", "misuse")
    plain = show(comparison, width=width)
    assert ESCAPE.sub("", show(comparison, width=width, color=True)) == plain
    for line in plain.splitlines():
        assert line == line.rstrip()
        if width >= 80:
            assert len(line) <= width, line


def finding(code="NP101", stage=StageName.AMP, number=3, text="y = x * x", module="a", **changes) -> Finding:
    values = {"title": "", "source": Source("/p/train.py", number, text), "module": module, **changes}
    return Finding(code, Kind.OVERFLOW, Severity.ERROR, stage=stage, **values)


def matched(before: list[Finding], after: list[Finding]):
    """What compare() makes of the findings of two runs that are otherwise alike."""
    runs = [samples.healthy(f"/x/{name}")[0] for name in "ab"]
    answers = [Diagnosis(Status.FAILING, found[0], tuple(found), ()) for found in (before, after)]
    return compare(*(Side(run, answer) for run, answer in zip(runs, answers, strict=True)))


def test_a_finding_is_known_again_when_its_line_has_moved():
    found = matched([finding(number=3)], [finding(number=30)])
    assert (found.gone, found.new, len(found.same)) == ((), (), 1)


def test_a_finding_is_known_again_when_its_line_was_edited():
    found = matched([finding(text="y = x * x")], [finding(text="y = x * x / 2")])
    assert (found.gone, found.new, len(found.same)) == ((), (), 1)
    assert found.change is Change.SAME_CAUSE


def test_the_nearest_of_several_is_the_same():
    a, b = finding(module="a", text="p"), finding(module="b", text="q")
    found = matched([a, b], [replace(b, title="again"), finding(module="c", text="r")])
    assert [(one.module, other.module) for one, other in found.same] == [("b", "b"), ("a", "c")]


def test_another_code_or_stage_is_another_finding():
    found = matched([finding()], [finding(code="NP102"), finding(stage=StageName.FP16)])
    assert (len(found.gone), len(found.new), found.same) == (1, 2, ())
    assert found.change is Change.OTHER_CAUSE


def test_equal_findings_are_counted_one_by_one():
    found = matched([finding(), finding()], [finding()])
    assert (len(found.gone), len(found.new), len(found.same)) == (1, 0, 1)


def test_nothing_is_gone_where_nobody_looked():
    """B breaks in fp32, so that its amp stage is skipped: A's finding there may still be true."""
    found = pair("overflow", "graph")
    assert found.gone == ()
    assert [f.code for f in found.unseen] == ["NP101", "NP205", "NP107"]
    assert found.notes == ("fp16 and amp took no step in B: what the other run shows of it has no match",)
    assert "? not looked for  NP101" in show(found)


def test_differences_in_how_the_two_were_run_are_notes():
    before = side("healthy", "/x/a")
    after = Side(replace(before.run, directory="/x/b", steps=200, seed=3, torch_version="2.14.0"), before.diagnosis)
    assert compare(before, after).notes == (
        "steps a stage differs: 50 in A, 200 in B",
        "seed differs: 0 in A, 3 in B",
        "torch differs: 2.13.0 in A, 2.14.0 in B",
    )
    assert compare(before, before).notes == ("A and B are one run",)


def layers(*rows):
    run = samples.healthy("/x/run")[0]
    return Side(run, Diagnosis(Status.HEALTHY, None, (), rows))


def test_layers_are_matched_by_name_and_those_that_changed_most_come_first():
    little = samples.layer("little"), samples.layer("little", headroom_bits=11.5)
    much = samples.layer("much"), samples.layer("much", lost_norm_fraction={"fp16": 0.0, "amp": 0.9})
    broken = samples.layer("broken"), samples.layer("broken", nonfinite_steps={"amp": 10})
    same = samples.layer("same"), samples.layer("same", headroom_bits=12.3)
    one, other = zip(little, same, broken, much, strict=True)
    found = compare(layers(*one, samples.layer("old")), layers(*reversed(other), samples.layer("new")))
    assert found.stage is StageName.AMP
    assert [row.name for row in found.layers if row.changed and row.size] == ["much", "broken", "little"]
    assert [row.name for row in found.layers if not row.changed] == ["same"]
    text = show(found)
    assert "same" not in text.partition("LAYERS")[2].partition("•")[0]
    assert "• 1 layer as before (less than half a bit, and less than 1%)" in text
    assert "• only in A (1): old" in text and "• only in B (1): new" in text
    assert "\n  same" in show(found, show_all=True)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), -float("inf")])
def test_figures_that_are_missing_or_not_finite_are_harmless(value):
    found = compare(layers(samples.layer("a")), layers(samples.layer("a", headroom_bits=value)))
    for form in COMPARISON_FORMATS.values():
        assert show(found, form)


def test_the_layers_are_compared_in_the_stage_the_script_uses():
    def ran(written: StageName) -> Side:
        stages = (samples.stage(name, as_written=name is written) for name in StageName)
        return Side(samples.run("/x/run", *stages), Diagnosis(Status.HEALTHY, None, (), ()))

    assert compare(ran(StageName.FP16), ran(StageName.FP16)).stage is StageName.FP16
    assert compare(ran(StageName.FP16), ran(StageName.AMP)).stage is StageName.AMP
    assert compare(side("graph"), side("overflow")).stage is StageName.FP32
    assert compare(side("inconclusive"), side("overflow")).stage is None


def test_the_document_holds_every_layer_and_both_verdicts():
    document = json.loads(show(pair("overflow", "healthy"), ReportFormat.JSON), parse_constant=pytest.fail)
    assert list(document) == [
        *("schema_version", "change", "before", "after", "notes", "findings", "stages", "layers_of_stage", "layers"),
    ]
    assert (document["change"], document["layers_of_stage"]) == ("fixed", "amp")
    assert document["before"]["verdict"]["code"] == "NP101" and document["after"]["verdict"] is None
    assert [f["code"] for f in document["findings"]["gone"]] == ["NP101", "NP205", "NP107"]
    assert document["stages"][2]["before"]["first_nonfinite_step"] == 12
    assert len(document["layers"]) == 46
    assert {"name", "changed", "before", "after"} == document["layers"][0].keys()


def test_names_are_harmless_in_markdown():
    nasty = "a|b`<script>` @me"
    found = compare(layers(samples.layer(nasty)), layers(samples.layer(nasty, headroom_bits=0.0)))
    text = show(found, ReportFormat.MARKDOWN)
    assert "<script>" not in text and "@me" not in text
