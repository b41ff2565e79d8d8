"""Fresh interpreters that `multiprocessing` starts for the script: their writes go to the same overlay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nanprobe
from nanprobe.patching import Patches
from nanprobe.target.overlay import Overlay

# Runs first in the new interpreter, before what multiprocessing has it run.
_PREFIX = (
    "import sys; sys.path.append({root!r}); from nanprobe.target.respawn import protect; sys.path.remove({root!r}); "
    "protect({state!r}); "
)


class SpawnWatch:
    """Prepares each interpreter that multiprocessing starts (spawn, forkserver), and counts them."""

    def __init__(self, overlay: Overlay, patches: Patches) -> None:
        self.count = 0
        self._overlay = overlay
        import multiprocessing.util as starter  # late: most scripts load it, the parent need not

        patches.wrap(starter, "spawnv_passfds", lambda original: lambda *args: original(*self._prepare(*args)))

    def _prepare(self, path: Any, args: list[Any], descriptors: Any) -> tuple[Any, list[Any], Any]:
        args = list(args)
        at = args.index("-c") + 1 if "-c" in args else len(args)
        if at < len(args) and "resource_tracker" not in str(args[at]):
            self.count += 1
            root = str(Path(nanprobe.__file__).parent.parent)
            args[at] = _PREFIX.format(root=root, state=json.dumps(self._overlay.state())) + args[at]
        return path, args, descriptors


def protect(state: str) -> None:
    """Protect the user's files in this interpreter from now to its end."""
    from nanprobe.target.protection import patch_everything

    overlay = Overlay.from_state(json.loads(state))
    patch_everything(overlay, Patches())
