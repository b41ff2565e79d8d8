"""The chain from an origin to its symptom: what it begins and ends with, and what is left out of a long one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import Step, half_step, line, run, specimen, stats, step_record, trace, with_steps
from nanprobe.diagnosis import diagnose
from nanprobe.diagnosis.chain import MAX_LINKS, condense
from nanprobe.findings import ChainLink, Finding
from nanprobe.records import ExternalKind, Phase, StageName

BROKEN = stats((8,), nan=8, peak=0.0, dtype="float16")
OVERFLOWN = stats((8,), inf=2, peak=60000.0, dtype="float16", shadow_peak=80000.0)


def verdict_of(step: Step, name: StageName = StageName.AMP) -> Finding:
    bad = step_record(step.step, loss=math.nan, grads=(math.nan, math.nan))
    verdict = diagnose(run(with_steps(trace(name, step), bad))).verdict
    assert verdict is not None
    return verdict


def overflowing(length: int) -> Step:
    """An overflow that runs through `length` operations to the loss, and from there into a gradient."""
    step = half_step(3)
    x = step.op("mm", step.external(name="x"), out=stats((8,), peak=200.0, shadow_peak=200.0, dtype="float16"))
    last = step.op("mul", x, x, out=OVERFLOWN, at=12, module="block", specimens=(specimen(math.inf, 80000.0, 282.8),))
    for k in range(length):
        last = step.op("add", step.read(last), out=BROKEN if k else OVERFLOWN, at=20 + k, module=f"layers.{k}")
    loss = step.op("mean", step.read(last), out=stats((), nan=1, peak=0.0), at=70)
    step.loss_writers = (loss,)
    grad = step.op("mm", step.read(loss), out=stats((4, 4), nan=16, peak=0.0), phase=Phase.BACKWARD, at=12)
    step.grad("a.weight", grad)
    return step


def test_a_chain_leads_from_the_origin_to_the_loss() -> None:
    chain = verdict_of(overflowing(2)).chain
    assert [link.op or link.tensor for link in chain] == [
        "aten.mul.Tensor", "aten.add.Tensor", "aten.add.Tensor", "aten.mean.Tensor", "loss",
    ]  # fmt: skip
    first, last = chain[0], chain[-1]
    assert (first.source, first.module, first.phase) == (line(12), "block", Phase.FORWARD)
    assert first.before is not None and (first.before.abs_max, first.before.nan_count) == (200.0, 0)
    assert first.after is not None and (first.after.inf_count, first.after.recheck_abs_max) == (2, 80000.0)
    assert last.after is not None and last.after.nan_count == 1
    assert [link.skipped for link in chain] == [0] * 5


def test_the_middle_of_a_long_chain_is_left_out_and_counted() -> None:
    chain = verdict_of(overflowing(40)).chain
    assert len(chain) == MAX_LINKS
    assert (chain[0].op, chain[1].module, chain[-1].tensor) == ("aten.mul.Tensor", "layers.0", "loss")
    assert chain[2].module == "layers.1", "where Inf becomes NaN"
    assert sum(link.skipped or 0 for link in chain) + len(chain) == 43


def test_a_batch_from_outside_begins_the_chain() -> None:
    step = Step(2)
    x = step.external(ExternalKind.BATCH, "x", stats((8, 4), nan=3, shadow_nan=3), rows=(1,), batch_index=2)
    loss = step.op("mean", x, out=stats((), nan=1, shadow_nan=1))
    step.loss_writers = (loss,)
    assert [link.op or link.tensor for link in verdict_of(step, StageName.FP32).chain] == [
        "batch x", "aten.mean.Tensor", "loss",
    ]  # fmt: skip


def test_a_flushed_gradient_ends_in_that_gradient() -> None:
    step = half_step(0)
    lost = stats((4, 4), peak=0.0, shadow_peak=1e-8, flushed=16, dtype="float16")
    first = step.op("mul", step.external(), out=lost, phase=Phase.BACKWARD, at=30)
    second = step.op("mm", step.read(first), out=lost, phase=Phase.BACKWARD, at=31)
    step.grad("a.weight", second, lost=1.0)
    found = diagnose(run(trace(StageName.AMP, step))).verdict
    assert found is not None and found.code == "NP201"
    assert [link.op or link.tensor for link in found.chain] == [
        "aten.mul.Tensor", "aten.mm.Tensor", "gradient of a.weight",
    ]  # fmt: skip
    assert found.chain[0].after is not None and found.chain[0].after.flushed_fraction == 1.0


def test_an_operation_that_only_stands_beside_the_fault_is_no_link() -> None:
    step = overflowing(1)
    step.op("mul", step.read(0), out=stats((8,)), at=99)
    assert all(link.source is None or link.source.line != 99 for link in verdict_of(step).chain)


@given(st.integers(0, 60), st.lists(st.sampled_from(Phase), min_size=60, max_size=60))
def test_condensing_keeps_the_ends_and_counts_the_rest(length: int, phases: list[Phase]) -> None:
    plain = ChainLink("aten.add.Tensor", None, "m", None, Phase.FORWARD, None, None)
    links = [replace(plain, phase=phases[k], module=str(k)) for k in range(length)]
    short = condense(links)
    assert len(short) == min(length, MAX_LINKS)
    assert len(short) + sum(link.skipped or 0 for link in short) == length
    if links:
        assert (short[0].module, short[-1].module) == (links[0].module, links[-1].module)
    assert [link.module for link in short] == sorted((link.module for link in short), key=lambda m: int(m or 0))


@pytest.mark.parametrize("length", [2, 40])
def test_every_chain_is_plain_data_in_the_document(length: int) -> None:
    from nanprobe.reports.document import build_finding, to_plain

    plain = to_plain(build_finding(verdict_of(overflowing(length))))["chain"]
    assert plain[0]["before"]["abs_max"] == 200.0 and plain[0]["source"]["line"] == 12
    assert plain[-1]["tensor"] == "loss" and plain[-1]["op"] is None
