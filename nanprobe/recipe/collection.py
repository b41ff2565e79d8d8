"""Where recipes are found: by name among those that come with nanprobe, by file, or in a folder."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import nanprobe
from nanprobe.errors import RecipeInvalid
from nanprobe.recipe.building import name_of, read_recipe
from nanprobe.recipe.model import Recipe

_FILES = ("recipe.yaml", "recipe.yml", "nanprobe.yaml", "nanprobe.yml")
_ENDINGS = (".recipe.yaml", ".recipe.yml")
_DEFAULT_FOLDER = "recipes"
_NOT_SEARCHED = ("__pycache__", "node_modules", "site-packages")


def shipped_folder() -> Path | None:
    """The recipes that come with nanprobe; beside the package, because their scripts are to count as a user's."""
    beside = Path(nanprobe.__file__).parent.parent
    if (beside / "pyproject.toml").is_file():  # a source tree
        return beside / _DEFAULT_FOLDER
    return beside / "nanprobe_recipes" if (beside / "nanprobe_recipes").is_dir() else None


def shipped_files() -> dict[str, Path]:
    """Name and file of each recipe that comes with nanprobe: the scenarios first, both groups by name."""
    folder = shipped_folder()
    if folder is None:
        return {}
    files = [*sorted(folder.glob("scenarios/*.yaml")), *sorted(folder.glob("*/recipe.yaml"))]
    return {name_of(path): path for path in files}


def read_shipped() -> tuple[Recipe, ...]:
    """The recipes that come with nanprobe, in the same order."""
    return tuple(read_recipe(path, name=name) for name, path in shipped_files().items())


def find_recipe(text: str) -> Recipe:
    """The recipe that a user means: a file, a folder with a `recipe.yaml`, or the name of one that is shipped.

    Raises RecipeInvalid, with the nearest name.
    """
    path = Path(text)
    if path.is_dir() and (files := _files_in(path)):
        return read_recipe(files[0])
    shipped = shipped_files()
    if path.is_file() or (text not in shipped and _looks_like_a_path(text)):
        return read_recipe(path)
    if text not in shipped:
        near = difflib.get_close_matches(text, shipped, 1)
        hint = f"did you mean {near[0]}?" if near else "`nanprobe recipes` lists those there are; a file ends in .yaml"
        raise RecipeInvalid(f"{text}: no such recipe; {hint}")
    return read_recipe(shipped[text], name=text)


def collect_recipes(places: Sequence[str]) -> tuple[Recipe, ...]:
    """The recipes in files and folders, or by name, each once and named apart. Without places: those right here.

    Raises RecipeInvalid, with all problems of all of them.
    """
    recipes: dict[str, Recipe] = {}
    problems: list[str] = []
    for text in places or _default_places():
        for place in _expand(text, problems):
            try:
                recipe = find_recipe(place)
                recipes.setdefault(os.path.realpath(recipe.path), recipe)
            except RecipeInvalid as error:
                problems.append(str(error))
    if problems:
        raise RecipeInvalid("\n".join(dict.fromkeys(problems)))
    return _named_apart(recipes.values())


def _expand(text: str, problems: list[str]) -> list[str]:
    """The files in a folder; what is no folder as it is."""
    if not Path(text).is_dir():
        return [text]
    found = [str(path) for path in search(Path(text))]
    if not found:
        problems.append(f"{text}: holds no recipe: no file is called {_FILES[0]}, {_FILES[2]} or NAME{_ENDINGS[0]}")
    return found


def _default_places() -> list[str]:
    here = [str(path) for path in _files_in(Path())]
    if Path(_DEFAULT_FOLDER).is_dir():
        here.append(_DEFAULT_FOLDER)
    if not here:
        raise RecipeInvalid(
            f"nothing to check: there is no nanprobe.yaml and no folder {_DEFAULT_FOLDER} in {Path.cwd()}; "
            f"`nanprobe init train.py` writes a recipe for a script"
        )
    return here


def search(folder: Path) -> list[Path]:
    """The recipes in a folder and below, sorted; hidden folders, environments and links are passed over."""
    found: list[Path] = []
    for root, folders, _ in os.walk(folder):
        here = Path(root)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name not in _NOT_SEARCHED and not (here / name / "pyvenv.cfg").exists()
        )
        found += _files_in(here)
    return found


def _files_in(folder: Path) -> list[Path]:
    """The recipes right in a folder; `recipe.yaml` before those that are called after something."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    except OSError:
        return []
    found = [name for name in names if name in _FILES or name.endswith(_ENDINGS)]
    return [folder / name for name in sorted(found, key=lambda name: name not in _FILES)]


def _looks_like_a_path(text: str) -> bool:
    return os.sep in text or text.endswith((".yaml", ".yml"))


def _named_apart(recipes: Iterable[Recipe]) -> tuple[Recipe, ...]:
    """Recipes of one name get their folder's before it, else their path: lines and run directories are told apart."""
    named = list(recipes)
    for longer in (lambda r: f"{r.path.absolute().parent.name}/{r.name}", lambda r: r.path.with_suffix("").as_posix()):
        count = Counter(recipe.name for recipe in named)
        named = [recipe if count[recipe.name] == 1 else replace(recipe, name=longer(recipe)) for recipe in named]
    return tuple(named)
