"""`nanprobe recipes`: the recipes that come with nanprobe."""

from __future__ import annotations

from typing import Annotated

import typer

from nanprobe.cli.completion import complete_recipe
from nanprobe.cli.screen import report_width, show, wants_color
from nanprobe.errors import ExitCode
from nanprobe.options import choose


def recipes(
    name: Annotated[
        str | None,
        typer.Argument(autocompletion=complete_recipe, help="One recipe to show: a name, or a file of your own."),
    ] = None,
    report_format: Annotated[
        str, typer.Option("--format", metavar="terminal|json", help="Format of the list.")
    ] = "terminal",
) -> int:
    """List the recipes that come with nanprobe, or show one.

    A scenario gives settings to a script of yours (diagnose --recipe); a known failure is a small script and the
    verdict it must get (check).

    For example:

        nanprobe recipes

        nanprobe recipes transformer
    """
    form = choose("--format", report_format, {form: form for form in ("terminal", "json")})
    from nanprobe.recipe.collection import find_recipe, read_shipped
    from nanprobe.reports.recipes import render_json, render_list, render_one

    found = read_shipped() if name is None else (find_recipe(name),)
    if form == "json":
        show(render_json(found))
    elif name is None:
        show(render_list(found, report_width(), wants_color()))
    else:
        show(render_one(found[0], report_width(), wants_color()))
    return int(ExitCode.HEALTHY)
