"""What is to be checked: recipes, and the run that each asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nanprobe.errors import NanprobeError, RecipeInvalid
from nanprobe.plan import RunPlan
from nanprobe.recipe import Recipe
from nanprobe.target.locate import locate_recipe


@dataclass(frozen=True, slots=True)
class Check:
    """One recipe and how its target is run."""

    recipe: Recipe
    plan: RunPlan


def plan_checks(recipes: Sequence[Recipe]) -> tuple[Check, ...]:
    """What the recipes ask for. Raises RecipeInvalid, a line for each recipe whose target is not there."""
    checks, problems = [], []
    for recipe in recipes:
        try:
            checks.append(Check(recipe, plan_recipe(recipe)))
        except NanprobeError as error:
            problems.append(f"{recipe.path}: {error}")
    if problems:
        raise RecipeInvalid("\n".join(problems))
    return tuple(checks)


def plan_recipe(recipe: Recipe) -> RunPlan:
    """The run of a recipe's own target, in the recipe's folder. Raises RecipeInvalid, TargetNotFound."""
    plan = RunPlan(locate_recipe(recipe), recipe=recipe.name, working_directory=str(recipe.folder.absolute()))
    return replace(plan, **recipe.settings())
