"""JUnit and GitHub annotations of a diagnosis, a sweep and a check: valid, escaped, and saying what a CI user needs."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import samples
from loss_scale import sweeps
from nanprobe.fail_on import FailOn
from nanprobe.findings import Diagnosis, Finding, Kind, Severity, Status
from nanprobe.recipe.outcome import CheckOutcome, Comparison, Difference
from nanprobe.records import Source, StageName, Target
from nanprobe.reports.check import CheckFormat, make_check_report
from nanprobe.reports.formats import ReportFormat, make_report
from nanprobe.reports.github.commands import annotation, file_of, plain_line
from nanprobe.reports.junit.cases import TestCase as Case
from nanprobe.reports.junit.cases import render_suite
from nanprobe.reports.sweep import make_sweep_report

RUN = "/cache/nanprobe/runs/20260102-030405-train-1f3a"
NASTY = "<script>&]]>\x1b[31m\x00 ::error::%0A\r\n\u2028x"

# Source: junit-10.xsd of Jenkins' xUnit plugin; the attributes and children that are used here.
ATTRIBUTES = {
    "testsuites": {"name", "tests", "failures", "errors", "time"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time"},
    "testcase": {"classname", "name", "time"},
    "failure": {"message", "type"},
    "error": {"message", "type"},
    "skipped": {"message"},
    "system-out": set(),
}
CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"testcase"},
    "testcase": {"failure", "error", "skipped", "system-out"},
}


def parse(text: str) -> list[ElementTree.Element]:
    """The cases of a document, after checking what every reader of JUnit XML relies on."""
    assert text.startswith('<?xml version="1.0" encoding="utf-8"?>\n') and text.endswith("\n")
    root = ElementTree.fromstring(text.encode())
    for element in root.iter():
        assert set(element.attrib) == ATTRIBUTES[element.tag]
        assert {child.tag for child in element} <= CHILDREN.get(element.tag, set())
        if element.tag == "testcase":
            assert len([child for child in element if child.tag != "system-out"]) <= 1
    (suite,) = root
    cases = list(suite)
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.attrib[attribute]) == sum(case.find(tag) is not None for case in cases)
    assert int(suite.attrib["tests"]) == len(cases)
    names = [(case.attrib["classname"], case.attrib["name"]) for case in cases]
    assert len(set(names)) == len(names)
    return cases


def state(case: ElementTree.Element) -> str:
    return next((child.tag for child in case if child.tag != "system-out"), "passed")


def states(cases: list[ElementTree.Element]) -> dict[str, str]:
    return {case.attrib["name"]: state(case) for case in cases}


def junit(sample: samples.Sample, failing: FailOn | None = None) -> list[ElementTree.Element]:
    return parse(make_report(ReportFormat.JUNIT, failing=failing).render(*sample))


def github(sample: samples.Sample) -> list[str]:
    text = make_report(ReportFormat.GITHUB).render(*sample)
    assert text.endswith("\n")
    return text.splitlines()


@pytest.mark.parametrize("name", samples.ALL)
def test_junit(name: str, project: str, check_golden: Callable[[str], None]) -> None:
    check_golden(make_report(ReportFormat.JUNIT).render(*samples.ALL[name](RUN, project)))


@pytest.mark.parametrize("name", samples.ALL)
def test_github(name: str, project: str, check_golden: Callable[[str], None]) -> None:
    check_golden(make_report(ReportFormat.GITHUB).render(*samples.ALL[name](RUN, project)))


@pytest.mark.parametrize("name", samples.ALL)
def test_a_case_fails_exactly_when_the_run_does(name: str, project: str) -> None:
    record, diagnosis = samples.ALL[name](RUN, project)
    found = states(junit((record, diagnosis)))
    assert ("failure" in found.values()) is (diagnosis.status is Status.FAILING)
    assert len(found) == len(record.stages) + len(Kind)


def test_kinds_that_were_not_told_are_not_called_passed(project: str) -> None:
    found = states(junit(samples.inconclusive(RUN, project)))
    assert {found[name] for name in found if name.startswith("no ")} == {"skipped"}
    assert "error" in found.values()


def test_fail_on_decides_which_cases_fail(project: str) -> None:
    record, diagnosis = samples.healthy(RUN, project)
    warning = Finding("NP614", Kind.MISUSE, Severity.WARNING, "steps are skipped", StageName.AMP)
    sample = record, replace(diagnosis, findings=(warning,))
    assert states(junit(sample))["no AMP misuse"] == "passed"
    assert states(junit(sample, FailOn.parse("warning")))["no AMP misuse"] == "failure"


@given(st.text(), st.text(st.characters(max_codepoint=0x2100)))
def test_junit_of_any_text_is_xml(name: str, text: str) -> None:
    cases = parse(render_suite(name, [Case(name, text, failure=(text, name), output=text)]))
    assert state(cases[0]) == "failure"


def test_names_from_the_users_code_are_harmless(project: str) -> None:
    source = Source(f"{project}/a:b,c%.py", 3, NASTY)
    finding = Finding("NP101", Kind.OVERFLOW, Severity.ERROR, NASTY, StageName.AMP, module=NASTY, source=source)
    record = replace(samples.healthy(RUN, project)[0], target=Target(NASTY))
    sample = record, Diagnosis(Status.FAILING, finding, (finding,), ())
    (failed,) = [case for case in junit(sample) if state(case) == "failure"]
    assert "<script>" in failed[0].attrib["message"]
    first, last = github(sample)
    assert first.startswith(
        "::error file=a%3Ab%2Cc%25.py,line=3,title=NP101 overflow%3A <script>&]]>�[31m� %3A%3Aerror"
    )
    assert "\x1b" not in first + last
    assert last.startswith("nanprobe: ")


def test_escapes_of_workflow_commands() -> None:
    assert annotation("error", "a%\r\nb:,", title="t:,\n%") == "::error title=t%3A%2C %25::a%25%0D%0Ab:,\n"
    assert annotation("notice", "m", title="t", file="f.py", line=3) == "::notice file=f.py,line=3,title=t::m\n"
    assert annotation("notice", "m", title="t", line=3) == "::notice title=t::m\n"
    assert plain_line("::error::x\ny") == " ::error::x y\n"


def test_files_are_named_from_the_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    assert file_of("train.py") == "train.py"
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    assert file_of("train.py") == "sub/train.py"
    assert file_of(Source(str(tmp_path / "model.py"), 1, "")) == "model.py"
    assert file_of("/elsewhere/train.py") is None


@pytest.mark.parametrize("name", sweeps.ALL)
def test_sweep_junit_and_github_agree_with_the_status(name: str, project: str) -> None:
    result = sweeps.ALL[name]()
    found = states(parse(make_sweep_report(ReportFormat.JUNIT).render(result)))
    annotations = make_sweep_report(ReportFormat.GITHUB).render(result).splitlines()[:-1]
    expected = {Status.HEALTHY: "passed", Status.FAILING: "failure", Status.INCONCLUSIVE: "error"}[result.status]
    assert len(found) == 2
    assert expected in found.values() and not {"failure", "error"} - {expected} & set(found.values())
    assert len(annotations) == len(result.reasons)
    assert all(line.startswith("::error ") for line in annotations)


def outcomes(project: str) -> tuple[CheckOutcome, ...]:
    """One of each verdict."""
    verdict = samples.overflow(RUN, project)[1].verdict
    differences = (
        Difference("expect.kind", "graph", "overflow"),
        Difference("expect.place.module", "/head/", "encoder.layers.3.ffn"),
        Difference("limits.max_skipped_steps", "at most 5", "13 of 50 steps in the amp stage"),
    )
    recipe = Path(project) / "recipes"
    return (
        CheckOutcome(
            "healthy", recipe / "healthy" / "recipe.yaml", Comparison(), 3.2, Status.HEALTHY, run_directory=RUN
        ),
        CheckOutcome(
            "a-name-that-is-much-longer-than-the-column-for-names",
            recipe / "long" / "recipe.yaml",
            Comparison(differences),
            125.0,
            Status.FAILING,
            verdict,
            RUN,
            RUN + "-sweep",
            "An activation overflows",
        ),
        CheckOutcome(
            "crashed",
            recipe / "crashed" / "recipe.yaml",
            Comparison(reasons=("fp32: the script stopped in step 3 with ValueError: no such column",)),
            0.4,
            Status.INCONCLUSIVE,
        ),
    )


@pytest.mark.parametrize("form", CheckFormat)
def test_check(form: CheckFormat, project: str, check_golden: Callable[[str], None]) -> None:
    text = make_check_report(form).render(outcomes(project))
    check_golden(text.replace(project, "/project"))


def test_check_junit_is_valid(project: str) -> None:
    found = states(parse(make_check_report(CheckFormat.JUNIT).render(outcomes(project))))
    assert list(found.values()) == ["passed", "failure", "error"]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_check_lines_fit(width: int, project: str) -> None:
    text = make_check_report(CheckFormat.TERMINAL, width=width).render(outcomes(project))
    for line in text.splitlines():
        assert len(line) <= width or "nanprobe report" in line
