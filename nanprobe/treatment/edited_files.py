"""Changed texts served in the place of the user's files, which stay as they are."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import linecache
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, ModuleType
from typing import Any

from nanprobe.interventions import EditedFile
from nanprobe.patching import Patches


@contextmanager
def serve_edited_files(edits: Sequence[EditedFile]) -> Iterator[None]:
    """While active, Python reads these texts for these files: as the main script, and when they are imported."""
    if not edits:
        yield
        return
    texts = {os.path.realpath(edit.path): edit.text for edit in edits}
    patches = Patches()
    finder = _Finder(texts)
    patches.wrap(importlib.machinery.SourceFileLoader, "get_data", lambda original: _reading(original, texts))
    sys.meta_path.insert(0, finder)
    for edit in edits:
        # Without a modification time linecache takes the lines as they are, whatever is on disk.
        linecache.cache[edit.path] = (len(edit.text), None, edit.text.splitlines(keepends=True), edit.path)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        patches.undo()
        for edit in edits:
            linecache.cache.pop(edit.path, None)


def _reading(original: Any, texts: dict[str, str]) -> Any:
    def get_data(loader: Any, path: str) -> bytes:
        text = texts.get(os.path.realpath(path))
        data: bytes = original(loader, path) if text is None else text.encode("utf-8")
        return data

    return get_data


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules as Python would, and hands those that are edited to a loader that skips their cached bytecode."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of an edited module; None for all others."""
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or os.path.realpath(spec.origin) not in self._texts:
            return None
        spec.loader = _Loader(fullname, spec.origin)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = compile(self.get_data(path), path, "exec", dont_inherit=True)
        return code
