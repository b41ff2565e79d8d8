"""Nothing of the user's is overwritten: the overlay put in place, and a watch for what slips past it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from nanprobe.patching import Patches
from nanprobe.target.file_patches import inside, patch_files
from nanprobe.target.library_patches import ImportWatch, patch_libraries
from nanprobe.target.overlay import Overlay
from nanprobe.target.respawn import SpawnWatch

_SHOWN = 5
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"}
_PROGRAMS = {"subprocess.Popen", "os.posix_spawn", "os.exec", "os.spawn", "os.system"}
# Programs that libraries start to learn about the machine.
_READING_PROGRAMS = {
    "git",
    "uname",
    "lscpu",
    "lspci",
    "ldconfig",
    "nvidia-smi",
    "which",
    "sysctl",
    "sw_vers",
    "hostname",
}


class WriteWatch:
    """Notes the files that were written past the overlay, and the programs that were started."""

    def __init__(self, overlay: Overlay, spawned: SpawnWatch) -> None:
        self._overlay, self._spawned = overlay, spawned
        self._files: dict[str, None] = {}
        self._programs: dict[str, None] = {}
        self.on = True

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """The audit hook; cannot be taken out again, only switched off."""
        if not self.on or inside.now:
            return
        if event == "open":
            if isinstance(args[2], int) and args[2] & _WRITE_FLAGS:
                self._note_file(args[0])
        elif event in _CHANGES:
            self._note_file(args[0])
        elif event in _PROGRAMS:
            self._note_program(args[0])

    def _note_file(self, path: Any) -> None:
        if len(self._files) > _SHOWN:
            return
        inside.now = True
        try:
            if isinstance(path, (str, bytes)) and (place := self._overlay.place(path)) is not None:
                self._files[place] = None
        except OSError:
            pass
        finally:
            inside.now = False

    def _note_program(self, command: Any) -> None:
        words = os.fsdecode(command).split() if isinstance(command, (str, bytes, os.PathLike)) else []
        name = os.path.basename(words[0]) if words else "?"
        if name not in _READING_PROGRAMS and len(self._programs) <= _SHOWN:
            self._programs[name] = None

    def notices(self, steps: int) -> Iterator[str]:
        """What the user should know, one sentence each, after a run of so many steps."""
        if self._spawned.count and not steps:
            yield (
                "the script started processes of its own and no step was seen in its first one; nanprobe watches that "
                "one only: train in it (one process, no launcher)"
            )
        if self._files:
            yield f"the script wrote files that nanprobe could not redirect: {_enumerate(self._files)}"
        if self._programs:
            yield f"the script started other programs, whose writes are not redirected: {_enumerate(self._programs)}"


@contextlib.contextmanager
def protect_files(overlay: Overlay) -> Iterator[WriteWatch]:
    """Send every write of this process to the overlay until the context ends."""
    patches = Patches()
    libraries, spawned = patch_everything(overlay, patches)
    watch = WriteWatch(overlay, spawned)
    sys.addaudithook(watch)
    try:
        yield watch
    finally:
        watch.on = False
        libraries.stop()
        patches.undo()


def patch_everything(overlay: Overlay, patches: Patches) -> tuple[ImportWatch, SpawnWatch]:
    """Put an overlay in place, in this process and those it starts with multiprocessing."""
    libraries = patch_libraries(overlay, patches)
    spawned = SpawnWatch(overlay, patches)
    patch_files(overlay, patches)
    patches.replace(sys, "dont_write_bytecode", True)  # the import system writes past every patch
    return libraries, spawned


def _enumerate(names: dict[str, None]) -> str:
    shown = list(names)[:_SHOWN]
    return ", ".join(shown) + (" and more" if len(names) > _SHOWN else "")
