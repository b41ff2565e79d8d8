"""Tables and lists of the page: heads with their scope, numbers to the right, wide tables in a frame that scrolls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nanprobe.reports.html.markup import Child, Markup, element, join


@dataclass(frozen=True, slots=True)
class Column:
    """The head of a column."""

    title: str
    number: bool = False  # its cells are numbers, and go to the right
    minor: bool = False  # left out where the page is narrow


def table(columns: Sequence[Column], rows: Iterable[Sequence[Child]], caption: str, class_: str = "") -> Markup:
    """A table whose first column names its rows; the caption is for screen readers."""
    head = element("tr", *(element("th", c.title, scope="col", class_=_style(c)) for c in columns))
    body = join(_row(columns, row) for row in rows)
    return element(
        "div",
        element(
            "table",
            element("caption", caption, class_="unseen"),
            element("thead", head),
            element("tbody", body),
            class_=class_ or None,
        ),
        class_="frame",
        tabindex="0",
        role="region",
        aria_label=caption,
    )


def _row(columns: Sequence[Column], cells: Sequence[Child]) -> Markup:
    first = element("th", cells[0], scope="row", class_=_style(columns[0]))
    rest = (element("td", cell, class_=_style(c)) for c, cell in zip(columns[1:], cells[1:], strict=True))
    return element("tr", first, *rest)


def _style(column: Column) -> str | None:
    return " ".join(["number"] * column.number + ["minor"] * column.minor) or None


def facts(rows: Iterable[tuple[str, Child]], class_: str = "facts") -> Markup:
    """Labels with their values."""
    pairs = [element("div", element("dt", label), element("dd", value)) for label, value in rows]
    return element("dl", *pairs, class_=class_) if pairs else Markup()


def section(title: str, anchor: str, *parts: Child, lead: Child = None) -> Markup:
    """A part of the page with its heading; nothing when it has no content."""
    if not any(parts):
        return Markup()
    intro = None if lead is None else element("p", lead, class_="lead")
    return element("section", element("h2", title, id=f"{anchor}-title"), intro, *parts, id=anchor,
                   aria_labelledby=f"{anchor}-title")  # fmt: skip


def folded(title: Child, *parts: Child, open_: bool = False) -> Markup:
    """A part that is shown when it is asked for, and always in print."""
    return element("details", element("summary", title), *parts, open=open_)


def legend(items: Iterable[tuple[str, str]]) -> Markup:
    """What the swatches of a picture mean: style of the swatch and words."""
    entries = [
        element("li", element("i", class_=f"swatch {style}", aria_hidden="true"), words) for style, words in items
    ]
    return element("ul", *entries, class_="legend")
