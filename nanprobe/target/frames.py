"""Which frames of a traceback are the user's, and what a traceback looks like without nanprobe's own. No torch."""

from __future__ import annotations

import importlib.util
import linecache
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import nanprobe
from nanprobe.records import ErrorRecord, Source

TRACEBACK_LINES = 24  # our choice: the innermost eight frames or so
MESSAGE_CHARACTERS = 2000
_OWN = os.path.join(os.path.dirname(os.path.abspath(nanprobe.__file__)), "")
_STACK_LINE = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')


@lru_cache(maxsize=1)
def _machinery() -> tuple[str, ...]:
    """The trees whose lines are never the user's: nanprobe, torch, the standard library."""
    spec = importlib.util.find_spec("torch")
    torch = [os.path.dirname(spec.origin)] if spec and spec.origin else []
    paths = [*torch, sysconfig.get_paths()["stdlib"], os.path.dirname(os.path.abspath(os.__file__))]
    return (_OWN, *(os.path.join(path, "") for path in paths))


def is_machinery(file: str) -> bool:
    """Whether a file is none of the user's; installed packages count as theirs, torch and nanprobe do not."""
    if file.startswith("<"):
        return True
    file = os.path.abspath(file)
    own_or_torch, library = _machinery()[:2], _machinery()[2:]
    if "site-packages" in file or "dist-packages" in file:
        return file.startswith(own_or_torch)
    return file.startswith((*own_or_torch, *library))


def make_source(file: str, line: int, function: str | None = None) -> Source:
    """A place with the text of its line."""
    return Source(os.path.abspath(file), line, linecache.getline(file, line).strip(), function)


def describe_error(error: BaseException, step: int) -> ErrorRecord:
    """The exception that ended a script, as its author would have seen it, with the innermost line of theirs."""
    shown = traceback.TracebackException.from_exception(error, compact=True)
    for part in _chain(shown):
        part.stack = traceback.StackSummary.from_list([f for f in part.stack if not _is_runner(f.filename)])
    lines = [line for entry in shown.format() for line in entry.rstrip("\n").split("\n")]
    try:
        message = str(error)
    except Exception:  # an exception class of the user's may be broken itself
        message = "(its message cannot be read)"
    return ErrorRecord(
        kind=type(error).__name__,
        message=message[:MESSAGE_CHARACTERS],
        traceback=tuple(lines[-TRACEBACK_LINES:]),
        source=_source_of(error),
        step=step,
    )


def _chain(shown: traceback.TracebackException) -> Iterable[traceback.TracebackException]:
    part: traceback.TracebackException | None = shown
    while part is not None:
        yield part
        part = part.__cause__ or part.__context__


def _is_runner(file: str) -> bool:
    return os.path.abspath(file).startswith(_OWN) or file.startswith(("<frozen runpy", "<frozen imp"))


def _source_of(error: BaseException) -> Source | None:
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return make_source(error.filename, error.lineno)
    frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    mine = [place for place in frames if not is_machinery(place[0])]
    return make_source(*mine[-1]) if mine else None


def read_stack(path: Path) -> Source | None:
    """The user's innermost line in a stack that faulthandler wrote, which lists the innermost frame first."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        if (found := _STACK_LINE.match(line)) and not is_machinery(found["file"]):
            return make_source(found["file"], int(found["line"]), found["function"])
    return None
