"""Memory, in a fresh process for each figure: `python -m benchmarks.memory MODEL CONTENDER` prints one line of JSON.

Linux only (peak resident size is reset through /proc). Blocks above 64 KB are given back at once, so that the resident
size follows what is alive.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch is only loaded in the measured process
    from benchmarks import models
    from benchmarks.timing import Contender

STEPS = 3


def measure(model: str, contender: str) -> dict[str, float]:
    """Bytes in use after `STEPS` steps, peak bytes of the step after them, and bytes of the parameters."""
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, "-m", "benchmarks.memory", model, contender]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main(model: str, contender: str) -> None:
    """Trains and prints the figures."""
    from benchmarks import models
    from benchmarks.contenders import contenders

    def way_with(build: Callable[[], models.Trainer]) -> Contender:
        return next(c for c in contenders(build) if c.name == contender)

    # A throw-away step loads kernels, thread pools and lazily imported modules, which are not the trainer's memory.
    tiny = way_with(partial(models.transformer, layers=1, dim=32, batch=2, length=8))
    with tiny.enter(small := tiny.build()):
        small.step()
    del small
    gc.collect()
    way = way_with({**models.MODELS, "wide_mlp": models.wide_mlp}[model])
    before = resident()
    trainer = way.build()
    with way.enter(trainer):
        for _ in range(STEPS):
            trainer.step()
        gc.collect()
        after = resident()
        reset_peak()
        trainer.step()
        peak = peak_resident()
    print(json.dumps({"held": after - before, "peak": peak - before, "parameters": trainer.parameter_bytes}))


def resident() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def reset_peak() -> None:
    """Starts the peak anew at what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_resident() -> int:
    """Most bytes resident since `reset_peak`."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
