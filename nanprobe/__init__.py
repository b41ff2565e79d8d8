"""nanprobe: says why a PyTorch training produced NaN, Inf or dead gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from nanprobe.frames import SavedRun

__version__ = "0.1.0"
__all__ = ["__version__", "load_run"]


def load_run(directory: str | os.PathLike[str] = "last") -> SavedRun:
    """The run of `nanprobe diagnose` in a directory as pandas tables: `stages`, `steps`, `gradients`, `layers`,
    `findings`; "last" is the newest run in the user's cache.

    Raises nanprobe.errors.RunUnreadable when it is no such run, is damaged, or was written by a newer nanprobe.
    """
    from nanprobe import frames  # late: importing nanprobe loads neither pandas nor torch

    return frames.load_run(directory)
