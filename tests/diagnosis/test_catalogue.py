"""The catalogue of codes: complete, unambiguous, and every slot is filled by whoever uses it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nanprobe.diagnosis
from nanprobe.catalogue import CATALOGUE, entry
from nanprobe.findings import Kind

FAMILIES = {
    "NP1": Kind.OVERFLOW,
    "NP2": Kind.UNDERFLOW,
    "NP3": Kind.DATA,
    "NP4": Kind.GRAPH,
    "NP5": Kind.DIVERGENCE,
    "NP6": Kind.MISUSE,
}


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_every_page_is_whole(code: str) -> None:
    page = entry(code)
    assert page.code == code
    assert page.kind is FAMILIES[code[:3]]
    assert page.remedies and all(page.remedies)
    assert len(page.explanation) > 40 and page.found_by and page.source
    assert "\n" not in page.title


def test_every_code_the_diagnosis_uses_has_a_page() -> None:
    folder = Path(nanprobe.diagnosis.__file__).parent
    used = {
        code for file in folder.glob("*.py") for code in re.findall(r'"(NP\d{3})"', file.read_text(encoding="utf-8"))
    }
    assert used <= set(CATALOGUE)


def test_an_unknown_code_is_refused() -> None:
    with pytest.raises(KeyError):
        entry("NP999")
