"""How numbers, evidence and stages are put into words."""

import math
from dataclasses import replace

import pytest

import samples
from nanprobe.findings import Diagnosis, Severity, Status
from nanprobe.records import Outcome, Source, StageName
from nanprobe.reports.evidence import EVIDENCE_LABELS, humanize, list_evidence
from nanprobe.reports.excerpt import read_excerpt
from nanprobe.reports.numbers import (
    count_noun,
    show_bits,
    show_indices,
    show_magnitude,
    show_number,
    show_percent,
    show_scale,
    show_seconds,
)
from nanprobe.reports.stage_summary import Result, first_nonfinite_step, summarize_stage


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (65504.0, "65,504"),
        (-3, "-3"),
        (0.3227, "0.3227"),
        (2.0**-24, "5.96e-8"),
        (81920.25, "81,920.2"),
        (1.8e38, "1.8e38"),
        (3e9, "3e9"),
        (0.0005, "5e-4"),
        (math.nan, "NaN"),
        (-math.inf, "-Inf"),
        (None, "–"),
    ],
)
def test_numbers(value, text):
    assert show_number(value) == text


@pytest.mark.parametrize(
    ("show", "value", "text"),
    [
        (show_magnitude, 0.031, "3.1e-2"),
        (show_magnitude, 0.0, "0"),
        (show_magnitude, math.inf, "Inf"),
        (show_magnitude, None, "–"),
        (show_percent, 0.971, "97.1%"),
        (show_percent, 1.0, "100%"),
        (show_percent, 0.0004, "<0.1%"),
        (show_percent, 0.0, "0%"),
        (show_percent, None, "–"),
        (show_bits, 9.42, "9.4 bits"),
        (show_bits, 0.3227, "0.32 bits"),
        (show_bits, None, "–"),
        (show_scale, 65536.0, "65,536 (2^16)"),
        (show_scale, 1.0, "1"),
        (show_scale, 0.25, "0.25 (2^-2)"),
        (show_scale, 1000.0, "1,000"),
        (show_scale, math.inf, "Inf"),
        (show_seconds, 1.94, "1.9 s"),
        (show_seconds, 125.0, "2 min 05 s"),
        (show_indices, (3, 7), "3, 7"),
        (show_indices, (0, 1, 2, 3, 9), "0 to 3, 9"),
        (show_indices, (4, 5), "4, 5"),
        (show_indices, tuple(range(0, 24, 2)), "0, 2, 4, 6, 8, 10, 12, 14 and 4 more"),
    ],
)
def test_units(show, value, text):
    assert show(value) == text


def test_counts():
    assert [count_noun(count, "step") for count in (0, 1, 2000)] == ["0 steps", "1 step", "2,000 steps"]


def evidence(stage="float16", **values):
    _, answer = samples.overflow("/run")
    return list_evidence(replace(answer.verdict, evidence=values), stage)


def test_labels_name_the_formats_of_the_stage():
    assert evidence(value=math.inf, shadow_value=8e4) == [("FP16 value", "Inf"), ("FP32 re-check", "80,000")]
    assert evidence("bfloat16", value=1.0) == [("BF16 value", "1")]
    assert evidence("float32", shadow_value=1.0) == [("FP64 re-check", "1")]


def test_a_key_without_a_label_is_put_into_words_and_its_unit_guessed():
    assert evidence(
        dead_relu_fraction=0.5,
        margin_bits=2.0,
        last_safe_loss_scale=1024.0,
        grad_norm_fp16=3.5,
        warmup=True,
        names=["a", "b"],
        by_stage={"amp": 0.5},
        nothing=None,
    ) == [
        ("dead relu", "50%"),
        ("margin", "2.0 bits"),
        ("last safe loss scale", "1,024 (2^10)"),
        ("grad norm FP16", "3.5"),
        ("warmup", "yes"),
        ("names", "a, b"),
        ("by stage", "amp 0.5"),
    ]
    assert [humanize(key) for key in ("{x}_", "_", "loss_start")] == ["{x}", "_", "loss at the start"]


def test_the_numbers_of_an_operation_are_drawn_together():
    assert evidence(
        dtype="float16",
        loss_scale=4096.0,
        nan_count=1,
        inf_count=2,
        numel=32768,
        abs_max=65000.0,
        recheck_abs_max=81920.0,
        recheck_nonfinite=0,
        example_position=[3, 5],
        example_result=math.inf,
        example_recheck=81920.0,
        example_inputs=[20480.0, 4.0],
    ) == [
        ("FP16 value", "Inf at [3, 5], from 20,480 and 4"),
        ("FP32 re-check", "81,920"),
        ("largest finite", "65,000 in FP16, 81,920 in the FP32 re-check"),
        ("NaN or Inf", "1 NaN and 2 Inf of 32,768 elements, none in the FP32 re-check"),
        ("loss scale", "4,096 (2^12)"),
    ]


def test_an_operation_that_ran_in_another_format_is_labelled_by_that():
    assert evidence(dtype="float32", value=1.0, shadow_value=2.0) == [("FP32 value", "1"), ("FP32 re-check", "2")]


def test_counts_of_nothing_have_no_row():
    assert evidence(nan_count=0, inf_count=0, recheck_nonfinite=0, numel=8) == [("elements in all", "8")]
    assert evidence(nan_count=0, inf_count=0, recheck_nonfinite=2) == [("NaN or Inf", "none, 2 in the FP32 re-check")]
    assert evidence(inf_count=1, numel=1) == [("NaN or Inf", "1 Inf of 1 element")]


def test_a_key_with_braces_is_no_template():
    assert evidence(**{"{0}": 1, "{low}": 2}) == [("{0}", "1"), ("{low}", "2")]


def test_long_lists_are_counted():
    assert evidence(scales=list(range(12))) == [("scales", "0, 1, 2, 3, 4, 5, 6, 7 and 4 more")]


def test_every_label_can_be_filled_in():
    for label, _ in EVIDENCE_LABELS.values():
        assert label.format(low="FP16", high="FP32")


def test_an_excerpt_has_its_neighbours_and_their_common_indent_removed(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("def f(x):\n\n    y = 1\n\tz = x\n        w = y\n    return z\n")
    lines = read_excerpt(Source(str(path), 4, "z = x"), context=2)
    assert [(line.number, line.text, line.marked) for line in lines] == [
        (3, "y = 1", False),
        (4, "z = x", True),
        (5, "    w = y", False),
        (6, "return z", False),
    ]


@pytest.mark.parametrize("source", [("a.py", 99, "x"), ("a.py", 1, "other"), ("gone.py", 1, "x"), ("\0", 1, "x")])
def test_an_excerpt_of_a_file_that_is_gone_or_changed_is_the_line_alone(tmp_path, source):
    (tmp_path / "a.py").write_text("x\n")
    name, number, code = source
    (line,) = read_excerpt(Source(str(tmp_path / name), number, code))
    assert (line.number, line.text, line.marked) == (number, code, True)


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({}, None),
        ({"grad_abs_max": (None, None), "loss": None}, None),
        ({"loss": math.inf}, 1),
        ({"grad_abs_max": (None, math.nan)}, 1),
        ({"nonfinite_weights": ("w",)}, 1),
        ({"nonfinite_buffers": ("running_var",)}, 1),
    ],
)
def test_the_first_step_that_is_not_finite(changes, first):
    steps = (samples.step(0), samples.step(1, **changes), samples.step(2))
    assert first_nonfinite_step(samples.stage(StageName.AMP, steps=steps)) == first


def judge(stage, *severities):
    _, sample = samples.overflow("/run")
    found = tuple(replace(sample.verdict, severity=severity, stage=StageName.AMP) for severity in severities)
    return summarize_stage(stage, Diagnosis(Status.FAILING, None, found, ())).result


def test_how_a_stage_went():
    good = samples.stage(StageName.AMP)
    broken = (samples.step(0, loss=math.nan),)
    skipped = (samples.step(0, loss_scale=65536.0, skipped=True, grad_abs_max=(math.inf, 1.0)), samples.step(1))
    assert judge(good) is Result.OK
    assert judge(good, Severity.NOTE) is Result.NOTED
    assert judge(good, Severity.NOTE, Severity.ERROR) is Result.BROKE
    assert judge(samples.stage(StageName.FP32), Severity.ERROR) is Result.OK  # found in another stage
    assert judge(samples.stage(StageName.AMP, steps=broken)) is Result.NOTED
    assert judge(samples.stage(StageName.AMP, steps=skipped)) is Result.OK  # the scaler at work
    assert judge(samples.stage(StageName.AMP, steps=skipped + broken)) is Result.NOTED
    # Nothing that did not run its steps is ever ok.
    assert judge(samples.stage(StageName.AMP, 0)) is Result.NO_STEPS
    assert judge(replace(good, outcome=Outcome.CRASHED)) is Result.CRASHED
    assert judge(replace(good, outcome=Outcome.TIMEOUT)) is Result.TIMED_OUT
    assert judge(replace(good, outcome=Outcome.SKIPPED)) is Result.SKIPPED


def test_the_first_warning_is_one_row_at_the_end():
    told = {"first_warning_step": 5, "first_warning": "the gradient of w had 1.6 bits of headroom left"}
    rows = evidence(first_warning_steps_earlier=7, **told, limit=65504.0)
    assert rows == [("FP16 limit", "65,504"), ("first warning", "step 5, 7 steps earlier")]
    assert evidence(first_warning_steps_earlier=1, **told) == [("first warning", "step 5, 1 step earlier")]
    assert evidence(limit=65504.0) == [("FP16 limit", "65,504")]
