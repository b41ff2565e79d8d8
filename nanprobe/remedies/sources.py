"""The user's files as the remedies see them: their text, perhaps changed already by an earlier remedy."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from nanprobe.interventions import EditedFile
from nanprobe.records import Source
from nanprobe.remedies.editor import unified_diff
from nanprobe.remedies.script import Script

_INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class Sources:
    """Texts by path. Installed packages are not the user's to change, and are no part of it."""

    root: str  # names in a diff are relative to it
    edited: Mapping[str, str] = field(default_factory=dict)  # path -> text that stands for the file's own

    def script(self, source: Source | str | None) -> Script | None:
        """The file of a line, or of a path; None when it cannot be read, is no Python, or is not the user's."""
        path = source.file if isinstance(source, Source) else source
        if path is None or any(part in path for part in _INSTALLED):
            return None
        text = self.edited.get(path)
        try:
            return Script(path, _read(path) if text is None else text)
        except (OSError, UnicodeDecodeError, SyntaxError, ValueError):
            return None

    def with_edits(self, edits: Iterable[EditedFile]) -> Sources:
        """The same with these texts in the place of the files'."""
        return replace(self, edited={**self.edited, **{e.path: e.text for e in edits}})

    def diff(self, edits: Iterable[EditedFile]) -> str:
        """What the edits change in the files as they are on disk."""
        parts = []
        for edit in edits:
            name = os.path.relpath(edit.path, self.root)
            name = edit.path.lstrip(os.sep) if name.startswith("..") else name
            parts.append(unified_diff(_read(edit.path), edit.text, name.replace(os.sep, "/")))
        return "".join(parts)


def _read(path: str) -> str:
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()
