"""Names of parameters and modules."""

from __future__ import annotations

from collections.abc import Iterable


def module_of(parameter: str) -> str:
    """The module that owns a parameter: "ray.0" for "ray.0.weight", "" for one of the root module."""
    return parameter.rpartition(".")[0]


def is_within(parameter: str, module: str) -> bool:
    """Whether a parameter belongs to a module or to one inside it."""
    return parameter.startswith(f"{module}.")


def common_module(parameters: Iterable[str]) -> str | None:
    """The lowest module that holds all the parameters; None when that is the whole model."""
    paths = [module_of(name).split(".") if module_of(name) else [] for name in parameters]
    if not paths:
        return None
    shared: list[str] = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared) or None
