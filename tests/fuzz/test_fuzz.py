"""Robustness by search: random programs with a fault put in, or none, and what the verdict says of them.

`make test` runs a few hundred, the same ones each time; `make fuzz` thousands, and prints the figures.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings

from fuzz.drawing import programs
from fuzz.faults import FAULTS
from fuzz.judging import expect, judge
from fuzz.programs import Program
from fuzz.running import diagnose_program
from fuzz.tally import GOOD, Miss

EACH = settings(
    derandomize=True, database=None, deadline=None, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


def check(program: Program) -> None:
    expected = expect(program)
    assume(expected is not None)
    assert expected is not None
    diagnosis = diagnose_program(program)
    grade = judge(program, expected, diagnosis)
    assert grade in GOOD, Miss(program, expected, diagnosis, grade).describe()


@pytest.mark.parametrize("kind", FAULTS)
def test_the_verdict_names_the_fault_and_its_line(kind: str) -> None:
    @settings(EACH, max_examples=4)
    @given(programs(kind))
    def each(program: Program) -> None:
        check(program)

    each()


@settings(EACH, max_examples=50)
@given(programs())
def test_a_sound_program_is_left_alone(program: Program) -> None:
    check(program)
