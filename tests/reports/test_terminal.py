"""The terminal report, as it is read: goldens for every ending, and what holds for all of them."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import samples
from nanprobe.findings import BatchPlace, Diagnosis, Finding, Kind, Severity, Status
from nanprobe.records import Outcome, Source, StageName, Target
from nanprobe.reports.terminal import render_terminal
from nanprobe.reports.terminal.canvas import Canvas, shorten_middle

RUN = "/cache/nanprobe/runs/20260102-030405-train-1f3a"
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def render(sample, width=80, color=False, show_all=False):
    return render_terminal(*sample, width, color, show_all)


@pytest.mark.parametrize("name", samples.ALL)
def test_at_80_columns(name, project, check_golden):
    check_golden(render(samples.ALL[name](RUN, project)))


def test_overflow_at_120_columns(project, check_golden):
    check_golden(render(samples.overflow(RUN, project), width=120))


def test_overflow_with_all_layers(project, check_golden):
    check_golden(render(samples.overflow(RUN, project), show_all=True))


def test_overflow_in_color(project, check_golden):
    check_golden(render(samples.overflow(RUN, project), color=True))


@pytest.mark.parametrize("name", samples.ALL)
@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_lines_fit_and_color_changes_no_character(name, width, project):
    sample = samples.ALL[name](RUN, project)
    plain = render(sample, width)
    assert ESCAPE.search(plain) is None
    assert ESCAPE.sub("", render(sample, width, color=True)) == plain
    for line in plain.splitlines():
        assert line == line.rstrip()
        # Paths and commands stay whole, to be copied.
        assert len(line) <= width or RUN in line or "nanprobe" in line, line


def test_the_environment_does_not_reach_the_report(project, monkeypatch):
    sample = samples.overflow(RUN, project)
    before = render(sample)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "33")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert render(sample) == before


def test_a_module_name_with_markup_is_shown_as_it_is(project):
    text = render(samples.misuse(RUN, project), color=True)
    assert "[red]block[/red]�[31m" in ESCAPE.sub("", text)


@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=60), width=st.integers(20, 130), color=st.booleans())
def test_any_text_from_the_user_is_harmless(text, width, color):
    source = Source(f"/nowhere/{text}", 3, text, text)
    finding = Finding(
        "NP101",
        Kind.GRAPH,
        Severity.ERROR,
        text,
        StageName.FP32,
        module=text,
        parameter=text,
        op=text,
        source=source,
        batch=BatchPlace(3),
        evidence={text: text, "more": {text: [text]}},
        why=text,
    )
    stage = samples.stage(StageName.FP32, outcome=Outcome.CRASHED, reason=text, notices=(text,))
    run = samples.run(RUN, stage, target=Target(text, (text,)))
    answer = Diagnosis(Status.FAILING, finding, (finding, replace(finding)), (samples.layer(text, kind=Kind.GRAPH),))
    report = ESCAPE.sub("", render_terminal(run, answer, width, color, True))
    assert all(character.isprintable() or character == "\n" for character in report)


def test_a_source_file_that_changed_since_is_not_quoted(project, tmp_path):
    sample = samples.overflow(RUN, project)
    (tmp_path / "train.py").write_text("import os\n" * 40)
    text = render(sample)
    assert "▶ 14 │ h = h * self.k" in text
    assert "import os" not in text


def test_the_same_layers_in_another_order_give_the_same_report(project):
    run, answer = samples.overflow(RUN, project)
    turned = replace(answer, layers=tuple(sorted(answer.layers, key=lambda row: row.name)))
    assert render((run, turned)) == render((run, answer))


def test_many_faulty_layers_are_counted_and_shown_on_demand(project):
    sample = samples.underflow(RUN, project)
    assert "… and 8 more" in render(sample)
    assert "… and 8 more" not in render(sample, show_all=True)


def test_many_findings_are_counted_and_shown_on_demand(project):
    run, answer = samples.overflow(RUN, project)
    note = answer.findings[-1]
    many = replace(answer, findings=(answer.verdict, *(replace(note, code=f"NP{i}") for i in range(110, 125))))
    assert "… and 7 more findings, all in the JSON report" in render((run, many))
    assert "NP124" in render((run, many), show_all=True)


def test_reasons_beside_a_verdict_are_shown_too(project):
    run, answer = samples.overflow(RUN, project)
    assert "WHAT COULD NOT BE TOLD" not in render((run, answer))
    text = render((run, replace(answer, reasons=("memory ran out in the deep look at step 12",))))
    assert "• memory ran out in the deep look at step 12" in text


@pytest.mark.parametrize(
    ("stage", "advice"),
    [
        (samples.stage(StageName.FP32, 0), "saw none"),
        (samples.stage(StageName.FP32, 3, outcome=Outcome.TIMEOUT, reason="600 s are over"), "--timeout"),
        (samples.stage(StageName.FP32, 3), "--steps"),
    ],
)
def test_could_not_tell_says_what_to_do(stage, advice):
    text = render((samples.run(RUN, stage), Diagnosis(Status.INCONCLUSIVE, None, (), (), ("too little was seen",))))
    assert "COULD NOT TELL" in text
    assert advice in text.partition("WHAT TO DO")[2].partition("━")[0]


def test_the_format_of_a_stage_is_named_where_it_is_not_the_usual_one():
    stages = (samples.stage(StageName.FP16, dtype="bfloat16"), samples.stage(StageName.AMP))
    text = render((samples.run(RUN, *stages), Diagnosis(Status.HEALTHY, None, (), ())))
    assert "fp16 (bf16)" in text
    assert "amp (" not in text


@pytest.mark.parametrize(
    ("name", "width", "short"),
    [
        ("head.weight", 11, "head.weight"),
        ("encoder.layers.3.ffn.down.weight", 25, "encoder…3.ffn.down.weight"),
        ("encoder.layers.3.ffn.down.weight", 23, "encod…3.ffn.down.weight"),
        ("encoder.layers.3.ffn.down.weight", 16, "enco…down.weight"),
        ("a_name_without_any_dots_in_it", 16, "a_nam…dots_in_it"),
    ],
)
def test_long_names_keep_their_ends(name, width, short):
    assert len(short) <= width
    assert shorten_middle(name, width) == short


def test_a_lead_stands_on_the_first_line_only():
    canvas = Canvas(40, False)
    canvas.paragraph("word " * 12, lead=["1. "], indent=2)
    first, *rest = canvas.text().splitlines()
    assert first.startswith("  1. word")
    assert rest
    assert all(line.startswith("     word") for line in rest)
