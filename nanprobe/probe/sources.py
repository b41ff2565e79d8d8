"""Which line of the user's code is running: the innermost frame outside torch and nanprobe."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from types import CodeType, FrameType

import torch

from nanprobe.records import Source

# Frames of these trees are machinery, never the place of a fault. Installed third-party code stays visible: a line
# in a model library says more than the `trainer.train()` that called it.
_MACHINERY = tuple(
    os.path.join(path, "")
    for path in (
        os.path.dirname(torch.__file__),
        os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
        sysconfig.get_paths()["stdlib"],
        os.path.dirname(os.__file__),
    )
)
_SITE_PACKAGES = ("site-packages", "dist-packages")
_DISTRIBUTIONS = os.path.join(os.path.dirname(torch.__file__), "distributions")
_SHARED_BY_DISTRIBUTIONS = frozenset({"__init__", "distribution", "exp_family", "utils", "constraints",
                                      "constraint_registry", "kl", "transforms", "independent",
                                      "transformed_distribution", "mixture_same_family"})  # fmt: skip

Place = tuple[str, int, str]  # file, line, function


class SourceFinder:
    """Finds the user's line for the operation that is running now; remembers what it has seen."""

    def __init__(self) -> None:
        self._machinery: dict[str, str | None] = {}  # None: the user's; else a module of torch.distributions, or ""
        self._sources: dict[Place, Source] = {}
        self.distribution: str | None = None  # the module of torch.distributions met below the last frame found

    def place(self, skip: int = 1) -> Place | None:
        """File, line and function of the innermost user frame, `skip` frames above the caller; reads no text."""
        frame = self.frame(skip + 1)
        if frame is None:
            return None
        return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name

    def frame(self, skip: int = 1) -> FrameType | None:
        """The innermost user frame itself."""
        frame: FrameType | None = sys._getframe(skip)
        known = self._machinery
        self.distribution = None
        while frame is not None:
            filename = frame.f_code.co_filename
            if filename in known:
                machinery = known[filename]
            else:
                machinery = known[filename] = _distribution(filename) if _is_machinery(frame.f_code) else None
            if machinery is None:
                return frame
            if machinery:
                self.distribution = machinery  # the outermost: Beta asks a Dirichlet
            frame = frame.f_back
        return None

    def source(self, place: Place | None) -> Source | None:
        """The `Source` of a place, with the line's text."""
        if place is None:
            return None
        found = self._sources.get(place)
        if found is None:
            file, line, function = place
            code = linecache.getline(file, line).strip()
            found = Source(os.path.abspath(file), line, code, function)
            self._sources[place] = found
        return found

    def here(self) -> Source | None:
        """The `Source` of the innermost user frame."""
        return self.source(self.place(skip=2))


def _distribution(filename: str) -> str:
    """The distribution a file of torch.distributions holds; "" for other files."""
    folder, name = os.path.split(filename)
    if os.path.abspath(folder) != _DISTRIBUTIONS:
        return ""
    stem = os.path.splitext(name)[0]
    return "" if stem in _SHARED_BY_DISTRIBUTIONS else stem


def _is_machinery(code: CodeType) -> bool:
    filename = code.co_filename
    if filename.startswith("<"):
        return True
    filename = os.path.abspath(filename)
    if any(part in filename for part in _SITE_PACKAGES):
        return filename.startswith(_MACHINERY[:2])
    return filename.startswith(_MACHINERY)
