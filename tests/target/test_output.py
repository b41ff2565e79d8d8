"""The log of a script's output: everything when it is short, start and end when it is long."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nanprobe.target.output import OutputLog


def drain(log: OutputLog, *chunks: bytes) -> None:
    read_end, write_end = os.pipe()
    log.start(read_end)
    for chunk in chunks:
        os.write(write_end, chunk)
    os.close(write_end)
    log.finish()


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 19, 20])
def test_short_output_is_kept_whole(tmp_path: Path, size: int) -> None:
    text = bytes(range(size))
    drain(OutputLog(tmp_path / "log", kept=10), text)
    assert (tmp_path / "log").read_bytes() == text


def test_long_output_keeps_its_start_and_its_end(tmp_path: Path) -> None:
    drain(OutputLog(tmp_path / "log", kept=10), *(b"%04d" % number for number in range(1000)))
    text = (tmp_path / "log").read_bytes()
    assert text == b"0000000100\n[... 3,980 bytes left out ...]\n9709980999"


def test_last_line_and_copy(tmp_path: Path) -> None:
    copied: list[bytes] = []
    log = OutputLog(tmp_path / "log", copy=copied.append)
    drain(log, b"usage: x\n", b"error: no \xff\n\n")
    assert log.last_line() == "error: no \ufffd"
    assert b"".join(copied) == b"usage: x\nerror: no \xff\n\n"


def test_output_is_drained_even_where_it_cannot_be_kept(tmp_path: Path) -> None:
    log = OutputLog(tmp_path / "missing" / "log")
    drain(log, b"x" * 10)
    assert log.last_line() == "x" * 10
