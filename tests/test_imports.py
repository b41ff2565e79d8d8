"""Imports go down only, and what needs no torch never loads it; and the proof that these checks can fail."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nanprobe

PACKAGE = Path(nanprobe.__file__).parent

# A module may import from lower floors, from its own package and, on floor 0, from its neighbours.
FLOORS: dict[str, int] = {
    "errors": 0,
    "formats": 0,
    "records": 0,
    "findings": 0,
    "catalogue": 0,
    "interventions": 0,
    "plan": 0,
    "notation": 0,
    "fail_on": 0,
    "patching": 0,
    "diagnosis": 1,
    "loss_scale": 1,
    "recipe": 1,
    "storage": 1,
    "progress": 1,
    "machine": 1,
    "options": 1,
    "reports": 2,
    "saved_run": 2,
    "saved_sweep": 2,
    "remedies": 2,
    "frames": 3,
    "precision": 3,
    "probe": 4,
    "treatment": 4,
    "target": 5,
    "protocol": 6,
    "sweep": 7,
    "verify": 7,
    "check": 8,
    "cli": 9,
    "__main__": 10,
}
TORCH_FREE_UP_TO = 2


def test_imports_go_down_only() -> None:
    assert upward_imports(PACKAGE) == []


def test_lower_floors_never_name_torch() -> None:
    assert torch_imports(PACKAGE) == []


def test_lower_floors_never_load_torch() -> None:
    assert loaded(PACKAGE, lower_modules(PACKAGE), "torch") == []


def test_help_loads_neither_torch_nor_pandas() -> None:
    code = (
        "import sys; sys.argv = ['nanprobe', '--help']\n"
        "from nanprobe.cli import main\n"
        "try: main()\n"
        "except SystemExit as e: assert not e.code, e.code\n"
        "print('LOADED', *sorted({'torch', 'pandas', 'numpy'} & sys.modules.keys()))"
    )
    last_line = run_python(code, PACKAGE.parent).splitlines()[-1]
    assert last_line == "LOADED"


@pytest.fixture
def crooked_house(tmp_path: Path) -> Path:
    """A package of the same plan with one of each mistake in it."""
    package = tmp_path / "nanprobe"
    for folder in (package, package / "diagnosis", package / "probe"):
        folder.mkdir()
        (folder / "__init__.py").touch()
    (package / "records.py").write_text("from nanprobe.cli import main\n")
    (package / "findings.py").write_text("def load():\n    import torch.nn\n")
    (package / "cli.py").write_text("main = None\n")
    (package / "attic.py").touch()
    (package / "probe" / "shadow.py").write_text("import torch\nfrom nanprobe import records\n")
    (package / "diagnosis" / "overflow.py").write_text("from ..probe import shadow\nfrom . import causes\n")
    (package / "diagnosis" / "causes.py").write_text("from nanprobe.findings import load\n")
    return package


def test_the_floor_check_can_fail(crooked_house: Path) -> None:
    assert upward_imports(crooked_house) == [
        "attic.py: 'attic' is on no floor; give it one in FLOORS",
        f"diagnosis/overflow.py:1: 'diagnosis' (floor 1) imports 'probe' (floor {FLOORS['probe']})",
        f"records.py:1: 'records' (floor 0) imports 'cli' (floor {FLOORS['cli']})",
    ]


def test_the_torch_check_can_fail(crooked_house: Path) -> None:
    assert torch_imports(crooked_house) == ["findings.py:2: imports torch.nn"]


def test_the_load_check_can_fail(crooked_house: Path) -> None:
    (crooked_house / "diagnosis" / "overflow.py").write_text("import json\nfrom nanprobe.probe import shadow\n")
    assert loaded(crooked_house, ["nanprobe.diagnosis.causes"], "json") == []
    assert loaded(crooked_house, ["nanprobe.diagnosis.overflow"], "json") == ["nanprobe.diagnosis.overflow"]


def upward_imports(package: Path) -> list[str]:
    """Imports from a higher floor, or from a neighbour above floor 0, as `file:line: what`."""
    problems = []
    for file, noun in sources(package):
        where = file.relative_to(package).as_posix()
        if noun not in FLOORS:
            problems.append(f"{where}: {noun!r} is on no floor; give it one in FLOORS")
            continue
        for line, name in imported(file, package):
            other = name.removeprefix("nanprobe.").split(".")[0]
            if not name.startswith("nanprobe.") or other == noun or other not in FLOORS:
                continue
            if FLOORS[other] > FLOORS[noun] or FLOORS[other] == FLOORS[noun] > 0:
                problems.append(
                    f"{where}:{line}: {noun!r} (floor {FLOORS[noun]}) imports {other!r} (floor {FLOORS[other]})"
                )
    return problems


def torch_imports(package: Path) -> list[str]:
    """Imports of torch, even inside a function, in modules that must not know it."""
    return [
        f"{file.relative_to(package).as_posix()}:{line}: imports {name}"
        for file, noun in sources(package)
        if FLOORS.get(noun, 99) <= TORCH_FREE_UP_TO
        for line, name in imported(file, package)
        if name.split(".")[0] == "torch"
    ]


def loaded(package: Path, modules: list[str], unwanted: str) -> list[str]:
    """The first of `modules` after whose import `unwanted` is loaded, in a fresh interpreter; empty when none does."""
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}:\n"
        f"    importlib.import_module(name)\n"
        f"    if {unwanted!r} in sys.modules:\n"
        "        print('LOADS', name)\n"
        "        break\n"
    )
    return [line.split()[1] for line in run_python(code, package.parent).splitlines() if line.startswith("LOADS")]


def lower_modules(package: Path) -> list[str]:
    """Dotted names of all modules that must not load torch."""
    names = []
    for file, noun in sources(package):
        if FLOORS.get(noun, 99) <= TORCH_FREE_UP_TO:
            parts = file.relative_to(package.parent).with_suffix("").parts
            names.append(".".join(part for part in parts if part != "__init__"))
    return names


def sources(package: Path) -> Iterator[tuple[Path, str]]:
    """Every module of the package with its noun: the first part of its name below `nanprobe`."""
    for file in sorted(package.rglob("*.py")):
        noun = file.relative_to(package).parts[0].removesuffix(".py")
        if noun != "__init__":
            yield file, noun


def imported(file: Path, package: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything a module imports, anywhere in it."""
    here = ("nanprobe", *file.relative_to(package).parent.parts)
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*here[: len(here) - node.level + 1]] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            # `from nanprobe import records` names the module last.
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def run_python(code: str, root: Path) -> str:
    """Output of `code` in a fresh interpreter that finds the package under `root` first."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(root)!r})\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
