"""A script sees what it would see under `python train.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOOK = """
import inspect, json, os, pickle, sys
class Local:
    pass
seen = {
    "argv": sys.argv, "path": sys.path[0], "cwd": os.getcwd(), "name": __name__, "file": __file__,
    "spec": __spec__ and __spec__.name, "loader": type(__loader__).__name__, "doc": __doc__, "package": __package__,
    "main": sys.modules["__main__"].__dict__ is globals(), "source": inspect.getsource(Local),
    "pickled": type(pickle.loads(pickle.dumps(Local()))).__name__, "builtins": type(__builtins__).__name__,
    "names": sorted(name for name in globals() if name.startswith("__") and name != "__annotations__"),
}
print(json.dumps(seen))
"""


def look(command: list[str], cwd: Path) -> dict[str, object]:
    done = subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def ours(target: str, argv: list[str], mode: str) -> list[str]:
    run = "run_module" if mode == "module" else "run_script"
    code = (
        f"import sys; sys.path[0] = {str(ROOT)!r}; from nanprobe.target.script import {run}; "
        f"from nanprobe.records import Target; sys.path.pop(0); {run}(Target({target!r}, {tuple(argv)!r}, {mode!r}))"
    )
    return ["-c", code]


@pytest.mark.parametrize("path", ["train.py", "./sub/train.py", "sub/link.py"])
def test_scripts(tmp_path: Path, path: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "other").mkdir()
    for name in ("train.py", "sub/train.py", "other/real.py"):
        (tmp_path / name).write_text(f'"""Documented."""\n{LOOK}')
    (tmp_path / "sub" / "link.py").symlink_to("../other/real.py")
    assert look(ours(path, ["-x", "--", "1"], "script"), tmp_path) == look([path, "-x", "--", "1"], tmp_path)


@pytest.mark.parametrize("name", ["package.train", "package"])
def test_modules(tmp_path: Path, name: str) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "settings.py").write_text("LEARNING_RATE = 1\n")
    for file in ("train.py", "__main__.py"):
        (package / file).write_text("from .settings import LEARNING_RATE\n" + LOOK)
    expected = look(["-m", name, "--lr", "1"], tmp_path)
    assert look(ours(name, ["--lr", "1"], "module"), tmp_path) == expected
