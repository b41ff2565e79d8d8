"""Golden files: chosen by the test's name, renewed with `pytest tests/reports --overwrite-goldens`."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import samples

GOLDENS = Path(__file__).parent / "goldens"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--overwrite-goldens", action="store_true", help="renew the golden files of the report tests")


@pytest.fixture
def check_golden(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Compares a text with the golden file of this test, or renews the file."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", request.node.name.removeprefix("test_")).strip("-")
    path = GOLDENS / f"{name}.txt"

    def check(text: str) -> None:
        # The option exists only when this folder is named on the command line.
        if request.config.getoption("--overwrite-goldens", default=False):
            path.write_text(text, encoding="utf-8")
        elif not path.exists():
            pytest.fail(f"{path.name} is missing; write it with: pytest tests/reports --overwrite-goldens")
        assert text == path.read_text(encoding="utf-8")

    return check


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A working directory with the samples' script in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(samples.SCRIPT, encoding="utf-8")
    return str(tmp_path)
