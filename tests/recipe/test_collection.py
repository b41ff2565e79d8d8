"""Which recipes are found, by which name, and what they are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanprobe.errors import RecipeInvalid
from nanprobe.recipe.collection import collect_recipes, find_recipe, read_shipped, shipped_files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with recipes in many places."""
    monkeypatch.chdir(tmp_path)
    for name in (
        "nanprobe.yaml",
        "recipes/a/recipe.yaml",
        "recipes/a/fixed.recipe.yaml",
        "recipes/b/recipe.yml",
        "recipes/b/fixed.recipe.yml",
        "recipes/b/c/recipe.yaml",
        "recipes/notes.yaml",
        "recipes/scenario.yaml",
        "more/a/recipe.yaml",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("target: train.py")
    return tmp_path


def test_without_places_those_right_here_are_taken(folder: Path) -> None:
    names = [recipe.name for recipe in collect_recipes([])]
    assert names == [folder.name, "a", "a/fixed", "b", "b/fixed", "c"]


def test_each_once_and_named_apart(folder: Path) -> None:
    found = collect_recipes(["recipes/a", "recipes/a/recipe.yaml", "more/a", "recipes/notes.yaml"])
    assert [recipe.name for recipe in found] == ["recipes/a/recipe", "fixed", "more/a/recipe", "notes"]


def test_a_file_goes_before_a_name_and_a_folder_holds_its_recipe(folder: Path) -> None:
    assert find_recipe("recipes/scenario.yaml").name == "scenario"
    assert find_recipe("recipes/b").path == Path("recipes/b/recipe.yml")
    assert find_recipe("tiny-gradient").target == "train.py"
    with pytest.raises(RecipeInvalid, match=r"none\.yaml: no such file"):
        find_recipe("none.yaml")
    with pytest.raises(RecipeInvalid, match="recipes: no such recipe"):
        find_recipe("recipes")


def test_every_shipped_recipe_is_right_and_has_a_name_of_its_own() -> None:
    assert [recipe.name for recipe in read_shipped()] == list(shipped_files())
