"""The page of one code, for `nanprobe explain`."""

from __future__ import annotations

import difflib
import re
import textwrap

from nanprobe.catalogue import CATALOGUE
from nanprobe.errors import UsageError


def render_explanation(code: str, width: int = 80) -> str:
    """What a finding means, how it is found, what to do, and the source; plain text.

    Raises UsageError, with the nearest codes, for one that does not exist.
    """
    page = CATALOGUE.get(code.upper())
    if page is None:
        near = difflib.get_close_matches(code.upper(), CATALOGUE, n=3) or list(CATALOGUE)[:3]
        raise UsageError(f"{code}: no such code; expected one like {', '.join(near)}")
    parts = [
        f"{page.code}  {page.kind.value}\n{_wrap(_blanks(page.title), width, '')}",
        _section("WHAT IT MEANS", page.explanation, width),
        _section("HOW IT IS FOUND", page.found_by, width),
        "WHAT TO DO\n" + "\n".join(_numbered(n, _blanks(text), width) for n, text in enumerate(page.remedies, 1)),
        _section("SOURCE", page.source, width),
    ]
    return "\n\n".join(parts) + "\n"


def _blanks(text: str) -> str:
    """The text of a template with its slots shown as what they stand for: `{wanted_scale}` is <wanted scale>."""
    return re.sub(r"\{(\w+)[^}]*\}", lambda slot: f"<{slot[1].replace('_', ' ')}>", text)


def _section(title: str, text: str, width: int) -> str:
    return f"{title}\n{_wrap(_blanks(text), width, '  ')}"


def _numbered(number: int, text: str, width: int) -> str:
    return textwrap.fill(text, width, initial_indent=f"  {number}. ", subsequent_indent="     ")


def _wrap(text: str, width: int, indent: str) -> str:
    return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)
