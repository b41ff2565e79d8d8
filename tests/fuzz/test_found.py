"""What the search has found, kept as small programs: each was judged wrongly once."""

from __future__ import annotations

import pytest

from fuzz.faults import Fault
from fuzz.judging import Expected, expect, judge
from fuzz.oracle import in_low, run_plain
from fuzz.programs import Layer, Program
from fuzz.running import diagnose_program
from fuzz.tally import GOOD, Miss
from nanprobe.findings import Diagnosis

LINEAR = (Layer("linear"),)
DROPOUT = (Layer("dropout"),)


def program(
    kind: str, /, *, layers: tuple[Layer, ...] = LINEAR, step: int = 0, row: int = 0, **more: object
) -> Program:
    plain: dict[str, object] = {"batch": 2, "steps": 4, "width": 4}
    return Program(layers=layers, fault=Fault(kind, step=step, row=row), **{**plain, **more})  # type: ignore[arg-type]


def check(example: Program) -> Diagnosis:
    expected = expect(example)
    assert expected is not None and expected.failing is not None
    diagnosis = diagnose_program(example)
    grade = judge(example, expected, diagnosis)
    assert grade in GOOD, Miss(example, expected, diagnosis, grade).describe()
    return diagnosis


def test_an_inf_that_is_divided_away_is_named_by_its_wrong_gradients() -> None:
    example = program("norm_overflow", shape="images", layers=DROPOUT)
    assert run_plain(in_low(example)).hits
    verdict = check(example).verdict
    assert verdict is not None and verdict.code == "NP101"
    assert "away from its FP32 re-check" in verdict.why


def test_a_row_masked_throughout_is_the_fault_of_the_logsumexp_it_comes_out_of() -> None:
    check(program("masked_logsumexp_row"))


@pytest.mark.parametrize("accumulation", [1, 2])
def test_fp16_autocast_without_a_scaler_is_seen_in_the_stage_that_has_it(accumulation: int) -> None:
    check(program("no_scaler", precision="amp", scaler=False, accumulation=accumulation))


def test_memory_that_is_written_before_it_is_read_is_no_symptom_of_a_script_that_stopped() -> None:
    check(program("update_each_micro_batch", precision="amp", accumulation=2, layers=DROPOUT))


def test_a_loss_that_is_nan_in_the_first_micro_batch_only() -> None:
    check(program("labels_ignored", task="classification", accumulation=2, step=1))


@pytest.mark.parametrize("kind", ["step_each_micro_batch", "never_cleared"])
def test_a_gradient_left_by_a_skipped_step_is_no_batch(kind: str) -> None:
    check(program(kind, accumulation=1 if kind == "never_cleared" else 2))


@pytest.mark.parametrize("clip", [None, "value"])
def test_a_second_round_before_the_first_is_closed(clip: str | None) -> None:
    check(program("no_update", precision="amp", accumulation=3, clip=clip))


def test_a_loss_cut_off_from_the_parameters_that_stops_the_clipping() -> None:
    check(program("loss_cut_off", clip="value"))


def test_a_product_beyond_fp32_is_magnitude_whatever_nan_it_leaves() -> None:
    check(program("huge_rate"))


@pytest.mark.parametrize("kind", ["nan_input", "inf_input"])
def test_rows_are_counted_in_the_batch_not_in_a_flattened_view_of_it(kind: str) -> None:
    check(program(kind, shape="sequences", step=2, row=1))


@pytest.mark.parametrize("step", [0, 2])
def test_an_absurd_number_has_a_row_and_is_data_in_low_precision_too(step: int) -> None:
    check(program("absurd_input", step=step, row=1))


@pytest.mark.parametrize("precision", ["bf16", "amp"])
def test_a_gradient_that_cancels_in_fp32_was_not_flushed(precision: str) -> None:
    layers = tuple(map(Layer, ("rms_norm", "residual", "batch_norm", "batch_norm", "bottleneck")))
    example = Program(layers=layers, width=4, task="classification", precision=precision, batch=2, seed=1)
    diagnosis = diagnose_program(example)
    assert judge(example, Expected(False), diagnosis) in GOOD, diagnosis.verdict


def test_an_edge_that_only_the_recheck_meets_is_no_number_beyond_fp32() -> None:
    layers = (Layer("residual"),)
    check(
        program(
            "asin_clamped", layers=layers, shape="sequences", task="classification", seed=17, batch=6, steps=6, width=12
        )
    )


def test_a_norm_that_overflows_and_is_clamped_again_is_not_what_flushed_the_gradients() -> None:
    layers = (Layer("attention"),)
    check(
        program("loss_weight_tiny", layers=layers, shape="sequences", precision="half", optimizer="adam", clip="norm")
    )


def test_a_tensor_made_like_an_fp16_one_stays_fp16_under_the_autocast_put_around() -> None:
    layers = tuple(map(Layer, ("finite_mask", "residual", "layer_norm")))
    check(Program(layers=layers, optimizer="adam", fault=Fault("product_overflow", after=2, step=1, bits=20)))
