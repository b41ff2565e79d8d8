"""`nanprobe check`, `recipes`, `init` and `--recipe`: real recipes through the real commands, and every exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
import zipfile
from pathlib import Path

import pytest

from command import Result, marked_processes, run_nanprobe, start_nanprobe
from nanprobe.cli import main
from nanprobe.storage import read_run

ROOT = Path(__file__).parents[1]
TRAIN = """\
import sys
import torch
from torch import nn

torch.manual_seed(0)
rows = open("rows.txt").read().split()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).pow(2).mean()
    if "log" in sys.argv:
        loss = (loss - loss.detach()).log()
    loss.backward()
    optimizer.step()
"""
LOG_LINE = 13
RECIPES = {
    "healthy": "args: [4]\nlimits: {max_skipped_steps: 2, min_headroom_bits: -8, max_seconds: 100}\n",
    "found": f"args: 4 log\nexpect: {{kind: graph, code: NP401, stage: fp32, step: 0, place: {{line: {LOG_LINE}}}}}\n",
    "differs": "args: [4, log]\nexpect: {kind: [overflow, data], place: {line: [1, 2], module: head}}\n",
    "unexpected": "args: [4, log]\n",
    "tight": "args: [4]\nscaler: {init_scale: 2**40}\nlimits: {max_skipped_steps: 0}\n",
    "crashes": "args: []\n",
    "sweep": "args: [4]\nexpect: {sweep_scale: {status: failing, lowest_scale: 3}}\n",
}
EXPECTED = {
    "crashes": "inconclusive",
    "differs": "failed",
    "found": "passed",
    "healthy": "passed",
    "sweep": "failed",
    "tight": "failed",
    "unexpected": "failed",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a recipe for every ending; the script reads a file of its own folder."""
    folder = tmp_path_factory.mktemp("repository")
    for name, text in RECIPES.items():
        place = folder / "recipes" / name
        place.mkdir(parents=True)
        (place / "train.py").write_text(TRAIN)
        (place / "rows.txt").write_text("1 2 3")
        (place / "recipe.yaml").write_text(f"target: train.py\nsteps: 3\n{text}")
    return folder


@pytest.fixture(scope="module")
def checked(folder: Path) -> Result:
    """All of them at once, two at a time."""
    return run_nanprobe("check", "--jobs", "2", "--format", "json", "--output", "runs", cwd=folder)


def test_every_verdict_and_its_reason(checked: Result, folder: Path) -> None:
    assert checked.code == 1, checked.both
    assert checked.left_running == []
    document = json.loads(checked.stdout)
    checks = {check["name"]: check for check in document["checks"]}
    assert {name: check["verdict"] for name, check in checks.items()} == EXPECTED
    assert list(checks) == sorted(RECIPES), "in the order of the folders, whichever ended first"
    assert [d["what"] for d in checks["differs"]["differences"]] == [
        "expect.kind",
        "expect.place.line",
        "expect.place.module",
    ]
    assert checks["differs"]["differences"][0] == {
        "what": "expect.kind",
        "expected": "overflow or data",
        "found": "graph",
    }
    assert checks["unexpected"]["differences"][0]["found"].startswith("error: graph NP401, line 13: log of ")
    assert checks["tight"]["differences"][0]["what"] == "limits.max_skipped_steps"
    assert [d["what"] for d in checks["sweep"]["differences"]][-1] == "expect.sweep_scale.lowest_scale"
    assert "IndexError: list index out of range" in checks["crashes"]["reasons"][0]
    assert checks["found"]["found"]["source"]["line"] == LOG_LINE
    assert checks["found"]["recipe"] == "recipes/found/recipe.yaml"


def test_each_check_has_a_run_directory_of_its_own(checked: Result, folder: Path) -> None:
    runs = {path.name for path in (folder / "runs").iterdir()}
    assert runs == set(RECIPES)
    run = read_run(folder / "runs" / "found")
    assert run.target.path == "recipes/found/train.py"
    assert run.notices == ("settings from the recipe found",)
    assert json.loads((folder / "runs" / "found" / "diagnosis.json").read_text())["verdict"]["code"] == "NP401"


def test_progress_says_how_each_ended(checked: Result) -> None:
    lines = checked.stderr.splitlines()
    assert len(lines) == len(RECIPES)
    assert lines[0].startswith("nanprobe: crashes: could not tell, ")


def test_as_expected_is_exit_code_0_and_one_line_each(folder: Path) -> None:
    result = run_nanprobe("check", "recipes/healthy", "recipes/found/recipe.yaml", "recipes/found", cwd=folder)
    assert result.code == 0, result.both
    assert result.stderr == ""
    first, second, blank, summary = result.stdout.splitlines()
    assert first.startswith("✔ healthy  as expected") and second.startswith("✔ found    as expected")
    assert blank == "" and summary.startswith("2 recipes as expected, in ")


def test_what_could_not_be_told_is_exit_code_3(folder: Path) -> None:
    result = run_nanprobe("check", "recipes/crashes", "--format", "junit", cwd=folder)
    assert result.code == 3, result.both
    (case,) = ElementTree.fromstring(result.stdout).iter("testcase")
    assert case.find("error") is not None


def test_ctrl_c_ends_all_and_reports_what_is_known(folder: Path) -> None:
    for name in ("hangs-a", "hangs-b"):
        place = folder / "slow" / name
        place.mkdir(parents=True)
        (place / "train.py").write_text("import time\nopen('/dev/null')\ntime.sleep(600)\n")
        (place / "recipe.yaml").write_text("target: train.py\n")
    with start_nanprobe("check", "slow", "--jobs", "2", "--output", "slow-runs", cwd=folder) as (process, mark):
        for _ in range(600):
            if len(list((folder / "slow-runs").glob("*/stages/fp32/trace.jsonl"))) == 2:
                break
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
        assert process.returncode == 3, stderr
        assert stdout.count("interrupted by Ctrl-C") == 2 and "2 could not be told" in stdout
        assert stderr == ""
        assert marked_processes(mark) == []


def test_diagnose_takes_a_recipes_target_and_settings_and_options_win(folder: Path) -> None:
    common = ["--format", "json", "--stages", "fp32"]
    result = run_nanprobe("diagnose", "--recipe", "recipes/found", *common, cwd=folder)
    assert result.code == 1, result.both
    document = json.loads(result.stdout)
    assert (document["target"]["path"], document["target"]["argv"]) == ("recipes/found/train.py", ["4", "log"])
    assert len(document["stages"]) == 1, "an option that was given wins"
    result = run_nanprobe(
        "diagnose", "--recipe", "recipes/found/recipe.yaml", *common, "--steps", "2", "--", "9", cwd=folder
    )
    assert result.code == 0, result.both
    document = json.loads(result.stdout)
    assert document["target"]["argv"] == ["9"] and document["stages"][0]["steps"] == 2


def test_a_scenario_sets_the_scaler_of_a_users_script(folder: Path) -> None:
    (folder / "mine.yaml").write_text(
        "steps: 6\nstages: amp\nfail_on: none\n"
        "scaler: {init_scale: 2^10, growth_factor: 4, backoff_factor: 0.25, growth_interval: 2}\n"
    )
    place = folder / "recipes" / "healthy"
    command = ["diagnose", "train.py", "--recipe", "../../mine.yaml"]
    result = run_nanprobe(*command, "--format", "json", "--", "9", cwd=place)
    assert result.code == 0, result.both
    (amp,) = json.loads(result.stdout)["stages"]
    assert amp["loss_scale"] == [1024, 1024, 4096, 4096, 16384, 16384]
    result = run_nanprobe(*command, "--init-scale", "2", "--steps", "1", "--", "9", cwd=place)
    assert "settings from the recipe mine: init_scale 2, growth_factor 4" in " ".join(result.stdout.split())


def test_init_writes_a_recipe_that_checks_and_never_overwrites(folder: Path) -> None:
    place = folder / "recipes" / "healthy"
    result = run_nanprobe("init", "train.py", "--", "9", cwd=place)
    assert (result.code, result.stdout) == (0, "nanprobe.yaml written; next: nanprobe check nanprobe.yaml\n")
    try:
        before = (place / "nanprobe.yaml").read_text()
        again = run_nanprobe("init", "train.py", cwd=place)
        assert again.code == 2
        assert "nanprobe.yaml: is there already, and is left as it is" in again.stderr
        assert (place / "nanprobe.yaml").read_text() == before
        checked = run_nanprobe("check", "nanprobe.yaml", cwd=place)
        assert checked.code == 0, checked.both
    finally:
        (place / "nanprobe.yaml").unlink()


def test_the_shipped_recipes_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    listed = capsys.readouterr().out
    assert all(len(line) <= 80 for line in listed.splitlines())
    assert "tiny-gradient" in listed
    assert main(["recipes", "--format", "json"]) == 0
    names = [recipe["name"] for recipe in json.loads(capsys.readouterr().out)["recipes"]]
    assert names and all(name in listed for name in names)
    assert main(["recipes", "tiny-gradient"]) == 0
    assert "target: train.py" in capsys.readouterr().out
    assert main(["recipes", "tiny-gradent"]) == 2
    assert "tiny-gradent: no such recipe; did you mean tiny-gradient?" in capsys.readouterr().err


def test_an_installed_wheel_has_the_recipes(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    code = "import nanprobe, sys; from nanprobe.cli import main; print(nanprobe.__file__); sys.exit(main(['recipes']))"
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(str(site)) and "tiny-gradient" in done.stdout
