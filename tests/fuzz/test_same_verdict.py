"""Programs that differ in nothing that matters get one verdict; and stages in this process give those of real ones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from command import run_nanprobe
from fuzz.faults import Fault
from fuzz.programs import Layer, Program
from fuzz.rendering import render
from fuzz.running import diagnose_program
from nanprobe.findings import Diagnosis
from nanprobe.target.launcher import Launcher, make_launcher

MIXED = tuple(map(Layer, ("residual", "layer_norm", "gate")))
ATTENTION = tuple(map(Layer, ("position", "causal", "residual", "layer_norm")))
CONVOLUTION = tuple(map(Layer, ("convolution", "residual_convolution", "group_norm")))

PROGRAMS = {
    "sound": Program(layers=ATTENTION, shape="tokens", task="classification", optimizer="adamw", precision="amp"),
    "sqrt": Program(layers=MIXED, fault=Fault("sqrt_at_zero", after=2, step=2), data="shuffled"),
    "mask": Program(
        layers=ATTENTION, shape="tokens", fault=Fault("masked_softmax_row", after=3, row=1), form="contract"
    ),
    "product": Program(layers=MIXED, fault=Fault("product_overflow", after=1, step=1, bits=20), optimizer="adam"),
    "silent": Program(layers=CONVOLUTION, shape="images", fault=Fault("norm_overflow", after=1, bits=20)),
    "half": Program(layers=MIXED, precision="half", fault=Fault("square_overflow", after=1, step=2, bits=22)),
    "flush": Program(layers=MIXED, precision="amp", scaler=False, fault=Fault("gradient_flushed", after=3)),
    "data": Program(layers=ATTENTION, shape="sequences", data="rows", fault=Fault("nan_input", step=3, row=2)),
    "rate": Program(layers=MIXED, fault=Fault("huge_rate", bits=20), steps=8),
    "clip": Program(layers=MIXED, precision="amp", clip="norm", fault=Fault("clip_scaled")),
    "micro": Program(layers=MIXED, accumulation=2, fault=Fault("step_each_micro_batch")),
    "masters": Program(layers=MIXED, precision="masters", optimizer="adam", task="multilabel"),
}


def signature(diagnosis: Diagnosis) -> object:
    """What a verdict says, but for the number of its line and those in the names on it."""
    verdict = diagnosis.verdict
    if verdict is None:
        return diagnosis.status
    code = re.sub(r"(?<=[a-z])\d+", "", verdict.source.code) if verdict.source else None
    return (diagnosis.status, verdict.code, verdict.severity, verdict.stage, verdict.step, verdict.phase, code)


@cache
def plain(name: str) -> Diagnosis:
    return diagnose_program(PROGRAMS[name])


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_order_of_the_parameters_does_not_matter(name: str) -> None:
    program = PROGRAMS[name]
    turned = replace(program, backwards=True)
    assert signature(diagnose_program(turned)) == signature(plain(name))


@pytest.mark.parametrize("kind", ["identity", "no_dropout", "finite_mask"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_module_that_does_nothing_does_not_matter(name: str, kind: str) -> None:
    program = PROGRAMS[name]
    with_it = replace(program, layers=(Layer(kind), *program.layers, Layer(kind)), fault=_moved(program.fault))
    assert signature(diagnose_program(with_it)) == signature(plain(name))


def _moved(fault: Fault | None) -> Fault | None:
    return None if fault is None else replace(fault, after=fault.after + 1)


@pytest.fixture(scope="module")
def server() -> Iterator[Launcher]:
    with make_launcher(0) as launcher:
        yield launcher


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_stage_in_a_process_of_its_own_gives_the_same_verdict(name: str, server: Launcher) -> None:
    program = PROGRAMS[name]
    assert signature(diagnose_program(program, server)) == signature(plain(name))


@pytest.mark.parametrize("name", ["silent", "data"])
def test_the_command_gives_the_same_verdict(name: str, tmp_path: Path) -> None:
    script = render(PROGRAMS[name])
    (tmp_path / "train.py").write_text(script.source, encoding="utf-8")
    result = run_nanprobe("diagnose", "train.py", "--format", "json", "--output", "run", cwd=tmp_path)
    found, here = json.loads(result.stdout), plain(name).verdict
    assert here is not None and here.source is not None
    verdict = found["verdict"]
    assert [verdict[k] for k in ("code", "step")] == [here.code, here.step]
    assert verdict["source"]["line"] == here.source.line
