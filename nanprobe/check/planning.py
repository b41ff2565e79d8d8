"""What is to be checked: recipes, and the run that each asks for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nanprobe.errors import NanprobeError, RecipeInvalid
from nanprobe.plan import RunPlan
from nanprobe.recipe import Recipe
from nanprobe.storage import new_run_directory
from nanprobe.target.locate import locate_recipe


@dataclass(frozen=True, slots=True)
class Check:
    """One recipe and how its target is run."""

    recipe: Recipe
    plan: RunPlan
    directory: Path | None = None  # of the diagnosis' run; None: a new one in the user's cache
    sweep_directory: Path | None = None  # likewise of the sweep's


def plan_checks(recipes: Sequence[Recipe], output: Path | None = None) -> tuple[Check, ...]:
    """What the recipes ask for, with run directories in `output` where it is given.

    Raises RecipeInvalid, a line for each recipe whose target is not there, and OutputNotWritable; nothing is run yet.
    """
    checks, problems = [], []
    for recipe in recipes:
        try:
            checks.append(Check(recipe, plan_recipe(recipe)))
        except NanprobeError as error:
            problems.append(f"{recipe.path}: {error}")
    if problems:
        raise RecipeInvalid("\n".join(problems))
    return tuple(checks if output is None else [_with_directories(check, output) for check in checks])


def _with_directories(check: Check, output: Path) -> Check:
    """One for each kind of run that the recipe asks for, by the recipe's name."""
    expect, place = check.recipe.expect, output / re.sub(r"[^\w.-]+", "-", check.recipe.name)
    target, both = check.plan.target, expect.wants_diagnosis and expect.sweep is not None
    sweep = place.with_name(place.name + "-sweep") if both else place
    return replace(
        check,
        directory=new_run_directory(str(place), target) if expect.wants_diagnosis else None,
        sweep_directory=new_run_directory(str(sweep), target) if expect.sweep is not None else None,
    )


def plan_recipe(recipe: Recipe) -> RunPlan:
    """The run of a recipe's own target, in the recipe's folder. Raises RecipeInvalid, TargetNotFound."""
    plan = RunPlan(locate_recipe(recipe), recipe=recipe.name, working_directory=str(recipe.folder.absolute()))
    return replace(plan, **recipe.settings())
