"""The sweep's reports: goldens for every ending, and what holds for all of them."""

import json
import re
from dataclasses import replace

import pytest

from loss_scale import sweeps
from nanprobe.loss_scale.result import SweepResult
from nanprobe.records import Target
from nanprobe.reports.formats import ReportFormat
from nanprobe.reports.sweep import make_sweep_report

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def results() -> dict[str, SweepResult]:
    return {name: make() for name, make in sweeps.ALL.items()}


def render(result: SweepResult, width: int = 80, color: bool = False, show_all: bool = False) -> str:
    return make_sweep_report(ReportFormat.TERMINAL, width=width, color=color, show_all=show_all).render(result)


def document(result: SweepResult) -> dict:
    return json.loads(make_sweep_report(ReportFormat.JSON).render(result), parse_constant=pytest.fail)


@pytest.mark.parametrize("name", sweeps.ALL)
def test_sweep_at_80_columns(name, results, check_golden):
    check_golden(render(results[name]))


def test_sweep_transformer_at_120_columns(results, check_golden):
    check_golden(render(results["transformer"], width=120))


def test_sweep_transformer_in_color(results, check_golden):
    check_golden(render(results["transformer"], color=True))


@pytest.mark.parametrize("name", sweeps.ALL)
@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_lines_fit_and_color_changes_no_character(name, width, results):
    plain = render(results[name], width)
    assert ESCAPE.search(plain) is None
    assert ESCAPE.sub("", render(results[name], width, color=True)) == plain
    for line in plain.splitlines():
        assert line == line.rstrip()
        assert len(line) <= width or "GradScaler(" in line or "nanprobe" in line, line


def test_names_with_markup_are_shown_as_they_are(results):
    assert "head.[red]scores[/red]" in ESCAPE.sub("", render(results["conflicting"], color=True))


def test_a_bar_marks_the_layers_window_and_the_safe_part_of_it(results):
    text = render(results["transformer"])
    bar = next(line for line in text.splitlines() if line.strip().startswith("embed")).split()[1]
    assert bar == "█" * 14 + "▒" * 8 + "·" * 11
    marks = next(line for line in text.splitlines() if "▲" in line and "your scale" in line)
    start = next(line for line in text.splitlines() if "all layers  " in line).index("█")
    assert [i - start for i, sign in enumerate(marks) if sign == "▲"] == [13, 16]


def test_many_layers_are_counted_and_shown_on_demand(results):
    result = results["transformer"]
    many = replace(result, layers=tuple(replace(result.layers[0], layer=f"block.{i}") for i in range(30)))
    many = replace(many, layers=(*result.layers, *many.layers))
    assert "… and 24 layers with wider windows (--all)" in render(many)
    assert "block.29" in render(many, show_all=True)


def test_a_confirmation_that_disagrees_says_so(results):
    result = results["transformer"]
    first = result.confirmations[1]
    wrong = replace(first, real=replace(first.real, overflowing_tensors=3))
    assert "3 overflowing tensors, 0% flushed (predicted 0%): not as predicted" in " ".join(
        render(replace(result, confirmations=(wrong,))).split()
    )


def test_the_document_keeps_its_contract(results):
    told = document(results["transformer"])
    head = ["schema_version", "nanprobe", "torch", "device", "target", "status"]
    assert list(told)[: len(head)] == head
    assert told["window"] == {
        "lowest_scale": 1.0,
        "highest_scale": 8192.0,
        "low_set_by": None,
        "high_set_by": "head",
        "bits": 13,
    }
    assert [row["scale"] for row in told["scales"]] == [2.0**e for e in range(33)]
    assert {"scale", "overflowing_tensors", "flushed_fraction", "lost_norm_fraction"} <= told["scales"][0].keys()
    assert {"name", "window", "scales"} <= told["layers"][0].keys()
    wanted = {"name", "skipped_steps", "effective_step_fraction", "flushed_fraction", "lowest_scale", "highest_scale"}
    assert all(wanted <= policy.keys() for policy in told["policies"])
    assert told["advice"].keys() == {"init_scale", "growth_interval", "why", "code", "remedies"}
    assert told["scaler"]["skipped_steps"] == 3 and told["conflict"] is None
    assert [each["agrees"] for each in told["confirmations"]] == [True, True]


def test_no_safe_window_is_null_and_the_conflict_says_why(results):
    told = document(results["conflicting"])
    assert told["window"] is None
    assert told["conflict"]["overflowing_layer"] == "head.[red]scores[/red]"
    assert (told["conflict"]["overflows_from"], told["conflict"]["needed_scale"]) == (2.0**13, 2.0**16)


def test_numbers_that_are_not_finite_are_named(results):
    told = document(results["tiny_gradient"])
    assert told["runs"][3]["updates"][0]["gradient"] == "-Infinity"
    assert told["runs"][1]["updates"][0]["index"] == [0, 0]


def test_any_text_from_the_user_is_harmless(results):
    text = "a\x1b[31m\nb\t[bold]"
    result = replace(
        results["transformer"], run=sweeps.run(target=Target(text, (text,)), notices=(text,)), reasons=(text,)
    )
    report = ESCAPE.sub("", render(result, color=True))
    assert all(character.isprintable() or character == "\n" for character in report)


def test_of_many_updates_those_are_shown_that_a_scale_decides(results):
    result = results["tiny_gradient"]

    def more(run):
        frozen = [replace(run.updates[0], parameter=f"frozen.{i}", update=0.0) for i in range(9)]
        later = [replace(update, step=1) for update in run.updates]
        return replace(run, updates=(*frozen, *run.updates, *later))

    many = replace(result, real_runs=tuple(map(more, result.real_runs)))
    text = render(many)
    assert "weight[0, 0], step 0" in text
    assert "step 1" not in text
    assert "… and 9 more updates (--all)" in text
    assert text.count("frozen.") == 2
    assert "frozen.8[0, 0], step 0" in render(many, show_all=True)
