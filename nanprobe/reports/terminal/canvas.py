"""What the parts of the terminal report draw on: lines of styled text, wrapped, and safe against any name.

Text is never parsed for markup, so a module named "[red]" is shown as it is; control characters are replaced.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from nanprobe.reports.plain_text import clean

__all__ = ["Canvas", "Part", "clean", "pad", "shorten_middle"]

NARROWEST = 40  # columns; a narrower terminal breaks the lines itself
WIDEST_PROSE = 100  # longer lines of running text are hard to read
NARROWEST_PROSE = 16
HEAD = 4  # cells of a shortened name that its beginning keeps at least
Part = str | tuple[str, str]  # text, or text and its style


class Canvas:
    """Collects lines. `width` is in terminal cells; without colour the text has no escape sequences at all."""

    def __init__(self, width: int, color: bool) -> None:
        self.width = max(width, NARROWEST)
        self._file = io.StringIO()
        self._console = Console(
            file=self._file,
            width=self.width,
            color_system="standard" if color else None,
            force_terminal=color,
            no_color=not color,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
            _environ={},
        )

    def line(self, *parts: Part, whole: bool = False) -> None:
        """One line. It is cut at the width, or kept `whole` when it is to be copied."""
        text = _assemble(parts)
        if not whole:
            text.truncate(self.width, overflow="ellipsis")
        self._put(text)

    def paragraph(self, *parts: Part, lead: Sequence[Part] = (), indent: int = 0) -> None:
        """Wrapped text behind a `lead`, which stands on the first line only; the other lines begin below the text."""
        head = _assemble(lead)
        room = max(min(self.width, WIDEST_PROSE) - indent - head.cell_len, NARROWEST_PROSE)
        for number, line in enumerate(_assemble(parts).wrap(self._console, room)):
            self._put(Text(" " * indent) + (Text(" " * head.cell_len) if number else head) + line)

    def rows(self, rows: Sequence[tuple[str, str]], indent: int = 2) -> None:
        """Labels and values in two columns; long values wrap in theirs."""
        width = max((cell_len(clean(label)) for label, _ in rows), default=0)
        narrow = indent + width + 2 + NARROWEST_PROSE > self.width
        for label, value in rows:
            if narrow:
                self.paragraph((label, "dim"), "  ", value, indent=indent)
            else:
                self.paragraph(value, lead=[(pad(clean(label), width + 2), "dim")], indent=indent)

    def heading(self, text: str) -> None:
        """A blank line and a section's name."""
        self.blank()
        self.line((text, "bold"))

    def rule(self, *parts: Part, style: str = "") -> None:
        """A blank line, then a line across the width with a title in it."""
        text = _assemble([("━━ ", style), *parts, " "] if parts else [])
        text.truncate(self.width, overflow="ellipsis")
        self.blank()
        self._put(text + Text("━" * (self.width - text.cell_len), style))

    def blank(self) -> None:
        """An empty line."""
        self._put(Text())

    def text(self) -> str:
        """Everything drawn so far, ending in one newline."""
        return self._file.getvalue().rstrip("\n") + "\n"

    def _put(self, text: Text) -> None:
        text.rstrip()
        self._console.print(text, soft_wrap=True)


def _assemble(parts: Sequence[Part]) -> Text:
    text = Text()
    for part in parts:
        content, style = (part, "") if isinstance(part, str) else part
        text.append(clean(content), style)
    return text


def shorten_middle(name: str, width: int) -> str:
    """A dotted name in at most `width` cells: cut in the middle, its last parts kept whole as far as they fit."""
    if cell_len(name) <= width:
        return name
    parts = name.split(".")
    tails = ["…" + ".".join(parts[start:]) for start in range(1, len(parts))]
    fitting = [tail for tail in tails if cell_len(tail) <= width - HEAD] or ["…" + name[-(width * 2 // 3) :]]
    return set_cell_size(name, width - cell_len(fitting[0])).rstrip() + fitting[0]


def pad(text: str, width: int, right: bool = False) -> str:
    """The text filled up to a width in cells; numbers go to the `right`."""
    fill = " " * max(0, width - cell_len(text))
    return fill + text if right else text + fill
