"""Bad recipes through the real commands: one clear message, exit code 2, nothing run, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import BASE, run_nanprobe
from nanprobe.cli import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a script in it."""
    (tmp_path / "train.py").write_text(BASE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """What a command says that must not run anything."""
    assert main(list(args)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("nanprobe: ") and "Traceback" not in captured.err
    return captured.err.removeprefix("nanprobe: ").strip()


BAD = [
    ("", "recipe.yaml: is empty; a recipe says for example `target: train.py`"),
    ("x" * 100_000, "recipe.yaml: is 100,000 bytes long; a recipe has at most 65,536"),
    ("target: !!python/name:os.system x", "recipe.yaml: line 1, column 9: the tag !!python/name:os.system: tags are"),
    ("target: train.py\ntarget: other.py", "recipe.yaml: line 2, column 1: the key 'target' is given twice"),
    ("a: &a [x, x]\nb: [*a, *a]", "recipe.yaml: line 1, column 4: the anchor &a: anchors are refused"),
    ("target: [", "recipe.yaml: line 1, column 10: no valid YAML while parsing a flow node"),
    ("- train.py", "recipe.yaml: holds a list; a recipe is keys and values"),
    ("target: train.py\nscalar: {}", "recipe.yaml: scalar: no such key; did you mean scaler? (line 2)"),
    ("target: {a: b}", "recipe.yaml: target: a mapping is not the path of a script (line 1)"),
    ("target: ../../secret.py", "leads outside of the recipe's folder"),
    ("target: /etc/passwd", "recipe.yaml: target: /etc/passwd is an absolute path; name the script relative to"),
    ("target: gone.py", "recipe.yaml: gone.py: no such file in "),
    ("module: gone.train", "recipe.yaml: -m gone.train: no module named 'gone'"),
    ("steps: 3", "recipe.yaml: has no target, so there is nothing to run"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_check_refuses_a_bad_recipe(text: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "recipe.yaml").write_text(text)
    assert message in refusal(capsys, "check", "recipe.yaml", "--output", "runs")
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(("text", "message"), BAD[:11])
def test_diagnose_refuses_it_too(text: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "recipe.yaml").write_text(text)
    assert message in refusal(capsys, "diagnose", "train.py", "--recipe", "recipe.yaml")
    assert message in refusal(capsys, "sweep-scale", "train.py", "--recipe", "recipe.yaml")


def test_all_problems_of_all_recipes_are_said_before_anything_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in {"a": "steps: 0\nseed: x\n", "b": "target: train.py\nstages: fp8\n", "c": "- x\n"}.items():
        (folder / "recipes" / name).mkdir(parents=True)
        (folder / "recipes" / name / "recipe.yaml").write_text(text)
    assert refusal(capsys, "check").splitlines() == [
        "recipes/a/recipe.yaml: steps: 0 is not a positive number of steps (line 1)",
        "recipes/a/recipe.yaml: seed: x is not a whole number from 0 to 2**64 - 1 (line 2)",
        "recipes/b/recipe.yaml: stages: fp8 is not one of fp32, fp16, amp (line 2)",
        "recipes/c/recipe.yaml: holds a list; a recipe is keys and values, like `target: train.py`",
    ]


def test_places_without_recipes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "empty").mkdir()
    assert "nothing to check: there is no nanprobe.yaml and no folder recipes" in refusal(capsys, "check")
    assert refusal(capsys, "check", "empty").startswith("empty: holds no recipe: no file is called recipe.yaml")
    assert refusal(capsys, "check", "none.yaml") == "none.yaml: no such file"
    assert "transfomer: no such recipe" in refusal(capsys, "check", "transfomer")
    assert "-- --epochs 3: a script's arguments stand in its recipe" in refusal(capsys, "check", "--", "--epochs", "3")
    assert refusal(capsys, "check", "--epochs").endswith("see `nanprobe check --help`")
    assert "--jobs 0: expected a whole number of at least 1" in refusal(capsys, "check", "--jobs", "0")
    assert "expected one of terminal, json, junit, github" in refusal(capsys, "check", "--format", "html")


def test_a_recipe_that_is_a_folder_of_hidden_files_or_links(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (".git", "node_modules", "env"):
        (folder / "x" / name).mkdir(parents=True)
        (folder / "x" / name / "recipe.yaml").write_text("steps: 0")
    (folder / "x" / "env" / "pyvenv.cfg").touch()
    (folder / "x" / "loop").symlink_to(folder / "x")
    assert "x: holds no recipe" in refusal(capsys, "check", "x")


def test_an_output_that_is_in_use(folder: Path) -> None:
    (folder / "recipe.yaml").write_text("target: train.py\nstages: fp32\n")
    (folder / "runs").write_text("mine")
    result = run_nanprobe("check", "recipe.yaml", "--output", "runs", cwd=folder)
    assert result.code == 2, result.both
    assert "cannot make the run directory: Not a directory" in result.stderr
    assert (folder / "runs").read_text() == "mine"


def test_init_refuses(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "gone.py: no such file" in refusal(capsys, "init", "gone.py")
    (folder / "broken.py").write_text("for x in\n")
    assert "broken.py: line 1: syntax error" in refusal(capsys, "init", "broken.py")
    assert "none/recipe.yaml: there is no directory none" in refusal(
        capsys, "init", "train.py", "-o", "none/recipe.yaml"
    )
    (folder / "inner").mkdir()
    assert "leads outside of the recipe's folder" in refusal(capsys, "init", "train.py", "-o", "inner/recipe.yaml")
    assert list((folder / "inner").iterdir()) == []
