"""The gallery: every folder is whole and says what is true, and some of its scripts get the verdict they expect.

All of them are run by `nanprobe check recipes`.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from command import run_nanprobe
from nanprobe.catalogue import CATALOGUE
from nanprobe.findings import Status
from nanprobe.recipe import Recipe, read_recipe

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "recipes"
FOLDERS = sorted(path.parent for path in RECIPES.glob("*/recipe.yaml"))
FILES = {"README.md", "train.py", "recipe.yaml", "fixed.py", "fixed.recipe.yaml"}
SCENARIOS = ("detection", "fine-tuning", "reinforcement", "small-model", "transformer")
# Found by the walk back, by the calls, and as a habit; the others take their turn in `nanprobe check recipes`.
RUN_HERE = ("log-zero", "missing-update", "overflow-loss-scale")

each_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def block(folder: Path, language: str) -> list[str]:
    """The lines of the README's last block of a language."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[-1].splitlines()


def failing_recipe(folder: Path) -> Recipe:
    return read_recipe(folder / "recipe.yaml")


def test_the_gallery_is_there() -> None:
    assert len(FOLDERS) == 18
    assert {path.parent for path in RECIPES.glob("*/*.py")} == set(FOLDERS)


@each_folder
def test_a_folder_is_whole(folder: Path) -> None:
    assert {path.name for path in folder.iterdir() if path.is_file()} == FILES
    failing, fixed = failing_recipe(folder), read_recipe(folder / "fixed.recipe.yaml")
    assert (failing.target, fixed.target) == ("train.py", "fixed.py")
    assert (failing.expect.status, fixed.expect.status) == (Status.FAILING, Status.HEALTHY)
    assert failing.about and fixed.about
    assert failing.steps == fixed.steps


@each_folder
def test_the_expected_lines_hold_code(folder: Path) -> None:
    recipe = failing_recipe(folder)
    assert recipe.expect.place.lines or recipe.expect.sweep, "a recipe says where, or what a sweep finds"
    script = ast.parse((folder / "train.py").read_text(encoding="utf-8"))
    code = {line for node in ast.walk(script) if isinstance(node, ast.expr) for line in _lines(node)}
    assert set(recipe.expect.place.lines) <= code


def _lines(node: ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


@each_folder
def test_the_readme_says_what_the_recipe_expects(folder: Path) -> None:
    codes = failing_recipe(folder).expect.codes
    assert codes
    assert set(codes) <= CATALOGUE.keys()
    text = (folder / "README.md").read_text(encoding="utf-8")
    for line in failing_recipe(folder).expect.place.lines:
        assert f"recipes/{folder.name}/train.py:{line}" in text or folder.name == "tiny-gradient"
    shown = [code for code in codes if code in text]
    assert shown or failing_recipe(folder).expect.sweep
    row = next(line for line in (RECIPES / "README.md").read_text().splitlines() if f"]({folder.name})" in line)
    assert all(code in row for code in codes)


@each_folder
def test_the_readme_shows_the_whole_difference_to_the_fixed_script(folder: Path) -> None:
    before, after = ((folder / name).read_text(encoding="utf-8").splitlines() for name in ("train.py", "fixed.py"))
    real = list(difflib.unified_diff(before, after, n=1, lineterm=""))[2:]
    assert [line.rstrip() for line in block(folder, "diff")] == [line.rstrip() for line in real]


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_is_settings_only(name: str) -> None:
    recipe = read_recipe(RECIPES / "scenarios" / f"{name}.yaml")
    assert recipe.is_scenario
    assert recipe.about
    assert {"init_scale", "growth_interval"} <= recipe.settings().keys()
    row = next(line for line in (RECIPES / "README.md").read_text().splitlines() if f"/{name}.yaml)" in line)
    exponent = int(recipe.settings()["init_scale"]).bit_length() - 1
    assert f"| 2^{exponent}" in row
    assert f"| {recipe.settings()['growth_interval']} " in row


def test_there_are_no_other_scenarios() -> None:
    assert sorted(path.stem for path in (RECIPES / "scenarios").iterdir()) == list(SCENARIOS)


def diagnose(script: Path, tmp_path: Path, code: int) -> tuple[dict[str, Any], str]:
    """The document and the terminal's report of a recipe's script, from the root as its README says."""
    target = str(script.relative_to(ROOT))
    done = run_nanprobe("diagnose", target, "--output", str(tmp_path / "run"), cwd=ROOT)
    assert done.code == code, done.both
    assert done.left_running == []
    document: dict[str, Any] = json.loads((tmp_path / "run" / "diagnosis.json").read_text(encoding="utf-8"))
    return document, done.stdout


@pytest.mark.parametrize("name", RUN_HERE)
def test_a_failing_script_gets_its_verdict(name: str, tmp_path: Path) -> None:
    folder = RECIPES / name
    expect = failing_recipe(folder).expect
    document, report = diagnose(folder / "train.py", tmp_path, code=1)
    verdict = document["verdict"]
    assert (verdict["code"],) == expect.codes
    assert (verdict["kind"],) == tuple(kind.value for kind in expect.kinds)
    assert verdict["source"]["line"] in expect.place.lines
    assert verdict["step"] in expect.steps
    shown = "\n".join(block(folder, "text"))
    # The title and the place; figures may differ in the last digit from machine to machine.
    for line in re.split(r"^(?:EVIDENCE|WHY)$", shown, flags=re.MULTILINE)[0].splitlines():
        assert line in report


@pytest.mark.parametrize("name", ["update-per-micro-batch"])
def test_a_fixed_script_is_healthy(name: str, tmp_path: Path) -> None:
    """This one learns until its loss is 1e-6: what is left of its gradients is no fault of FP16."""
    document, report = diagnose(RECIPES / name / "fixed.py", tmp_path, code=0)
    assert document["status"] == "healthy"
    assert "HEALTHY" in report
