"""A heat map: rows with names, columns with ticks, a picture between them, numbers under the pointer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nanprobe.reports.html.figures import shorten
from nanprobe.reports.html.hover import hover_data
from nanprobe.reports.html.markup import Markup, element, join
from nanprobe.reports.html.raster import Ink, picture
from nanprobe.reports.html.svg import percent

WIDTH = 1000  # pixels of the picture across, about: as wide as a page
NAME_HEIGHT = 13  # pixels that a row's name needs
NAME_LENGTH = 34  # characters


@dataclass(frozen=True, slots=True)
class Grid:
    """What a heat map shows."""

    rows: Sequence[str]
    columns: Sequence[str]  # as the pointer's text names them
    classes: Sequence[Sequence[int]]  # of each cell, an index into `inks`
    inks: Sequence[Ink]
    texts: Sequence[Sequence[str]]  # of each cell, under the pointer
    ticks: Sequence[tuple[float, str]]  # position across and text, below
    rules: Sequence[tuple[float, str]] = ()  # upright lines: position and style


def heat_map(grid: Grid, title: str) -> Markup:
    """The grid as a picture with names at the left and ticks below; `title` tells screen readers what it shows."""
    cell = (min(max(WIDTH // len(grid.columns), 2), 96), row_height(len(grid.rows)))
    height = cell[1] * len(grid.rows)
    image = element("img", src=picture(grid.classes, grid.inks, cell), alt=title, style=f"height:{height}px")
    rules = [element("i", class_=f"rule {style}", style=f"left:{percent(x)}") for x, style in grid.rules]
    area = element("div", image, *rules, class_="area", data_hover=True)
    ticks = [element("span", text, style=f"left:{percent(x)}", class_=_edge(x)) for x, text in grid.ticks]
    return element(
        "div",
        element("div", _names(grid.rows, cell[1]), class_="names", style=f"height:{height}px", aria_hidden="true"),
        area,
        element("div", *ticks, class_="ticks", aria_hidden="true"),
        hover_data(grid.columns, grid.rows, grid.texts),
        class_="heat",
    )


def row_height(count: int) -> int:
    """Pixels a row: as many as names need while they fit on a screen, fewer where there are many."""
    return 15 if count <= 40 else 10 if count <= 100 else 6 if count <= 200 else 4


def _names(rows: Sequence[str], height: int) -> Markup:
    """The names of as many rows as have room for one."""
    every = -(-NAME_HEIGHT // height)
    return join(
        element(
            "span",
            shorten(name, NAME_LENGTH),
            style=f"top:{_middle(k, height):g}px",
            title=name,
        )
        for k, name in enumerate(rows)
        if k % every == 0
    )


def _middle(row: int, height: int) -> float:
    """The middle of a row in pixels; the first name is not cut off at the top."""
    return max((row + 0.5) * height, NAME_HEIGHT / 2)


def _edge(position: float) -> str | None:
    return "first" if position < 0.02 else "last" if position > 0.98 else None
