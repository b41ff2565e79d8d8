"""`--recipe` of diagnose and sweep-scale: a recipe's target and settings, where the command line says nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

from nanprobe.cli.target import locate
from nanprobe.plan import RunPlan
from nanprobe.records import Target

if TYPE_CHECKING:
    from nanprobe.recipe import Recipe


@dataclass(frozen=True, slots=True)
class RecipeOption:
    """The recipe that was asked for, if any, and the options that were given beside it."""

    recipe: Recipe | None
    given: frozenset[str]  # names of the command's parameters

    @classmethod
    def parse(cls, context: typer.Context, text: str | None) -> RecipeOption:
        """Raises RecipeInvalid."""
        if text is None:
            return cls(None, frozenset())
        from nanprobe.recipe.collection import find_recipe

        sources = {name: context.get_parameter_source(name) for name in context.params}
        given = frozenset(name for name, source in sources.items() if getattr(source, "name", "") == "COMMANDLINE")
        return cls(find_recipe(text), given)

    def locate(self, target: str | None, module: str | None, script_args: tuple[str, ...]) -> Target:
        """What is to be run: TARGET or -m, else the recipe's own. Raises UsageError, TargetNotFound."""
        if self.recipe is None:
            return locate(target, module, script_args)
        if not self._runs_its_own(target, module):
            return locate(target, module, script_args or self.recipe.args)
        from nanprobe.target.locate import locate_recipe

        found = locate_recipe(self.recipe)
        return replace(found, argv=script_args) if script_args else found

    def apply(self, plan: RunPlan) -> RunPlan:
        """The plan with the recipe's settings where no option was given; its own target runs in its folder."""
        if self.recipe is None:
            return plan
        settings = {name: value for name, value in self.recipe.settings().items() if name not in self.given}
        own = self._runs_its_own(*("given" if name in self.given else None for name in ("target", "module")))
        folder = str(self.recipe.folder.absolute()) if own else None
        return replace(plan, recipe=self.recipe.name, working_directory=folder, **settings)

    def choose(self, name: str, value: str, key: str) -> str:
        """An option's value, or that of a recipe's key where the option was not given and the recipe has it."""
        said: str | None = getattr(self.recipe, key, None)
        return value if said is None or name in self.given else said

    def _runs_its_own(self, target: str | None, module: str | None) -> bool:
        return target is None and module is None and self.recipe is not None and not self.recipe.is_scenario
