"""Fixtures for every test: one pinned environment, and nothing left behind in torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# Before torch is imported: small models are slower on many threads, and two test runs on one machine would fight.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import pytest
import torch

import leftovers

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def pinned_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """80 columns, no colour, and a cache directory of the test run's own, here and in every child process."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "GITHUB_ACTIONS", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(_cache_home(tmp_path_factory)))


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails a test that leaves a hook, a patch, a mode or a switch behind: the next test would measure it."""
    before = leftovers.snapshot()
    yield
    changed = leftovers.changed(before)
    if changed:
        pytest.fail("left behind:\n  " + "\n  ".join(changed), pytrace=False)


def _cache_home(factory: pytest.TempPathFactory) -> Path:
    path = factory.getbasetemp() / "cache"
    path.mkdir(exist_ok=True)
    return path
