"""Libraries that open files in native code, going through an `Overlay` too: a table of their functions."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from nanprobe.patching import Patches
from nanprobe.target.file_patches import inside, overlay_path
from nanprobe.target.overlay import Overlay


@dataclass(frozen=True, slots=True)
class PathArgument:
    """One function's argument that names a file, and what the function does with the file."""

    module: str
    function: str  # "save", or "File.__init__" of a class
    position: int
    name: str
    mode: str  # as of open(); "?" when the function's own `mode` argument says it


_W, _R = "w", "r"
TABLE = (
    PathArgument("torch", "save", 1, "f", _W),
    PathArgument("torch", "load", 0, "f", _R),
    PathArgument("torch.serialization", "save", 1, "f", _W),
    PathArgument("torch.serialization", "load", 0, "f", _R),
    PathArgument("torch.jit", "save", 1, "f", _W),
    PathArgument("torch.jit", "load", 0, "f", _R),
    PathArgument("torch.jit", "ScriptModule.save", 1, "f", _W),
    PathArgument("torch.package", "PackageExporter.__init__", 1, "f", _W),
    PathArgument("torch.package", "PackageImporter.__init__", 1, "file_or_buffer", _R),
    PathArgument("safetensors", "serialize_file", 1, "filename", _W),
    PathArgument("safetensors", "safe_open", 0, "filename", _R),
    PathArgument("sqlite3", "connect", 0, "database", "r+"),
    PathArgument("sqlite3.dbapi2", "connect", 0, "database", "r+"),
    PathArgument("h5py", "File.__init__", 1, "name", "?"),
    PathArgument("cv2", "imwrite", 0, "filename", _W),
    PathArgument("cv2", "imread", 0, "filename", _R),
    PathArgument("soundfile", "write", 0, "file", _W),
    PathArgument("torchaudio", "save", 0, "uri", _W),
    PathArgument("torchaudio", "load", 0, "uri", _R),
    PathArgument("torchvision.io", "write_png", 1, "filename", _W),
    PathArgument("torchvision.io", "write_jpeg", 1, "filename", _W),
    PathArgument("pyarrow.parquet", "write_table", 1, "where", _W),
    PathArgument("pyarrow.parquet", "read_table", 0, "source", _R),
    PathArgument("tensorboard.summary.writer.event_file_writer", "EventFileWriter.__init__", 1, "logdir", "directory"),
    PathArgument("tensorboardX.event_file_writer", "EventFileWriter.__init__", 1, "logdir", "directory"),
)


def patch_libraries(overlay: Overlay, patches: Patches) -> ImportWatch:
    """Patch what is loaded now, and every other library of the table when the script imports it."""
    watch = ImportWatch(overlay, patches)
    for name in {entry.module for entry in TABLE} & sys.modules.keys():
        watch.patch(sys.modules[name])
    sys.meta_path.insert(0, watch)
    return watch


class ImportWatch(importlib.abc.MetaPathFinder):
    """Sees the libraries of the table being imported, and patches each right after it was."""

    def __init__(self, overlay: Overlay, patches: Patches) -> None:
        self._overlay, self._patches = overlay, patches
        self._awaited = {entry.module for entry in TABLE} - sys.modules.keys()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that the other finders give, its loader followed by the patching."""
        if fullname not in self._awaited:
            return None
        self._awaited.discard(fullname)  # so that the look-up below passes this finder by
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self.patch(module)

            vars(spec.loader)["exec_module"] = exec_module
        return spec

    def patch(self, module: ModuleType) -> None:
        """Patch a module's functions of the table."""
        for entry in TABLE:
            if entry.module == module.__name__:
                owner: Any = module
                *holders, function = entry.function.split(".")
                for holder in holders:
                    owner = getattr(owner, holder, None)
                if owner is not None:
                    self._patches.wrap(owner, function, functools.partial(_redirect, self._overlay, entry))

    def stop(self) -> None:
        """Watch imports no longer."""
        sys.meta_path.remove(self)


def _redirect(overlay: Overlay, entry: PathArgument, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        held = kwargs if entry.name in kwargs else (args if len(args) > entry.position else None)
        if held is None:
            return original(*args, **kwargs)
        key: Any = entry.name if held is kwargs else entry.position
        if not isinstance(held[key], (str, bytes, os.PathLike)) or held[key] == ":memory:":
            return original(*args, **kwargs)
        mode = _mode(entry, args, kwargs)
        path = _redirect_path(overlay, held[key], mode)
        if held is kwargs:
            return original(*args, **{**kwargs, entry.name: path})
        return original(*args[: entry.position], path, *args[entry.position + 1 :], **kwargs)

    return call


def _mode(entry: PathArgument, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    if entry.mode != "?":
        return entry.mode
    mode = kwargs.get("mode", args[entry.position + 1] if len(args) > entry.position + 1 else "r")
    return str(mode or "r").replace("w-", "x")


def _redirect_path(overlay: Overlay, path: Any, mode: str) -> Any:
    if mode == "directory":
        os.makedirs(path, exist_ok=True)  # in the overlay, through the patched functions
        mode = "r"
    before, inside.now = inside.now, True
    try:
        return overlay_path(overlay, path, mode)
    finally:
        inside.now = before
