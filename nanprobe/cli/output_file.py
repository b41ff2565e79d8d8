"""A report in a file: whole or not at all, and nothing of the user's overwritten."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path

from nanprobe.errors import OutputNotWritable


def save(text: str, path: Path, force: bool = False) -> None:
    """Write the text to a file that is not there yet, or, with `force`, in the place of one that is.

    Raises OutputNotWritable.
    """
    path = path.expanduser()
    if path.is_dir():
        raise OutputNotWritable(f"{path}: is a directory; give a file")
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")  # a pipe or a device: there is nothing to overwrite
        else:
            _put(text, path, force)
    except FileExistsError as error:
        raise OutputNotWritable(f"{path}: is there already; --force writes over it") from error
    except FileNotFoundError as error:
        raise OutputNotWritable(f"{path}: there is no directory {path.parent}") from error
    except OSError as error:
        raise OutputNotWritable(f"{path}: cannot be written: {error.strerror or error}") from error
    print(f"nanprobe: report written to {path}", file=sys.stderr)


def _put(text: str, path: Path, force: bool) -> None:
    """A draft beside the file takes its place in one move."""
    if not force and path.is_symlink():
        raise FileExistsError
    number, name = tempfile.mkstemp(prefix=f".{path.name[:40]}-", suffix=".draft", dir=path.parent)
    try:
        with os.fdopen(number, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(name, 0o666 & ~_umask())
        if force:
            os.replace(name, path)
        else:
            _link(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _link(draft: str, path: Path) -> None:
    """Unlike a move, a link fails where the name is taken; not every file system has links."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:
        if path.exists():
            raise FileExistsError from None
        os.replace(draft, path)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
