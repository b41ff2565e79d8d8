"""The walk back: from a symptom to the first operation, or tensor, that was at fault."""

from __future__ import annotations

from builders import Step, half_step, specimen, stats
from nanprobe.diagnosis.causes import nonfinite_origins
from nanprobe.diagnosis.origins import Birth
from nanprobe.diagnosis.trail import Trail
from nanprobe.diagnosis.wrong_values import zero_origins
from nanprobe.records import ExternalKind

NAN = stats(nan=4, peak=0.0, shadow_nan=4, shadow_peak=0.0)
INF = stats(inf=1, shadow_inf=1)


def test_nan_begins_where_no_input_is_nan() -> None:
    step = Step()
    x = step.op("linear", step.external())
    born = step.op("log", x, out=NAN, at=11)
    last = step.op("mul", step.read(born), out=NAN, at=12)
    (origin,) = nonfinite_origins(Trail(step.done()), [last])
    assert origin.op is not None
    assert (origin.op.index, origin.birth, origin.path) == (born, Birth.NAN, (born, last))


def test_nan_made_of_inf_leads_to_the_operation_that_made_the_inf() -> None:
    step = Step()
    born = step.op("log", step.external(), out=INF)
    product = step.op("mul", step.read(born), out=NAN)
    (origin,) = nonfinite_origins(Trail(step.done()), [product])
    assert origin.op is not None
    assert (origin.op.index, origin.birth) == (born, Birth.INF)


def test_inf_written_on_purpose_is_no_origin() -> None:
    step = Step()
    masked = step.op("masked_fill", step.external(), out=INF, deliberate=True)
    softmax = step.op("_softmax", step.read(masked), out=NAN)
    (origin,) = nonfinite_origins(Trail(step.done()), [softmax])
    assert origin.op is not None
    assert (origin.op.index, origin.masked) == (softmax, True)


def test_a_mask_from_outside_is_no_origin_but_inf_among_numbers_is() -> None:
    mask = stats(inf=3, peak=0.0, shadow_inf=3)
    data = stats(inf=1, peak=2.5, shadow_inf=1)
    for made_of, expected in ((mask, None), (data, 0)):
        step = Step()
        outside = step.external(ExternalKind.BATCH, made_of=made_of)
        read = step.op("add", outside, out=INF)
        product = step.op("mul", step.read(read), out=NAN)
        (origin,) = nonfinite_origins(Trail(step.done()), [product])
        assert (origin.external.index if origin.external else None) == expected


def test_nan_from_outside_ends_at_the_tensor() -> None:
    step = Step()
    outside = step.external(ExternalKind.PARAMETER, "emb.weight", NAN)
    used = step.op("embedding", outside, out=NAN)
    (origin,) = nonfinite_origins(Trail(step.done()), [used])
    assert origin.external is not None
    assert origin.external.name == "emb.weight"


def test_exact_counts_win_over_what_the_writer_left() -> None:
    # A slice without the NaN was read: its writer's NaN is none of this operation's business.
    step = Step()
    labels = step.op("index_put_", step.external(), out=NAN)
    picked = step.read(labels, nan_count=0, inf_count=0)
    born = step.op("div", picked, out=NAN, at=20)
    (origin,) = nonfinite_origins(Trail(step.done()), [born])
    assert origin.op is not None
    assert origin.op.index == born


def test_what_does_not_lead_to_the_symptom_is_not_visited() -> None:
    step = Step()
    step.op("log", step.external(), out=NAN, at=3)  # a metric
    good = step.op("linear", step.external())
    assert nonfinite_origins(Trail(step.done()), [good]) == ()


def test_a_precise_overflow_is_found_behind_a_legal_inf() -> None:
    step = half_step()
    mask = step.op("masked_fill", step.external(), out=INF, deliberate=True)
    sum_ = stats(inf=3, shadow_inf=1, dtype="float16", shadow_peak=1e5)
    born = step.op("add", step.read(mask, stats(inf=1, shadow_inf=1)), out=sum_, at=7)
    softmax = step.op("_softmax", step.read(born), out=stats(nan=4, dtype="float16"))
    (origin,) = nonfinite_origins(Trail(step.done()), [softmax])
    assert origin.op is not None
    assert (origin.op.index, origin.precise) == (born, True)


def test_a_denominator_that_was_flushed_is_the_origin() -> None:
    step = half_step()
    x = step.op("pow", step.external(), out=stats(dtype="float16", flushed=4, shadow_peak=1e-9))
    quotient = stats(nan=4, dtype="float16")
    bad = step.op(
        "div", step.external(), step.read(x), out=quotient, specimens=(specimen(float("nan"), 1.0, 0.0, 0.0),)
    )
    (origin,) = nonfinite_origins(Trail(step.done()), [bad])
    assert origin.op is not None and origin.outcome is not None
    assert (origin.op.index, origin.birth, origin.outcome.index) == (x, Birth.ZERO, bad)


def test_what_is_divided_by_a_plain_number_is_no_denominator() -> None:
    """Of many elements some were flushed and one overflows: x / 0.008 is too large where x is large."""
    step = half_step()
    x = step.op("_log_softmax_backward_data", step.external(), out=stats(dtype="float16", flushed=2, peak=2048.0))
    bad = step.op("div", step.read(x), out=stats(inf=1, dtype="float16", shadow_peak=2.6e5), scalars=(0.008,))
    (origin,) = nonfinite_origins(Trail(step.done()), [bad])
    assert origin.op is not None
    assert (origin.op.index, origin.birth) == (bad, Birth.INF)


def test_a_lost_eps_is_the_origin_and_not_what_it_was_added_to() -> None:
    step = half_step()
    p = step.op("sigmoid", step.external(), out=stats(dtype="float16", flushed=1, shadow_peak=1e-9))
    guarded = step.op("add", step.read(p), out=stats(dtype="float16", flushed=1), scalars=(1e-8,), at=15)
    log = step.op("log", step.read(guarded), out=stats(inf=1, dtype="float16"))
    loss = step.op("mul", step.read(log), out=stats(nan=1, dtype="float16"))
    (origin,) = nonfinite_origins(Trail(step.done()), [loss])
    assert origin.op is not None
    assert (origin.op.index, origin.birth) == (guarded, Birth.ZERO)


def test_an_eps_that_the_format_holds_is_walked_past() -> None:
    step = half_step()
    p = step.op("sigmoid", step.external(), out=stats(dtype="float16", flushed=4, shadow_peak=1e-9))
    guarded = step.op("add", step.read(p), out=stats(dtype="float16", flushed=4), scalars=(1e-4,))
    log = step.op("log", step.read(guarded), out=stats(inf=1, dtype="float16"))
    (origin,) = nonfinite_origins(Trail(step.done()), [log])
    assert origin.op is not None
    assert origin.op.index == p


def test_dead_zeros_lead_through_a_reciprocal_to_the_overflow() -> None:
    step = half_step()
    square = step.op("pow", step.external(), out=stats(inf=4, dtype="float16", shadow_peak=4e6), at=19)
    mean = step.op("mean", square, out=stats(inf=4, dtype="float16", shadow_peak=4e6))
    dead = stats(peak=0.0, dtype="float16", flushed=4, shadow_peak=5e-4)
    root = step.op("rsqrt", mean, out=dead)
    normed = step.op("mul", step.external(), root, out=dead)
    grad = step.op("mm", step.external(), normed, out=dead)
    (origin,) = zero_origins(Trail(step.done()), [grad])
    assert origin.op is not None
    assert (origin.op.index, origin.birth) == (square, Birth.INF)


def test_flushed_gradient_leads_to_the_first_that_lost_the_majority() -> None:
    step = half_step()
    fine = step.op("mse_loss_backward", step.external(), out=stats(shadow_peak=6e-9))
    cast = step.op("_to_copy", fine, out=stats(dtype="float16", flushed=4, shadow_peak=6e-9), at=42)
    grad = step.op("mm", step.external(), cast, out=stats(dtype="float16", flushed=4))
    (origin,) = zero_origins(Trail(step.done()), [grad])
    assert origin.op is not None
    assert origin.op.index == cast


def test_a_few_zeros_in_an_input_do_not_explain_many_in_the_result() -> None:
    step = half_step()
    relu = step.op("relu", step.external(), out=stats((100,), dtype="float16", flushed=1))
    grad = step.op("mm", relu, out=stats((100,), dtype="float16", flushed=90))
    (origin,) = zero_origins(Trail(step.done()), [grad])
    assert origin.op is not None
    assert origin.op.index == grad


def test_lanes_of_a_foreach_operation_are_kept_apart() -> None:
    step = Step()
    old, poisoned = step.op("add", step.external()), step.op("log", step.external(), out=NAN, at=5)
    updated = step.op(
        "aten._foreach_add_.List", step.read(old), step.read(poisoned), out=(stats(), stats(nan=4, shadow_nan=4))
    )
    (origin,) = nonfinite_origins(Trail(step.done()), [updated])
    assert origin.op is not None
    assert origin.op.index == poisoned


def test_a_cycle_of_in_place_writes_ends() -> None:
    step = Step()
    first = step.op("add_", step.external(), out=NAN)
    # The operation lists itself among the writers of what it read.
    again = step.op("mul_", step.read(first), out=NAN)
    step.ops[again] = type(step.ops[again])(
        **{**{f: getattr(step.ops[again], f) for f in step.ops[again].__slots__},
           "inputs": (step.read(again),)}
    )  # fmt: skip
    (origin,) = nonfinite_origins(Trail(step.done()), [again])
    assert origin.op is not None
    assert origin.op.index == again
