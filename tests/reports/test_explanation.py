"""Every code has a page that can be read, and an unknown one is refused with a hint."""

from __future__ import annotations

import pytest

from nanprobe.catalogue import CATALOGUE
from nanprobe.errors import UsageError
from nanprobe.reports.explanation import render_explanation


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_every_code_has_a_page(code: str) -> None:
    page = render_explanation(code, width=72)
    assert page.startswith(code) and "WHAT TO DO\n  1. " in page and "SOURCE\n" in page
    assert "{" not in page.replace("{k", "")
    assert max(map(len, page.splitlines())) <= 72


def test_case_does_not_matter_and_a_wrong_code_is_refused() -> None:
    assert render_explanation("np101") == render_explanation("NP101")
    with pytest.raises(UsageError, match="NP999: no such code; expected one like NP"):
        render_explanation("NP999")
