"""Contract modules, found by reading a file's syntax tree: `build_model`, `build_data` and `compute_loss`."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from nanprobe.errors import UsageError

REQUIRED = {"build_model": 0, "build_data": 0, "compute_loss": 2}  # name -> arguments it is called with
OPTIONAL = {"build_optimizer": 1}
_CALLS = {
    "build_model": "build_model()",
    "build_data": "build_data()",
    "compute_loss": "compute_loss(model, batch)",
    "build_optimizer": "build_optimizer(model)",
}


@dataclass(frozen=True, slots=True)
class Contract:
    """A file that nanprobe trains with a loop of its own."""

    has_optimizer: bool


def find_contract(tree: ast.Module, path: str) -> Contract | None:
    """The contract a file fulfils; None for a script that trains by itself.

    Raises UsageError when a file does nothing when it is run and fulfils the contract only in part.
    """
    defined = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    present = [name for name in REQUIRED if name in defined]
    if not present or _does_something(tree, set(defined)):
        return None
    missing = [name for name in REQUIRED if name not in defined]
    if missing:
        raise UsageError(
            f"{path}: defines {_join(present)} but no {_join(missing)}, and trains nothing when it is run; "
            f"add {' and '.join(_CALLS[name] for name in missing)}, or give the script that trains"
        )
    for name, count in {**REQUIRED, **OPTIONAL}.items():
        if name in defined:
            _check_signature(defined[name], count, path)
    return Contract(has_optimizer="build_optimizer" in defined)


def _does_something(tree: ast.Module, functions: set[str]) -> bool:
    """Whether running the file would start work: a main guard, a loop, or a call of a function of its own."""
    return any(_is_work(node, functions) for node in tree.body)


def _is_work(node: ast.stmt, functions: set[str]) -> bool:
    if isinstance(node, (ast.For, ast.While)):
        return True
    if isinstance(node, ast.If):
        return _names_main(node.test) or any(_is_work(child, functions) for child in (*node.body, *node.orelse))
    if isinstance(node, (ast.With, ast.Try)):
        return any(_is_work(child, functions) for child in node.body)
    if isinstance(node, (ast.Expr, ast.Assign)) and isinstance(node.value, ast.Call):
        called = node.value.func
        return isinstance(called, ast.Name) and called.id in functions
    return False


def _names_main(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))


def _check_signature(function: ast.FunctionDef | ast.AsyncFunctionDef, count: int, path: str) -> None:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    keywords = [
        a.arg for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None
    ]
    fits = required <= count and (count <= len(positional) or arguments.vararg is not None) and not keywords
    if isinstance(function, ast.AsyncFunctionDef) or not fits:
        raise UsageError(
            f"{path}: line {function.lineno}: {function.name}({ast.unparse(arguments)}) cannot be called as "
            f"{_CALLS[function.name]}; give its other arguments defaults"
        )


def _join(names: list[str]) -> str:
    return " and ".join(names)
