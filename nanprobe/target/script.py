"""Running a script or a module as `python` itself would: as `__main__`, in this process."""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import os
import sys
from types import CodeType, ModuleType
from typing import Any

from nanprobe.records import Target


def run_script(target: Target) -> dict[str, Any]:
    """Run a file as `python path args` would; returns what it defined.

    `sys.modules["__main__"]` is its module afterwards, so that pickling and DataLoader workers find its classes.
    """
    path = os.path.join(os.getcwd(), target.path)  # not made shorter, as Python leaves it
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    _set_arguments(target.path, target.argv)
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    code = compile(loader.get_data(path), path, "exec", dont_inherit=True)
    return _run(code, _make_main(path, loader, None))


def run_module(target: Target) -> dict[str, Any]:
    """Run a module as `python -m name args` would; returns what it defined. Its packages are imported first."""
    sys.path.insert(0, os.getcwd())
    _set_arguments("-m", target.argv)
    spec = importlib.util.find_spec(target.path)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{target.path}.__main__")
    if spec is None or spec.loader is None or not hasattr(spec.loader, "get_code"):
        raise ImportError(f"no code for the module {target.path!r}")
    code = spec.loader.get_code(spec.name)
    if code is None:
        raise ImportError(f"no code for the module {target.path!r}")
    sys.argv[0] = spec.origin or target.path
    return _run(code, _make_main(sys.argv[0], spec.loader, spec))


def _set_arguments(first: str, rest: tuple[str, ...]) -> None:
    sys.argv[:] = [first, *rest]
    sys.orig_argv[:] = [sys.executable, *sys.argv]


def _make_main(path: str, loader: Any, spec: importlib.machinery.ModuleSpec | None) -> ModuleType:
    main = ModuleType("__main__")
    main.__dict__.update(
        __builtins__=builtins,
        __file__=path,
        __loader__=loader,
        __spec__=spec,
        __package__=None if spec is None else spec.parent,
        __cached__=None if spec is None else spec.cached,
        __annotations__={},
    )
    return main


def _run(code: CodeType, main: ModuleType) -> dict[str, Any]:
    sys.modules["__main__"] = main
    exec(code, main.__dict__)
    return main.__dict__
