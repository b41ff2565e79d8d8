"""Finding what is to be run and checking it before anything is started. Reads the user's code, never runs it."""

from __future__ import annotations

import ast
import importlib.machinery
import os
import sys
import warnings
from pathlib import Path

from nanprobe.errors import RecipeInvalid, TargetNotFound, UsageError
from nanprobe.recipe import Recipe
from nanprobe.records import Target
from nanprobe.target.contract import find_contract

_HINTS = {
    ".ipynb": "it is a notebook; `jupyter nbconvert --to script` makes a script of it",
    ".sh": "it is a shell script; give the Python script that it starts, and its arguments after --",
    ".yaml": "it is a configuration; give the training script that reads it",
    ".yml": "it is a configuration; give the training script that reads it",
    ".json": "it is a configuration; give the training script that reads it",
    ".pt": "it is a checkpoint; give the training script that loads it",
    ".pth": "it is a checkpoint; give the training script that loads it",
    ".ckpt": "it is a checkpoint; give the training script that loads it",
}


def locate_script(path: str, argv: tuple[str, ...]) -> Target:
    """The script or contract module in a file. Raises TargetNotFound or UsageError, saying what to give instead."""
    if not os.path.lexists(path):
        raise TargetNotFound(f"{path}: no such file{_suggest(path)}")
    if os.path.isdir(path):
        raise TargetNotFound(f"{path}: is a directory; give the training script in it{_list_scripts(Path(path))}")
    if not os.path.isfile(path):
        raise TargetNotFound(f"{path}: is not a regular file; give a Python script")
    tree = _parse(path, _read(path))
    contract = find_contract(tree, path)
    return Target(path, argv, "contract" if contract else "script")


def locate_module(name: str, argv: tuple[str, ...], directory: str | None = None) -> Target:
    """A module by its dotted name, as `python -m` in a directory finds it. Raises TargetNotFound or UsageError."""
    spec = find_main_spec(name, directory)
    if spec.origin and spec.origin.endswith(".py"):
        _parse(spec.origin, _read(spec.origin))
    return Target(name, argv, "module")


def locate_recipe(recipe: Recipe) -> Target:
    """What a recipe runs; a script by its path from the working directory. Raises RecipeInvalid, TargetNotFound."""
    if recipe.module is not None:
        return locate_module(recipe.module, recipe.args, str(recipe.folder.absolute()))
    if recipe.target is None:
        raise RecipeInvalid(
            f"has no target, so there is nothing to run; it gives settings to a script of yours: "
            f"nanprobe diagnose train.py --recipe {recipe.name}"
        )
    return locate_script(str(recipe.folder / recipe.target), recipe.args)


def find_main_spec(name: str, directory: str | None = None) -> importlib.machinery.ModuleSpec:
    """Where the code of `python -m name` is, looked up without importing its packages.

    Raises TargetNotFound when there is none.
    """
    if name.endswith(".py") or os.sep in name:
        dotted = name.removesuffix(".py").strip("./").replace(os.sep, ".")
        raise TargetNotFound(f"-m {name}: -m takes a module's dotted name; write `-m {dotted}`, or leave -m out")
    directory = directory or os.getcwd()
    path: list[str] | None = [directory, *sys.path]
    spec, done = None, ""
    for part in name.split("."):
        done = f"{done}.{part}" if done else part
        spec = _find_spec(done, path)
        if spec is None:
            raise TargetNotFound(
                f"-m {name}: no module named {done!r} in {directory} or where Python looks for modules"
            )
        path = list(spec.submodule_search_locations) if spec.submodule_search_locations is not None else []
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _find_spec(f"{name}.__main__", path)
        if spec is None:
            raise TargetNotFound(f"-m {name}: is a package without a __main__.py; name the module in it that trains")
    assert spec is not None  # split() gives at least one part
    if not spec.has_location:
        raise TargetNotFound(
            f"-m {name}: is not a Python file but {spec.origin or 'a namespace'}; nothing there trains"
        )
    return spec


def _find_spec(name: str, path: list[str] | None) -> importlib.machinery.ModuleSpec | None:
    spec = importlib.machinery.PathFinder.find_spec(name, path)
    if spec is not None:
        return spec
    for finder in sys.meta_path:  # an editable install brings a finder of its own
        find = getattr(finder, "find_spec", None)
        if find is not None and (spec := find(name, path)) is not None:
            return spec  # type: ignore[no-any-return]
    return None


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TargetNotFound(f"{path}: cannot be read: {error.strerror or error}") from error


def _parse(path: str, code: bytes) -> ast.Module:
    hint = _HINTS.get(Path(path).suffix)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code, path)
    except SyntaxError as error:
        if hint:
            raise UsageError(f"{path}: is no Python script: {hint}") from error
        if b"\0" in code or "unicode error" in str(error) or "codec can't decode" in str(error):
            raise UsageError(f"{path}: is no Python script (it holds binary data); give the training script") from error
        line = f"\n    {error.text.strip()}" if error.text else ""
        raise UsageError(f"{path}: line {error.lineno}: syntax error: {error.msg}{line}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{path}: is no Python script ({error}); give the training script") from error


def _suggest(path: str) -> str:
    if os.path.isfile(path + ".py"):
        return f"; did you mean {path}.py?"
    if "." in path and os.sep not in path and not path.endswith(".py"):
        return f"; for a module write `-m {path}`"
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        return f"; there is no directory {folder} either"
    return f" in {os.path.abspath(folder)}{_list_scripts(Path(folder))}"


def _list_scripts(folder: Path) -> str:
    try:
        names = sorted(p.name for p in folder.glob("*.py") if p.is_file())
    except OSError:
        return ""
    if not names:
        return ""
    more = ", ..." if len(names) > 5 else ""
    return f" (there: {', '.join(names[:5])}{more})"
