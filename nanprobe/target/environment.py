"""The process a stage runs in: its session, its streams, its seeds, and the services that are switched off in it."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import random
import sys
from pathlib import Path
from typing import TextIO

from nanprobe.target import processes
from nanprobe.target.status import STACK_FILE, STACK_SIGNAL

# Experiment trackers would put 50 steps of a diagnosis among the user's real runs. The hub of Hugging Face is left
# alone: nanprobe uses no network itself, but a script may have to fetch its model.
TRACKERS_OFF = {
    "WANDB_MODE": "disabled",
    "WANDB_SILENT": "true",
    "COMET_MODE": "DISABLED",
    "COMET_DISABLED": "true",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "disabled",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
}

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # Source: glibc malloc.h
_MMAP_THRESHOLD_BYTES = 1 << 30
_TRIM_THRESHOLD_BYTES = (1 << 31) - 1


def isolate() -> None:
    """Make this process the head of a session of its own that ends with its parent."""
    if hasattr(os, "setsid"):
        with contextlib.suppress(OSError):  # it is one already
            os.setsid()
    parent = os.getppid()
    processes.die_with_parent()
    if parent != os.getppid():  # it ended before the line above
        os._exit(1)


def redirect_streams(output: int | None) -> None:
    """Standard input is empty; what the script, its C code and its workers print goes to `output`, if there is one."""
    with open(os.devnull, "rb") as empty:
        os.dup2(empty.fileno(), 0)
    if output is not None:
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = _open_text(1)
    sys.stderr = _open_text(2)
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)


def _open_text(descriptor: int) -> TextIO:
    # a line at a time, as on a terminal, so that a crash loses none; and no name or path makes printing fail
    return os.fdopen(descriptor, "w", 1, "utf-8", "backslashreplace", closefd=False)


def watch_for_crashes(directory: Path) -> None:
    """Write where the script stands to a file, on a crash in native code or when the launcher asks."""
    file = (directory / STACK_FILE).open("w", encoding="utf-8")  # as long as the process lives
    faulthandler.enable(file, all_threads=False)
    if STACK_SIGNAL is not None:
        faulthandler.register(STACK_SIGNAL, file, all_threads=False)


def switch_trackers_off() -> None:
    """Turn experiment trackers off for this process and those it starts."""
    os.environ.update(TRACKERS_OFF)


def keep_freed_memory() -> None:
    """Let the C library reuse the memory of big tensors instead of handing it back page by page (glibc)."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)


def seed_everything(seed: int) -> None:
    """Seed torch, numpy and random, before the script has its own say."""
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        import numpy

        numpy.random.seed(seed % 2**32)
