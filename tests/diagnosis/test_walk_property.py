"""Random graphs of operations with one fault put in: the walk back finds just that operation, from any symptom."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from builders import Step, half_step, stats
from nanprobe.diagnosis.causes import nonfinite_origins
from nanprobe.diagnosis.origins import Birth
from nanprobe.diagnosis.trail import Trail
from nanprobe.diagnosis.wrong_values import zero_origins

# For each operation the earlier ones it reads, as offsets.
graphs = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True), min_size=4, max_size=25)


def parents(graph: list[list[int]], index: int) -> list[int]:
    return sorted({index - offset for offset in graph[index] if index - offset >= 0})


def reached(graph: list[list[int]], fault: int) -> set[int]:
    found = {fault}
    for index in range(fault + 1, len(graph)):
        if found & set(parents(graph, index)):
            found.add(index)
    return found


@settings(max_examples=150, deadline=None)
@given(graphs, st.data(), st.booleans())
def test_the_walk_finds_the_operation_where_the_fault_was_put(
    graph: list[list[int]], data: st.DataObject, exact: bool
) -> None:
    fault = data.draw(st.integers(0, len(graph) - 1))
    bad = reached(graph, fault)
    symptom = data.draw(st.sampled_from(sorted(bad)))
    step = Step()
    for index in range(len(graph)):
        read = [step.read(p) if exact else p for p in parents(graph, index)] or [step.external()]
        step.op("add", *read, out=stats(nan=1, shadow_nan=1) if index in bad else stats(), at=index)
    (origin,) = nonfinite_origins(Trail(step.done()), [symptom])
    assert origin.op is not None
    assert (origin.op.index, origin.birth) == (fault, Birth.NAN)
    assert origin.path[0] == fault and origin.path[-1] == symptom


@settings(max_examples=150, deadline=None)
@given(graphs, st.data())
def test_the_walk_finds_the_operation_that_flushed(graph: list[list[int]], data: st.DataObject) -> None:
    fault = data.draw(st.integers(0, len(graph) - 1))
    lost = reached(graph, fault)
    symptom = data.draw(st.sampled_from(sorted(lost)))
    step = half_step()
    for index in range(len(graph)):
        zero = stats(peak=0.0, dtype="float16", flushed=4, shadow_peak=1e-9)
        step.op("mul", *(parents(graph, index) or [step.external()]), out=zero if index in lost else stats())
    (origin,) = zero_origins(Trail(step.done()), [symptom])
    assert origin.op is not None
    assert origin.op.index == fault


@settings(max_examples=50, deadline=None)
@given(graphs)
def test_a_graph_without_a_fault_has_no_origin(graph: list[list[int]]) -> None:
    step = Step()
    for index in range(len(graph)):
        step.op("add", *(parents(graph, index) or [step.external()]))
    assert nonfinite_origins(Trail(step.done()), range(len(graph))) == ()
