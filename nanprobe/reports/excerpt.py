"""The user's source lines: where they are, and what stands around them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nanprobe.records import Source

CONTEXT = 2  # lines before and after


@dataclass(frozen=True, slots=True)
class ExcerptLine:
    """One line of an excerpt."""

    number: int
    text: str
    marked: bool  # the line the finding points at


def read_excerpt(source: Source, context: int = CONTEXT) -> tuple[ExcerptLine, ...]:
    """The line and its neighbours, common indent removed; the line alone when the file is gone or was changed since."""
    alone = (ExcerptLine(source.line, source.code, True),)
    try:
        lines = Path(source.file).read_text(encoding="utf-8", errors="replace").expandtabs(4).splitlines()
    except (OSError, ValueError):
        return alone
    if not 1 <= source.line <= len(lines) or lines[source.line - 1].strip() != source.code.expandtabs(4).strip():
        return alone
    first, last = max(1, source.line - context), min(len(lines), source.line + context)
    # Blank lines at the edges say nothing.
    while first < source.line and not lines[first - 1].strip():
        first += 1
    while last > source.line and not lines[last - 1].strip():
        last -= 1
    shown = lines[first - 1 : last]
    indent = min(len(line) - len(line.lstrip()) for line in shown if line.strip())
    return tuple(ExcerptLine(first + i, line[indent:], first + i == source.line) for i, line in enumerate(shown))


def shorten_path(path: str) -> str:
    """The path relative to the working directory when it is inside, else as it is."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return path


def show_line(source: Source) -> str:
    """Where a line is, as editors and terminals open it: "train.py:41"."""
    return f"{shorten_path(source.file)}:{source.line}"
