"""Test cases as JUnit XML, the form in which CI systems read results.

There is no one standard. This writes what is common to the schemas in use, as pytest does too: suites with counts and
a time, cases with a class and a name, and in a case at most one of failure, error and skipped, then its output.

Source: the schema of Jenkins' xUnit plugin, junit-10.xsd; XML 1.0, section 2.2, for the characters that may occur.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass

_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CONTROLS = re.compile("[\u007f-\u0084\u0086-\u009f]")  # allowed, but no terminal and no browser shows them


@dataclass(frozen=True, slots=True)
class TestCase:
    """One line of a CI system's list of tests."""

    name: str
    group: str  # what the list is grouped by, "nanprobe.stages"
    seconds: float = 0.0
    failure: tuple[str, str] | None = None  # a message on one line, and a text: it is not as it should be
    error: tuple[str, str] | None = None  # likewise: it could not be told
    skipped: str | None = None  # why it was not looked at
    output: str = ""  # what else there is to say


def render_suite(name: str, cases: Sequence[TestCase]) -> str:
    """One suite as a whole document, ending in a newline."""
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.failure is not None for case in cases)),
        "errors": str(sum(case.error is not None for case in cases)),
        "skipped": str(sum(case.skipped is not None for case in cases)),
        "time": _show_time(sum(case.seconds for case in cases)),
    }
    root = ElementTree.Element("testsuites", {"name": "nanprobe", **{k: counts[k] for k in counts if k != "skipped"}})
    suite = ElementTree.SubElement(root, "testsuite", {"name": _allowed(name), **counts})
    for case in cases:
        _add_case(suite, case)
    ElementTree.indent(root)
    text: str = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _add_case(suite: ElementTree.Element, case: TestCase) -> None:
    names = {"classname": _allowed(case.group), "name": _allowed(case.name), "time": _show_time(case.seconds)}
    element = ElementTree.SubElement(suite, "testcase", names)
    for tag, complaint in (("failure", case.failure), ("error", case.error)):
        if complaint is not None:
            message, text = map(_allowed, complaint)
            child = ElementTree.SubElement(
                element, tag, {"message": " ".join(message.split()), "type": _allowed(case.group)}
            )
            child.text = text
    if case.skipped is not None:
        ElementTree.SubElement(element, "skipped", {"message": " ".join(_allowed(case.skipped).split())})
    if case.output:
        ElementTree.SubElement(element, "system-out").text = _allowed(case.output)


def _allowed(text: str) -> str:
    """The text with every character that XML forbids, or that nobody can see, replaced."""
    return _CONTROLS.sub("�", _FORBIDDEN.sub("�", text))


def _show_time(seconds: float) -> str:
    return f"{seconds:.3f}"
