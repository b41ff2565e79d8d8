"""Whether a recipe's target lies where it may: in the recipe's own folder, or in the repository around it."""

from __future__ import annotations

import os
from pathlib import Path, PureWindowsPath


def explain_outside(target: str, folder: Path) -> str | None:
    """Why a target may not be run from a recipe in a folder; None when it may.

    A recipe comes with the code it is for, and is run by a machine that trusts that code. So it names nothing outside:
    no absolute path, and no path that leaves the repository, not even through a link.
    """
    if os.path.isabs(target) or PureWindowsPath(target).is_absolute() or target.startswith("~"):
        return f"{target} is an absolute path; name the script relative to the recipe, so that it works elsewhere too"
    root = find_repository(folder)
    inside = root if root is not None else folder
    place = Path(os.path.realpath(folder / target))
    if not place.is_relative_to(os.path.realpath(inside)):
        what = f"the repository {root}" if root is not None else f"the recipe's folder {folder}"
        return f"{target} leads outside of {what}, to {place}; keep the script and its recipe together"
    return None


def find_repository(folder: Path) -> Path | None:
    """The folder with `.git` in it, at or above a folder."""
    start = Path(os.path.realpath(folder))
    return next((place for place in (start, *start.parents) if (place / ".git").exists()), None)
