"""A page that stays below the length GitHub takes: what does not fit is left out, and the page says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nanprobe.reports.markdown.syntax import head, row

# GitHub refuses an issue or comment of more than 65,536 characters; the rest is left to the person who pastes it.
LONGEST_PAGE = 60_000
_RESERVED = 4_000  # for what comes after the last table: the environment, the closing of <details>
_CUT = "*(Left out here, because the report would be too long for GitHub; all of it is in the JSON report.)*"


class Page:
    """Collects blocks of Markdown, the most important first."""

    def __init__(self) -> None:
        self._blocks: list[str] = []
        self._length = 0

    def add(self, block: str, *, last: bool = False) -> None:
        """Append a block, or a note where it does not fit; `last` ones may use the room that was kept for them."""
        if self._fits(len(block), last):
            self._put(block)
        elif self._blocks[-1:] != [_CUT]:
            self._put(_CUT)

    def fold(self, summary: str) -> None:
        """Fold away what follows, up to `unfold`."""
        self._put(f"<details><summary>{summary}</summary>")

    def unfold(self) -> None:
        """End what was folded away."""
        self._put("</details>")

    def section(self, title: str, *blocks: str) -> None:
        """A heading and what stands below it."""
        self.add("\n\n".join([f"### {title}", *blocks]))

    def table(
        self,
        titles: Sequence[str],
        rows: Sequence[Sequence[str]],
        left_out: Callable[[int], str],
        right: Sequence[str] = (),
    ) -> None:
        """As many rows as fit; `left_out` tells of the others, by their number."""
        lines = [head(titles, right)]
        length = len(lines[0])
        for cells in rows:
            line = row(cells)
            if not self._fits(length + len(line) + 1):
                break
            lines.append(line)
            length += len(line) + 1
        self._put("\n".join(lines))
        if len(lines) - 1 < len(rows):
            self._put(left_out(len(rows) - len(lines) + 1))

    def text(self) -> str:
        """The page, ending in one newline."""
        return "\n\n".join(self._blocks) + "\n"

    def _fits(self, length: int, last: bool = False) -> bool:
        return self._length + length + 2 <= LONGEST_PAGE - (0 if last else _RESERVED)

    def _put(self, block: str) -> None:
        self._blocks.append(block)
        self._length += len(block) + 2
