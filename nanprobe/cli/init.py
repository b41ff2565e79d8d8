"""`nanprobe init`: a first recipe for a script."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from nanprobe.cli.application import Session
from nanprobe.cli.screen import show
from nanprobe.cli.target import locate
from nanprobe.errors import ExitCode, OutputNotWritable
from nanprobe.records import Target


def init(
    context: typer.Context,
    target: Annotated[str | None, typer.Argument(help="A training script.")] = None,
    module: Annotated[
        str | None, typer.Option("-m", "--module", metavar="NAME", help="A module, as for `python -m`.")
    ] = None,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="The recipe to write; never one that is there.")
    ] = "nanprobe.yaml",
) -> int:
    """Write a recipe for a script, with a comment at every key.

    The script is read, not run: its autocast, its GradScaler and its options are named in the comments. Arguments after
    `--` become the recipe's. Then `nanprobe check` runs it.

    For example:

        nanprobe init train.py -- --epochs 1

        nanprobe init train.py -o checks/smoke.recipe.yaml
    """
    from nanprobe.recipe.draft import write_draft
    from nanprobe.recipe.hints import read_hints

    session: Session = context.obj
    found = locate(target, module, session.script_args)
    path = Path(output)
    if path.exists():
        raise OutputNotWritable(f"{path}: is there already, and is left as it is; give another file with -o")
    if not path.parent.is_dir():
        raise OutputNotWritable(f"{path}: there is no directory {path.parent}")
    seen_from_there = found.path if module else os.path.relpath(found.path, path.parent)
    hints = read_hints(_source_of(found).read_text(encoding="utf-8", errors="replace"))
    text, _ = write_draft(seen_from_there, path, hints, found.argv, is_module=found.mode == "module")
    _write_new(path, text)
    show(f"{path} written; next: nanprobe check {path}\n")
    return int(ExitCode.HEALTHY)


def _source_of(target: Target) -> Path:
    """The file of a script or a module."""
    if target.mode != "module":
        return Path(target.path)
    from nanprobe.target.locate import find_main_spec

    return Path(str(find_main_spec(target.path).origin))


def _write_new(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        raise OutputNotWritable(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from error
