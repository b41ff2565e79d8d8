"""No loss scale is safe (NP106): what one step at one scale proves, and what it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import Step, half_step, parameters, run, stats, step_record, trace
from nanprobe.diagnosis import diagnose, findings_of
from nanprobe.diagnosis.no_safe_scale import find_conflict
from nanprobe.diagnosis.scene import Scene
from nanprobe.findings import Finding, Severity
from nanprobe.formats import FP16
from nanprobe.records import Phase, StageName, StageTrace

INF = float("inf")


def apart(
    step: int, scale: float, large: float, small: float, lost: float = 1.0, *, dtype: str = "float16", order: int = 1
) -> Step:
    """A deep step whose largest unscaled gradients are `large` at a head and `small` at a branch that flushes."""
    deep = half_step(step, scale)
    peak = large * scale
    over = FP16.overflows(peak) and dtype == "float16"
    head = stats(dtype=dtype, inf=int(over), peak=min(peak, 6e4), shadow_peak=peak)
    flushed = stats(dtype="float16", peak=0.0, flushed=4 if lost else 0, shadow_peak=small * scale)
    top = deep.op("mm", deep.external(), out=head, phase=Phase.BACKWARD, node="MmBackward0", at=17, module="head")
    cast = deep.op("_to_copy", deep.external(), out=flushed, phase=Phase.BACKWARD, node="ToCopyBackward0", at=42)
    for name, writer in (("head.weight", top), ("branch.weight", cast))[::order]:
        made = stats(inf=int(over), shadow_peak=peak) if name == "head.weight" else stats(shadow_peak=small * scale)
        deep.grad(name, writer, made_of=made, lost=0.0 if name == "head.weight" else lost)
    return deep


def amp(*deep: Step, **details: object) -> StageTrace:
    steps = tuple(step_record(k, grads=(1.0, 1.0), loss_scale=1024.0) for k in range(10))
    return trace(StageName.AMP, *deep, parameters=parameters("head.weight", "branch.weight"), steps=steps, **details)


def conflicts(stage: StageTrace) -> list[Finding]:
    return [f for f in findings_of(stage) if f.code == "NP106"]


def test_flushed_at_the_scale_at_which_the_other_overflows() -> None:
    (finding,) = conflicts(amp(apart(0, 1024.0, 100.0, 1e-12)))
    assert finding.severity is Severity.ERROR
    assert (finding.module, finding.source and finding.source.line) == ("head", 17)
    assert finding.parameters == ("branch.weight",)
    assert "overflows from 1024, and at 512 branch.weight loses all" in finding.title
    assert finding.evidence["highest_scale"] == 512.0


def test_it_is_the_verdict_and_the_advice_to_scale_higher_is_gone() -> None:
    diagnosis = diagnose(run(trace(), amp(apart(0, 1024.0, 100.0, 1e-12))))
    assert diagnosis.verdict is not None and diagnosis.verdict.code == "NP106"
    assert "NP201" not in {f.code for f in diagnosis.findings}


def test_flushed_at_the_highest_scale_that_fits() -> None:
    (finding,) = conflicts(amp(apart(0, 512.0, 100.0, 1e-10, lost=0.6)))
    assert "at 512 branch.weight loses 60% of its gradient norm" in finding.title


def test_what_is_zero_at_a_higher_scale_too_follows_from_a_lower_one() -> None:
    (finding,) = conflicts(amp(apart(0, 8.0, 100.0, 1e-11)))
    assert "at 512 branch.weight loses all" in finding.title
    assert "would still be only 5.12e-09" in finding.why


def test_what_may_be_kept_at_a_higher_scale_is_no_conflict() -> None:
    stage = amp(apart(0, 8.0, 100.0, 1e-9))  # 5e-7 at 512: kept
    assert conflicts(stage) == []
    assert [f.code for f in findings_of(stage)] == ["NP201"]


@pytest.mark.parametrize("lost", [0.0, 0.3])
def test_a_branch_that_keeps_most_of_its_gradient_is_no_conflict(lost: float) -> None:
    assert conflicts(amp(apart(0, 512.0, 100.0, 1e-10, lost=lost))) == []


def test_a_gradient_made_in_fp32_overflows_at_no_scale() -> None:
    assert conflicts(amp(apart(0, 1024.0, 100.0, 1e-12, dtype="float32"))) == []


def test_a_gradient_too_large_without_a_scale_is_another_fault() -> None:
    assert conflicts(amp(apart(0, 1024.0, 1e5, 1e-12))) == []


def test_early_only_it_is_a_warning() -> None:
    stage = amp(apart(0, 1024.0, 100.0, 1e-12), apart(9, 1024.0, 1.0, 1e-4, lost=0.0))
    assert [f.severity for f in conflicts(stage)] == [Severity.WARNING]


def test_in_a_raw_stage_put_around_it_is_a_note() -> None:
    stage = replace(amp(apart(0, 1.0, 100.0, 1e-12)), name=StageName.FP16, as_written=False)
    assert [f.severity for f in conflicts(stage)] == [Severity.NOTE]


@given(st.floats(1e-6, 6e4), st.floats(1e-16, 1e-3), st.integers(0, 24))
def test_a_conflict_is_one_at_every_scale_and_blind_to_order(large: float, small: float, exponent: int) -> None:
    """Whoever looks at another scale comes to the same end: what is proven at one is true at the others."""
    scale = 2.0**exponent
    all_flushed = FP16.flushes(small * scale)
    deep = apart(0, scale, large, small, 1.0 if all_flushed else 0.0)
    found = find_conflict(Scene(amp(deep), deep.done()))
    turned = apart(0, scale, large, small, 1.0 if all_flushed else 0.0, order=-1)
    assert (find_conflict(Scene(amp(turned), turned.done())) is None) == (found is None)
    if found is not None:
        assert not FP16.overflows(large * found.fits) and FP16.overflows(2.0 * large * found.fits)
        assert FP16.flushes(small * found.fits)  # what is said of that scale is so
