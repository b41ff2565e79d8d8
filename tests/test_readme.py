"""What the README promises is what the program says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import samples
from nanprobe.recipe import build_recipe
from nanprobe.storage import write_run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def help_text(command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "nanprobe", command, "--help"],
        cwd=ROOT,
        env={"COLUMNS": "80", "NO_COLOR": "1", "PATH": "", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        check=True,
    )
    return tidy(done.stdout)


def tidy(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def block(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n```text\n(.*?)\n```", README, re.DOTALL)
    assert found, f"README.md has no block {name}"
    return tidy(found[1])


@pytest.mark.parametrize("command", re.findall(r"<!-- help:(\S+) -->", README))
def test_the_help_is_the_commands_own(command: str) -> None:
    assert block(f"help:{command}") == help_text(command)


def test_the_commands_of_saved_runs_have_their_help_here() -> None:
    assert {"report", "compare", "env"} <= set(re.findall(r"<!-- help:(\S+) -->", README))


def test_the_notebook_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    record, _ = samples.overflow(tmp_path / "nanprobe" / "runs" / "20260101-000000-train-00ff")
    write_run(record)
    found = re.search(r"<!-- notebook -->\n```python\n(.*?)\n```", README, re.DOTALL)
    assert found
    *lines, last = filter(None, found[1].splitlines())
    assert len(lines) == 2
    names: dict[str, object] = {}
    exec("\n".join(lines), names)
    assert list(eval(last, names)["name"]) == [parameter.name for parameter in samples.PARAMETERS]


def test_the_report_names_the_demo_and_its_verdict() -> None:
    report = block("demo")
    assert "examples/fp16_overflow.py" in report and "NP101" in report
    shown = re.search(r"▶ (\d+) │ (.*)", report)
    assert shown
    source = (ROOT / "examples" / "fp16_overflow.py").read_text(encoding="utf-8").splitlines()
    assert source[int(shown[1]) - 1].strip() == shown[2].strip()


def test_the_recipes_are_right_and_the_examples_for_ci_are_yaml() -> None:
    recipes = re.findall(r"<!-- recipe -->\n```yaml\n(.*?)```", README, re.DOTALL)
    assert [build_recipe(text, ROOT / "recipe.yaml").expect.codes for text in recipes] == [(), ("NP101",)]
    workflow, hooks = re.findall(r"<!-- (?:workflow|pre-commit) -->\n```yaml\n(.*?)```", README, re.DOTALL)
    runs = [step["run"] for step in yaml.safe_load(workflow)["jobs"]["nanprobe"]["steps"] if "run" in step]
    assert yaml.safe_load(hooks)["repos"][0]["hooks"][0]["entry"] in runs[-1]


def test_the_two_commands_are_targets() -> None:
    targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"^\$ make (\S+)", README, re.MULTILINE)) <= set(targets)
