"""Python's file functions, going through an `Overlay` for as long as a script runs."""

from __future__ import annotations

import builtins
import errno
import functools
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, ModuleType
from typing import Any

from nanprobe.patching import Patches
from nanprobe.target.overlay import Overlay

_READERS = ("stat", "access", "statvfs", "getxattr", "listxattr", "pathconf")
_LINK_READERS = ("lstat", "readlink")
_CHANGERS = ("chmod", "chown", "utime", "truncate", "setxattr", "removexattr", "chflags")
_LINK_CHANGERS = ("lchmod", "lchown", "lchflags")
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_TMPFILE = getattr(os, "O_TMPFILE", 0)
_SUPPORTS = ("supports_dir_fd", "supports_fd", "supports_follow_symlinks", "supports_effective_ids")

Function = Callable[..., Any]


class _Inside(threading.local):
    """Whether this thread is in one of nanprobe's own file calls, which go to the real files."""

    now = False


inside = _Inside()


def guard(original: Function, replacement: Function) -> Function:
    """`replacement` for the script's calls, `original` for those that `replacement` makes itself."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if inside.now:
            return original(*args, **kwargs)
        inside.now = True
        try:
            return replacement(*args, **kwargs)
        finally:
            inside.now = False

    return call


def patch_files(overlay: Overlay, patches: Patches) -> None:
    """Send `open` and the functions of `os` through the overlay, and all of Python's library that is built on them."""
    patched_open = guard(builtins.open, _make_open(overlay, builtins.open))
    patched: dict[Function, Function] = {builtins.open: patched_open}
    for name, replacement in _make_os_functions(overlay):
        original = getattr(os, name)
        patched[original] = guard(original, replacement)
        _keep_support(patches, original, patched[original])
    for holder in _holders():
        for name, value in list(vars(holder).items()):
            # by type(), because isinstance() asks lazy objects for their class, which may warn or import
            value = value.__func__ if type(value) is staticmethod else value
            if type(value) is BuiltinFunctionType and value in patched:
                new = patched[value]
                patches.replace(holder, name, staticmethod(new) if isinstance(holder, type) else new)
    patches.replace(shutil, "_use_fd_functions", False)  # descriptors of directories have no place
    _patch_numpy(patches, patched_open)


def _holders() -> Iterator[Any]:
    """Every module that may have imported one of the functions by name; the import system keeps the real ones."""
    for name, module in list(sys.modules.items()):
        if issubclass(type(module), ModuleType) and name not in ("posix", "nt", "_io", "_pyio", "__main__"):
            yield module
            if name.partition(".")[0] in ("glob", "pathlib"):  # some versions of Python keep them in classes
                yield from (value for value in vars(module).values() if type(value) is type)


def _patch_numpy(patches: Patches, patched_open: Function) -> None:
    """numpy.savetxt opens with what a table of numpy's holds."""
    source = sys.modules.get("numpy.lib._datasource")
    openers = getattr(source, "_file_openers", None)
    if isinstance(table := getattr(openers, "_file_openers", None), dict):
        patches.replace(openers, "_file_openers", {**table, None: patched_open})


def _keep_support(patches: Patches, original: Function, patched: Function) -> None:
    for name in _SUPPORTS:
        if original in (functions := getattr(os, name)):
            patches.replace(os, name, functions | {patched})


def _make_open(overlay: Overlay, original: Function) -> Function:
    def open(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Function | None = None,
    ) -> Any:
        if opener is not None:
            opener = _outside(opener)  # it opens the file, through os.open
        elif isinstance(mode, str):
            file = overlay_path(overlay, file, mode)
        return original(file, mode, buffering, encoding, errors, newline, closefd, opener)

    return open


def _outside(function: Function) -> Function:
    """A function of the script's that is called from within one of ours."""

    def call(*args: Any) -> Any:
        inside.now = False
        try:
            return function(*args)
        finally:
            inside.now = True

    return call


def overlay_path(overlay: Overlay, file: Any, mode: str) -> Any:
    """The path to open in a mode of `open` ("r", "wb", "a+", ...) instead of `file`."""
    if not set(mode) & set("wax+"):
        return overlay.reading(file)
    if "x" in mode and (place := overlay.place(file, follow=False)) is not None and overlay.exists(place):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), file)
    return overlay.writing(file, keep="a" in mode or "r" in mode)


def _make_os_functions(overlay: Overlay) -> Iterator[tuple[str, Function]]:
    table: tuple[tuple[tuple[str, ...], Callable[[Function], Function]], ...] = (
        (_READERS, lambda o: _map_first(o, overlay.reading)),
        (_LINK_READERS, lambda o: _map_first(o, functools.partial(overlay.reading, follow=False))),
        (_CHANGERS, lambda o: _map_first(o, functools.partial(overlay.writing, keep=True))),
        (_LINK_CHANGERS, lambda o: _map_first(o, functools.partial(overlay.writing, keep=True, follow=False))),
        (("mkfifo", "mknod"), lambda o: _map_first(o, functools.partial(overlay.writing, keep=False, follow=False))),
        (("remove", "unlink"), lambda o: _make_remove(overlay, o, directory=False)),
        (("rmdir",), lambda o: _make_remove(overlay, o, directory=True)),
        (("rename", "replace"), lambda o: _make_rename(overlay, o)),
        (("open",), lambda o: _make_os_open(overlay, o)),
        (("mkdir",), lambda o: _make_mkdir(overlay, o)),
        (("link",), lambda o: _make_link(overlay)),
        (("symlink",), lambda o: _make_symlink(overlay, o)),
        (("listdir",), lambda o: _make_listdir(overlay, o)),
        (("scandir",), lambda o: _make_scandir(overlay, o)),
    )
    for names, make in table:
        for name in names:
            if hasattr(os, name):
                yield name, make(getattr(os, name))
    yield "chdir", overlay.change_directory
    yield "getcwd", overlay.directory


def _is_relative_to_descriptor(kwargs: dict[str, Any]) -> bool:
    return any(kwargs.get(name) is not None for name in ("dir_fd", "src_dir_fd", "dst_dir_fd"))


def _map_first(original: Function, map_path: Function) -> Function:
    def call(path: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_relative_to_descriptor(kwargs):
            return original(path, *args, **kwargs)
        if kwargs.get("follow_symlinks") is False:
            return original(map_path(path, follow=False), *args, **kwargs)
        return original(map_path(path), *args, **kwargs)

    return call


def _make_remove(overlay: Overlay, original: Function, *, directory: bool) -> Function:
    def remove(path: Any, **kwargs: Any) -> None:
        place = None if _is_relative_to_descriptor(kwargs) else overlay.place(path, follow=False)
        if place is None:
            original(path, **kwargs)
        else:
            overlay.remove(place, directory=directory)

    return remove


def _make_rename(overlay: Overlay, original: Function) -> Function:
    def rename(src: Any, dst: Any, **kwargs: Any) -> None:
        free = overlay.place(src, follow=False) is None and overlay.place(dst, follow=False) is None
        if free or _is_relative_to_descriptor(kwargs):
            original(src, dst, **kwargs)
        else:
            overlay.rename(src, dst)

    return rename


def _make_os_open(overlay: Overlay, original: Function) -> Function:
    def open(path: Any, flags: int, mode: int = 0o777, **kwargs: Any) -> Any:
        if _is_relative_to_descriptor(kwargs) or _is_scratch(overlay, path):
            return original(path, flags, mode, **kwargs)
        if _TMPFILE and flags & _TMPFILE == _TMPFILE:
            return original(overlay.writing(path, keep=True), flags, mode)
        if not flags & _WRITE_FLAGS:
            return original(overlay.reading(path), flags, mode)
        exclusive = flags & os.O_CREAT and flags & os.O_EXCL
        if exclusive and (place := overlay.place(path, follow=False)) is not None and overlay.exists(place):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        fresh = flags & os.O_CREAT and flags & os.O_TRUNC
        return original(overlay.writing(path, keep=not fresh), flags, mode)

    return open


def _make_mkdir(overlay: Overlay, original: Function) -> Function:
    def mkdir(path: Any, mode: int = 0o777, **kwargs: Any) -> None:
        place = overlay.place(path, follow=False)
        if place is None or _is_scratch(overlay, path) or _is_relative_to_descriptor(kwargs):
            original(path, mode, **kwargs)
        else:
            overlay.make_directory(place)

    return mkdir


def _is_scratch(overlay: Overlay, path: Any) -> bool:
    """Whether `tempfile` makes this path in the system's directory for such files: nobody's, so it is made for real."""
    caller = sys._getframe(3)  # above this one, the replacement and its guard
    if caller.f_globals.get("__name__") != "tempfile":
        return False
    return caller.f_code.co_name == "_get_default_tempdir" or overlay.take_scratch(path)


def _make_link(overlay: Overlay) -> Function:
    def link(src: Any, dst: Any, **kwargs: Any) -> None:
        place = overlay.place(dst, follow=False)
        if place is not None and overlay.exists(place):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), src, None, dst)
        # a copy, so that writing to one name never reaches a real file through the other
        shutil.copy2(overlay.reading(src), overlay.writing(dst, keep=False, follow=False))

    return link


def _make_symlink(overlay: Overlay, original: Function) -> Function:
    def symlink(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
        place = overlay.place(dst, follow=False)
        if place is None or _is_relative_to_descriptor(kwargs):
            original(src, dst, *args, **kwargs)
        else:
            overlay.link(src, dst, place)

    return symlink


def _make_listdir(overlay: Overlay, original: Function) -> Function:
    def listdir(path: Any = ".") -> list[Any]:
        names = overlay.names(path)
        if names is None:
            return list(original(overlay.reading(path)))
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    return listdir


def _make_scandir(overlay: Overlay, original: Function) -> Function:
    def scandir(path: Any = ".") -> Any:
        names = overlay.names(path)
        if names is None:
            return original(overlay.reading(path))
        return Entries(os.fsdecode(path), names)

    return scandir


class Entries:
    """What `os.scandir` gives, of a directory that the script has changed."""

    def __init__(self, folder: str, names: list[str]) -> None:
        self._entries = iter([Entry(folder, name) for name in names])

    def __iter__(self) -> Entries:
        return self

    def __next__(self) -> Entry:
        return next(self._entries)

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def close(self) -> None:
        """As of os.scandir's iterator."""
        self._entries = iter([])


class Entry:
    """As os.DirEntry; asks through the patched functions, so it sees what the script has left."""

    def __init__(self, folder: str, name: str) -> None:
        self.name, self.path = name, os.path.join(folder, name)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """As of os.DirEntry."""
        return os.stat(self.path) if follow_symlinks else os.lstat(self.path)

    def inode(self) -> int:
        """As of os.DirEntry."""
        return os.lstat(self.path).st_ino

    def is_symlink(self) -> bool:
        """As of os.DirEntry."""
        return os.path.islink(self.path)

    def is_junction(self) -> bool:
        """As of os.DirEntry (Python 3.12); the overlay knows only plain files, directories and links."""
        return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """As of os.DirEntry."""
        return os.path.isdir(self.path) and (follow_symlinks or not self.is_symlink())

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """As of os.DirEntry."""
        return os.path.isfile(self.path) and (follow_symlinks or not self.is_symlink())
