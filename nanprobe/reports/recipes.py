"""The recipes there are: scenarios with their settings, known failures with what they show; as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from nanprobe.recipe import Recipe
from nanprobe.recipe.comparison import describe_expectation
from nanprobe.reports.document import SCHEMA_VERSION, to_plain
from nanprobe.reports.numbers import show_number, show_scale
from nanprobe.reports.terminal.canvas import Canvas, clean, pad
from nanprobe.reports.terminal.closing import shorten_home

_SETTINGS = ("init_scale", "growth_interval")


def render_list(recipes: Sequence[Recipe], width: int, color: bool) -> str:
    """All of them, the scenarios first."""
    canvas = Canvas(width, color)
    scenarios = [recipe for recipe in recipes if recipe.is_scenario]
    failures = [recipe for recipe in recipes if not recipe.is_scenario]
    if scenarios:
        _draw_head(canvas, "SCENARIOS", "settings to start from", "nanprobe diagnose train.py --recipe NAME")
        _draw_scenarios(canvas, scenarios)
    if failures:
        _draw_head(canvas, "KNOWN FAILURES", "a script each, and its verdict", "nanprobe check NAME")
        _draw_failures(canvas, failures)
    _draw_head(canvas, "ONE OF THEM", "what it is and what is in it", "nanprobe recipes NAME")
    return canvas.text().lstrip("\n")


def render_one(recipe: Recipe, width: int, color: bool) -> str:
    """What it is for, how to use it, what is written about it, and the file itself."""
    canvas = Canvas(width, color)
    canvas.line((recipe.name, "bold cyan"), whole=True)
    if recipe.about:
        canvas.paragraph(recipe.about)
    use = "nanprobe diagnose train.py --recipe" if recipe.is_scenario else "nanprobe check"
    rows = [("file", shorten_home(str(recipe.path))), ("use", f"{use} {recipe.name}")]
    if not recipe.is_scenario:
        rows.append(("look", f"nanprobe diagnose --recipe {recipe.name}"))
        rows.append(("expects", _show_expectation(recipe)))
    canvas.rows(rows)
    for path, title in ((recipe.folder / "README.md", "README"), (recipe.path, "RECIPE")):
        if path.is_file() and (title == "RECIPE" or not recipe.is_scenario):
            canvas.heading(title)
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                canvas.line("  ", line, whole=True)
    return canvas.text()


def render_json(recipes: Sequence[Recipe]) -> str:
    """The same for scripts: settings are those that the recipe gives, by the names of its keys."""
    document = {"schema_version": SCHEMA_VERSION, "recipes": [_build(recipe) for recipe in recipes]}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _build(recipe: Recipe) -> dict[str, Any]:
    given = recipe.scaler.given()
    plain = {
        "name": recipe.name,
        "file": str(recipe.path),
        "about": recipe.about,
        "scenario": recipe.is_scenario,
        "target": recipe.target,
        "module": recipe.module,
        "args": recipe.args,
        "settings": {key: value for key, value in recipe.settings().items() if key not in given},
        "scaler": given,
        "limits": {key: value for key, value in asdict(recipe.limits).items() if value is not None},
        "expect": None if recipe.is_scenario else _show_expectation(recipe),
    }
    return {key: to_plain(value) for key, value in plain.items()}


def _draw_head(canvas: Canvas, title: str, what: str, command: str) -> None:
    canvas.blank()
    canvas.line((title, "bold"), (f"  {what}: ", "dim"), (command, "cyan"))


def _draw_scenarios(canvas: Canvas, recipes: Sequence[Recipe]) -> None:
    width = max(len(clean(recipe.name)) for recipe in recipes)
    head = f"{pad('', width)}  {'init_scale':<15}{'growth_interval':>15}"
    canvas.line("  ", (head, "dim"))
    for recipe in recipes:
        scale, interval = (getattr(recipe.scaler, name) for name in _SETTINGS)
        numbers = f"{show_scale(scale):<15}{show_number(interval):>15}"
        canvas.line("  ", (pad(clean(recipe.name), width), "bold"), f"  {numbers}")
        if recipe.about:
            canvas.paragraph((recipe.about, "dim"), indent=width + 4)


def _draw_failures(canvas: Canvas, recipes: Sequence[Recipe]) -> None:
    width = max(len(clean(recipe.name)) for recipe in recipes)
    for recipe in recipes:
        lead = [(f"{pad(clean(recipe.name), width)}  ", "bold")]
        canvas.paragraph(recipe.about or _show_expectation(recipe), lead=lead, indent=2)


def _show_expectation(recipe: Recipe) -> str:
    """Of the diagnosis, of the sweep, or of both."""
    expect, parts = recipe.expect, []
    if expect.wants_diagnosis:
        parts.append(describe_expectation(expect))
    if expect.sweep is not None:
        status = expect.sweep.status
        parts.append(f"a sweep that is {status.value}" if status is not None else "a sweep with a window")
    return " and ".join(parts)
