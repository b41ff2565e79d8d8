"""Recipes: a training to check, its settings and the outcome to expect, in YAML. No torch here."""

from nanprobe.recipe.building import build_recipe, read_recipe
from nanprobe.recipe.model import Expectation, Limits, Place, Recipe, SweepExpectation

__all__ = ["Expectation", "Limits", "Place", "Recipe", "SweepExpectation", "build_recipe", "read_recipe"]
