"""Workflow commands of GitHub Actions: annotations on a file and line, escaped so that no name can break out of one.

Source: "Workflow commands for GitHub Actions" in GitHub's documentation, and actions/toolkit,
packages/core/src/command.ts, for the escapes.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from nanprobe.findings import Finding, Severity
from nanprobe.records import Source

LEVELS: dict[Severity, str] = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def annotation(level: str, message: str, *, title: str, file: str | None = None, line: int | None = None) -> str:
    """One command on one line: `::error file=train.py,line=41,title=...::message`."""
    properties = {"file": file, "line": None if line is None or file is None else str(line), "title": title}
    listed = ",".join(f"{key}={_escape_property(value)}" for key, value in properties.items() if value is not None)
    return f"::{level} {listed}::{_escape(message)}\n"


def annotate_finding(finding: Finding, message: str, fallback: str | None) -> str:
    """A finding at its line, or at the `fallback` file where it has none."""
    source = finding.source
    return annotation(
        LEVELS[finding.severity],
        message,
        title=f"{finding.code} {finding.kind.value}: {finding.title}",
        file=fallback if source is None else file_of(source),
        line=None if source is None else source.line,
    )


def file_of(source: Source | str) -> str | None:
    """A file as GitHub finds it, relative to the repository; None where it lies outside.

    Relative to GITHUB_WORKSPACE, which is where actions/checkout puts the repository, else to the working directory.
    """
    path = source if isinstance(source, str) else source.file
    root = os.environ.get("GITHUB_WORKSPACE") or os.getcwd()
    for follow in (os.path.abspath, os.path.realpath):
        with contextlib.suppress(ValueError):  # not inside, or no path at all
            return Path(follow(path)).relative_to(follow(root)).as_posix()
    return None


def plain_line(text: str) -> str:
    """A line of the log that is no command, whatever it says."""
    line = _show(" ".join(text.split()))
    return (f" {line}" if line.startswith(("::", "##[")) else line) + "\n"


def _show(text: str) -> str:
    return "".join(c if c.isprintable() or c in "\n\r\t" else "�" for c in text)


def _escape(text: str) -> str:
    return _show(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape(" ".join(text.split())).replace(":", "%3A").replace(",", "%2C")
