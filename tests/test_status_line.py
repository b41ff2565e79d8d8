"""The line that says which checks run: on a terminal only, and never in the way of another."""

from __future__ import annotations

import io

from nanprobe.cli.status_line import StatusLine


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_it_names_what_runs_within_the_width_and_goes_away() -> None:
    screen = Terminal()
    line = StatusLine(screen, 3)
    line.started("a\x1b")
    line.started("b" * 100)
    assert screen.getvalue().split("\r\x1b[2K") == ["", "1/3  a ", f"2/3  a , {'b' * 70}"]
    line.ended("a\x1b")
    line.ended("b" * 100)
    line.draw()
    line.clear()
    assert screen.getvalue().endswith("\r\x1b[2K\r\x1b[2K")


def test_a_pipe_is_left_alone() -> None:
    pipe = io.StringIO()
    line = StatusLine(pipe, 1)
    line.started("a")
    line.clear()
    assert pipe.getvalue() == ""
