"""Python source being written: lines, their indentation, and marks on the lines that matter later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Page:
    """Collects lines; a mark remembers the number of the line it was put on."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0
        self.marks: dict[str, tuple[int, ...]] = {}

    def write(self, *lines: str) -> None:
        """Append lines; one that begins with "*" is the culprit, each "+" before it goes one level deeper."""
        for line in lines:
            text = line.lstrip("+")
            depth = self._depth + len(line) - len(text)
            marked = text.startswith("*")
            self._lines.append("    " * depth + text.removeprefix("*") if text else "")
            if marked:
                self.mark("culprit")

    def mark(self, name: str) -> None:
        """Remember the line written last under a name."""
        self.marks[name] = (*self.marks.get(name, ()), len(self._lines))

    def marked(self, name: str, line: str) -> None:
        """Append a line and remember it under a name."""
        self.write(line)
        self.mark(name)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Append `head`, and what follows one level deeper."""
        self.write(head)
        self._depth += 1
        yield
        self._depth -= 1

    @property
    def text(self) -> str:
        """The whole source."""
        return "\n".join(self._lines) + "\n"
