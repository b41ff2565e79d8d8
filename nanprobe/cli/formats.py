"""The option `--format` of the commands that report: its values, and the format a file's ending stands for."""

from __future__ import annotations

from pathlib import Path

from nanprobe.errors import UsageError
from nanprobe.options import choose
from nanprobe.reports.formats import ReportFormat

FORMATS = {form.value: form for form in ReportFormat}
FORMAT_HELP = f"Format of the report: {', '.join(FORMATS)}."
_ENDINGS = {
    ".json": "json",
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".xml": "junit",
    ".txt": "terminal",
    "": "terminal",
}


def choose_format(named: str | None, output: Path | None = None) -> ReportFormat:
    """The format of --format, else of the file's ending. Raises UsageError when there is none of the name."""
    if named is not None or output is None:
        return choose("--format", named or ReportFormat.TERMINAL.value, FORMATS)
    name = _ENDINGS.get(output.suffix.lower())
    if name not in FORMATS:
        raise UsageError(f"{output}: no format goes by the ending {output.suffix}; say which with --format")
    return FORMATS[name]
