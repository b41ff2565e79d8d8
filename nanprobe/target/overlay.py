"""A layer over the user's files: what a script writes, renames or deletes is kept apart, and read back from there.

Two trees under one root. `files` holds every file and directory the script has made or changed, at its own absolute
path; `deleted` holds a marker for each real file the script believes it has removed. The trees are the whole state, so
forked workers see what their parent wrote. A *place* is the absolute path a script means; *where* is the path that
holds it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any

from nanprobe.records import Target

_MARKER = ".deleted"
_DEVICES = ("/dev", "/proc", "/sys")
_REMEMBERED = 10_000
_HOPS = 40  # Source: MAXSYMLINKS of Linux
# Caches are there to be written, are shared between stages and tools, and hold nothing a user made.
_CACHE_VARIABLES = (
    "XDG_CACHE_HOME",
    "TORCH_HOME",
    "TORCH_EXTENSIONS_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_DATASETS_CACHE",
    "MPLCONFIGDIR",
    "NUMBA_CACHE_DIR",
    "CUDA_CACHE_PATH",
)
_CACHE_FOLDERS = ("~/.cache", "~/.triton", "~/.nv", "~/.config/matplotlib", "~/Library/Caches")


class Overlay:
    """Says for each path where it is to be read and where it is to be written.

    Left alone are the run directory, devices, caches, and what the script itself makes with `tempfile`; never left
    alone is anything else in the script's directory or the working directory.
    """

    def __init__(self, root: Path, target: Target, *, run_directory: Path | None = None) -> None:
        self._root = str(root)
        self._files, self._deleted = os.path.join(root, "files"), os.path.join(root, "deleted")
        self._folders: dict[str, str] = {}  # directories already resolved, as long as the overlay has no link
        self._cwd: str | None = None  # where the script believes it is, once it has gone somewhere only the overlay has
        own = [os.getcwd()] if target.mode == "module" else [os.getcwd(), os.path.dirname(os.path.abspath(target.path))]
        variables = [os.environ[name] for name in _CACHE_VARIABLES if os.environ.get(name)]
        caches = [*variables, *map(os.path.expanduser, _CACHE_FOLDERS)]
        self._own = _as_trees(map(os.path.realpath, own))
        self._free = _as_trees([os.path.realpath(run_directory or root), *_DEVICES])
        self._caches = _as_trees(map(os.path.realpath, caches))
        self._scratch: tuple[str, ...] = ()
        self._has_links = False  # whether the script has made or removed a link
        before = tempfile.tempdir
        self._temporary = os.path.realpath(tempfile.gettempdir())
        tempfile.tempdir = before  # a script may still set TMPDIR

    def state(self) -> dict[str, Any]:
        """All of it, for another process."""
        return {name: value for name, value in vars(self).items() if name != "_folders"}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Overlay:
        """The overlay another process has, as far as it was when `state` was asked for."""
        overlay = cls.__new__(cls)
        tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in state.items()}
        vars(overlay).update(tuples, _folders={})
        return overlay

    # places

    def place(self, path: Any, *, follow: bool = True) -> str | None:
        """The absolute path meant, links followed; None for a file descriptor and for what is left alone."""
        if isinstance(path, int):
            return None
        try:
            text = os.fsdecode(path)
        except TypeError:
            return None  # no path at all; the real function says so
        if not text:
            return None
        absolute = os.path.join(self._cwd or os.getcwd(), text)
        head, name = os.path.split(absolute.rstrip(os.sep) or os.sep)
        if name in ("", ".", ".."):
            place = self._resolve(absolute, _HOPS)
        else:
            place = os.path.join(self._resolve_folder(head), name)
            if follow and (where := self._where(place)) is not None and os.path.islink(where):
                place = self._resolve(place, _HOPS)
        return None if self._is_free(place) else place

    def _resolve_folder(self, path: str) -> str:
        if self._has_links:
            return self._resolve(path, _HOPS)
        if path not in self._folders:
            if len(self._folders) > _REMEMBERED:
                self._folders.clear()
            self._folders[path] = os.path.realpath(path)
        return self._folders[path]

    def _resolve(self, path: str, hops: int) -> str:
        parent, name = os.path.split(path)
        if parent == path:
            return path
        parent = self._resolve(parent, hops)
        if name in ("", "."):
            return parent
        if name == "..":
            return os.path.dirname(parent)
        place = os.path.join(parent, name)
        where = self._where(place)
        if where is None or not os.path.islink(where):
            return place
        if hops == 0:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        return self._resolve(os.path.join(parent, os.readlink(where)), hops - 1)

    def _is_free(self, place: str) -> bool:
        inside = place + os.sep
        if inside.startswith(self._free + self._scratch):
            return True
        return inside.startswith(self._caches) and not inside.startswith(self._own)

    def take_scratch(self, path: Any) -> bool:
        """Leave a path alone from now on, if it stands in the system's directory for temporary files."""
        place = self.place(path, follow=False)
        if place is None:
            return True
        temporary = {self._temporary, os.path.realpath(os.fsdecode(tempfile.tempdir or self._temporary))}
        if os.path.dirname(place) not in temporary:
            return False
        self._scratch += _as_trees([place])
        return True

    def _where(self, place: str) -> str | None:
        """The path that holds a place; None when the script has deleted it."""
        ours = _under(self._files, place)
        if os.path.lexists(ours):
            return ours
        return None if os.path.lexists(_under(self._deleted, place) + _MARKER) else place

    def _is_used(self) -> bool:
        return self._cwd is not None or os.path.lexists(self._root)

    # reading

    def reading(self, path: Any, *, follow: bool = True) -> Any:
        """The path to read instead of `path`; `path` itself where the script has changed nothing."""
        if not self._is_used() or (place := self.place(path, follow=follow)) is None:
            return path
        where = self._where(place)
        if where is None:
            return _under(self._files, place)  # is not there, as the script expects
        return path if where == place and self._cwd is None and not self._has_links else where

    def exists(self, place: str) -> bool:
        """Whether the script would find something at a place, be it a broken link."""
        where = self._where(place)
        return where is not None and os.path.lexists(where)

    def names(self, path: Any) -> list[str] | None:
        """The names in a directory as the script has left it; None where the real one tells."""
        if not self._is_used() or (place := self.place(path)) is None:
            return None
        ours, markers = _under(self._files, place), _under(self._deleted, place)
        if not os.path.isdir(ours) and not os.path.isdir(markers):
            return None
        gone = {name.removesuffix(_MARKER) for name in _list(markers) if name.endswith(_MARKER)}
        real = [] if os.path.lexists(markers + _MARKER) and not os.path.isdir(ours) else _list(place)
        return list(dict.fromkeys([*(name for name in real if name not in gone), *_list(ours)]))

    # writing

    def writing(self, path: Any, *, keep: bool, follow: bool = True) -> Any:
        """The path to write instead of `path`; with `keep`, it holds what the script expects to find there.

        Raises FileNotFoundError when the directory it is to stand in is not there for the script.
        """
        place = self.place(path, follow=follow)
        if place is None or _is_special(place):
            return path
        ours = _under(self._files, place)
        if keep:
            self._copy_up(place)
        if not os.path.lexists(ours):
            self._make_parent(place)
        return ours

    def _copy_up(self, place: str) -> None:
        where = self._where(place)
        if where != place or not os.path.lexists(place):
            return
        self._make_parent(place)
        if os.path.isdir(place) and not os.path.islink(place):
            os.mkdir(_under(self._files, place))
        else:
            self._has_links = self._has_links or os.path.islink(place)
            shutil.copy2(place, _under(self._files, place), follow_symlinks=False)

    def _make_parent(self, place: str) -> None:
        parent = os.path.dirname(place)
        where = self._where(parent)
        if where is None or not os.path.isdir(where):
            kind = errno.ENOTDIR if where is not None and os.path.lexists(where) else errno.ENOENT
            raise OSError(kind, os.strerror(kind), place)
        os.makedirs(_under(self._files, parent), exist_ok=True)

    def make_directory(self, place: str) -> None:
        """As os.mkdir."""
        if self.exists(place):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), place)
        self._make_parent(place)
        os.mkdir(_under(self._files, place))

    def remove(self, place: str, *, directory: bool = False) -> None:
        """As os.remove or os.rmdir; a real file stays where it is and is no longer seen."""
        where = self._where(place)
        if where is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place)
        is_directory = stat.S_ISDIR(os.lstat(where).st_mode)
        if is_directory != directory:
            kind = errno.EISDIR if is_directory else errno.ENOTDIR
            raise OSError(kind, os.strerror(kind), place)
        if directory and (_list(where) if (names := self.names(place)) is None else names):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), place)
        if where != place:
            (os.rmdir if directory else os.remove)(where)
        if os.path.lexists(place):
            self._mark_deleted(place)

    def _mark_deleted(self, place: str) -> None:
        self._has_links = self._has_links or os.path.islink(place)
        marker = _under(self._deleted, place) + _MARKER
        os.makedirs(os.path.dirname(marker), exist_ok=True)
        open(marker, "wb").close()

    def link(self, target: Any, path: Any, place: str) -> None:
        """As os.symlink, at a place."""
        if self.exists(place):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target, None, path)
        self._has_links = True
        os.symlink(target, self.writing(path, keep=False, follow=False))

    def rename(self, source: Any, target: Any) -> None:
        """As os.replace; either side may be one that is left alone."""
        old, new = self.place(source, follow=False), self.place(target, follow=False)
        if old is not None and not self.exists(old):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source, None, target)
        if old is not None:
            self._copy_up_tree(old)
        if new is not None:
            self._make_parent(new)
            if self.names(new) if os.path.isdir(_under(self._files, new)) else self._is_filled_directory(new):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), source, None, target)
        held = source if old is None else _under(self._files, old)
        goal = target if new is None else _under(self._files, new)
        try:
            os.replace(held, goal)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            shutil.move(held, goal)
        if old is not None:
            self._mark_tree_deleted(old)

    def _is_filled_directory(self, place: str) -> bool:
        return self._where(place) == place and os.path.isdir(place) and bool(self.names(place) or _list(place))

    def _copy_up_tree(self, place: str) -> None:
        self._copy_up(place)
        for name in self.names(place) or ():
            self._copy_up_tree(os.path.join(place, name))

    def _mark_tree_deleted(self, place: str) -> None:
        if not os.path.lexists(place):
            return
        self._mark_deleted(place)
        if os.path.isdir(place) and not os.path.islink(place):
            for name in _list(place):
                self._mark_tree_deleted(os.path.join(place, name))

    # the working directory

    def change_directory(self, path: Any) -> None:
        """As os.chdir, also into a directory that only the script believes in."""
        place = self.place(path)
        where = None if place is None else self._where(place)
        if place is not None and where is not None and os.path.isdir(place):
            os.chdir(place)
            self._cwd = None
        elif place is not None:
            os.chdir(where or _under(self._files, place))
            self._cwd = place
        else:
            os.chdir(os.path.join(self._cwd, os.fsdecode(path)) if self._cwd and not isinstance(path, int) else path)
            self._cwd = None

    def directory(self) -> str:
        """As os.getcwd."""
        return self._cwd or os.getcwd()


def _as_trees(paths: Any) -> tuple[str, ...]:
    return tuple(os.path.join(path, "") for path in paths)


def _under(tree: str, place: str) -> str:
    drive, rest = os.path.splitdrive(place)
    return os.path.join(tree, drive.replace(":", "").strip("\\/"), rest.lstrip("\\/"))


def _list(path: str) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(path)
    return []


def _is_special(place: str) -> bool:
    """Whether a pipe, a socket or a device stands at a place: writing to it overwrites nothing."""
    try:
        mode = os.stat(place).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
