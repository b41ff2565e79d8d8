"""What is shown under the pointer: the texts of a picture's cells, as data beside it for a few lines of script."""

from __future__ import annotations

from collections.abc import Sequence

from nanprobe.reports.html.markup import Markup, element, embed_json


def hover_data(columns: Sequence[str], rows: Sequence[str], cells: Sequence[Sequence[str]]) -> Markup:
    """The texts of a grid of cells; each different text is kept once, the cells are numbers that point to it."""
    texts: dict[str, int] = {}
    numbers = [[texts.setdefault(cell, len(texts)) for cell in row] for row in cells]
    data = {"x": list(columns), "y": list(rows), "texts": list(texts), "cells": numbers}
    return element("script", embed_json(data), type="application/json")
