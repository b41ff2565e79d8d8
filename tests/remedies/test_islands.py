"""The search for the smallest island: it finds the set, and in how many runs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import builders
from nanprobe.records import StageName
from nanprobe.remedies.islands import smallest_island, suspects
from remedies.cases import finding


class Counted:
    """A run that is sound when all of a hidden set is in FP32; counts how often it is asked."""

    def __init__(self, needed: set[str]) -> None:
        self.needed, self.asked = needed, list[tuple[str, ...]]()

    def __call__(self, modules: tuple[str, ...]) -> bool:
        self.asked.append(modules)
        return self.needed <= set(modules)


@st.composite
def hidden_sets(draw: st.DrawFn) -> tuple[list[str], set[str]]:
    modules = [f"m{k}" for k in range(draw(st.integers(1, 300)))]
    return modules, set(draw(st.lists(st.sampled_from(modules), min_size=1, max_size=5)))


@given(hidden_sets())
def test_the_set_is_found_in_order_of_k_log_n_runs(given_set: tuple[list[str], set[str]]) -> None:
    modules, needed = given_set
    run = Counted(needed)
    assert set(smallest_island(modules, run, largest=8) or ()) == needed
    n, k = len(modules), len(needed)
    assert len(run.asked) <= k * (2 * math.log2(n) + 3) + 1


def test_a_suspect_at_the_front_takes_one_run() -> None:
    run = Counted({"m0"})
    assert smallest_island([f"m{k}" for k in range(100)], run) == ("m0",)
    assert len(run.asked) == 1


def test_none_when_no_set_helps() -> None:
    run = Counted({"elsewhere"})
    assert smallest_island([f"m{k}" for k in range(64)], run) is None
    assert len(run.asked) <= 8


def test_none_when_it_would_be_larger_than_wanted() -> None:
    modules = [f"m{k}" for k in range(20)]
    assert smallest_island(modules, Counted(set(modules)), largest=3) is None


@pytest.mark.parametrize("module", ["layers.1.mlp", None])
def test_suspects_begin_with_the_finding_and_its_neighbours(module: str | None) -> None:
    names = [f"layers.{k}.{part}.weight" for k in range(3) for part in ("attn", "mlp")]
    trace = builders.trace(StageName.AMP, parameters=builders.parameters(*names), facts={"models": ["Net"]})
    found = suspects(trace, finding("NP101", None, StageName.AMP, module=module))
    assert sorted(found) == sorted(n.removesuffix(".weight") for n in names)
    if module is not None:
        assert found[:2] == ["layers.1.mlp", "layers.1.attn"]


def test_whole_models_and_mere_containers_are_no_suspects() -> None:
    step = builders.half_step()
    step.op("mul", module="Net")
    step.op("mul", module="net.0")
    trace = builders.trace(
        StageName.AMP, step, parameters=builders.parameters("net.0.weight", "net.1.weight"), facts={"models": ["Net"]}
    )
    assert suspects(trace, finding("NP101", None, StageName.AMP, module="Net")) == ["net.0", "net.1"]
