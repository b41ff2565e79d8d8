"""Where runs are kept: a folder in the user's cache, or where the user says; and how to find one again."""

from __future__ import annotations

import os
import re
import secrets
import time
from pathlib import Path

from nanprobe.errors import OutputNotWritable, RunUnreadable
from nanprobe.records import Target
from nanprobe.storage.layout import RUN_FILE

LAST = "last"
_LAST = re.compile(r"last(?:~(\d+))?")
_STAMP = re.compile(r"\d{8}-\d{6}(?=-)")


def runs_folder() -> Path:
    """The folder of the runs that were given no place of their own.

    Source: XDG Base Directory Specification; a relative XDG_CACHE_HOME is to be ignored.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        cache = Path.home() / ".cache"
    return cache / "nanprobe" / "runs"


def list_runs() -> list[Path]:
    """The runs in that folder, the newest first."""
    try:
        found = [path for path in runs_folder().iterdir() if _STAMP.match(path.name) and (path / RUN_FILE).is_file()]
    except OSError:
        return []
    return sorted(found, key=_age)


def _age(path: Path) -> tuple[str, int, str]:
    """Sorts by the second in the name, newest first; within a second by the time of the first file."""
    stamp = path.name[:15].translate(str.maketrans("0123456789", "9876543210"))
    try:
        return stamp, -(path / "stages").stat().st_ctime_ns, path.name
    except OSError:
        return stamp, 0, path.name


def find_run(named: str) -> Path:
    """The directory of a run: a path, a name in the runs folder, `last`, or `last~1` for the one before it.

    A directory that is itself called so is written `./last`. Raises RunUnreadable when there is none.
    """
    asked = _LAST.fullmatch(named)
    if asked is None:
        path = Path(named).expanduser()
        kept = runs_folder() / named
        return kept if not path.exists() and Path(named).name == named and kept.is_dir() else path.absolute()
    runs, back = list_runs(), int(asked[1] or 0)
    if back < len(runs):
        return runs[back]
    there = f"there are {len(runs)} runs" if len(runs) > 1 else "there is one run" if runs else "there is no run"
    raise RunUnreadable(f"{named}: {there} in {runs_folder()}; give a run directory, or run `nanprobe diagnose` first")


def new_run_directory(output: str | None, target: Target) -> Path:
    """A new, empty run directory: `output`, or one of its own name in the user's cache. Nothing is ever overwritten.

    Raises OutputNotWritable when it holds something already, or cannot be made.
    """
    path = Path(output).expanduser().absolute() if output else runs_folder() / _make_name(target)
    try:
        if path.exists() and not path.is_dir():
            raise OutputNotWritable(f"{path}: is a file; give a directory that does not exist yet, or is empty")
        if path.is_dir() and any(path.iterdir()):
            what = (
                "already holds a nanprobe run"
                if (path / RUN_FILE).exists()
                else "is not empty, and is not a nanprobe run"
            )
            raise OutputNotWritable(f"{path}: {what}; give a directory that does not exist yet, or is empty")
        (path / "stages").mkdir(parents=True)
    except OSError as error:
        raise OutputNotWritable(f"{path}: cannot make the run directory: {error.strerror or error}") from error
    return path


def _make_name(target: Target) -> str:
    name = target.path.rpartition(".")[2] if target.mode == "module" else Path(target.path).stem
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:40] or "run"
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{stem}-{secrets.token_hex(2)}"
