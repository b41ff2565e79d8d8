"""Wall time of whole commands, as a person waits for them."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NANPROBE = Path(sys.executable).with_name("nanprobe")
DEMO = Path(__file__).parent.parent / "examples" / "fp16_overflow.py"


def help_seconds(runs: int = 9) -> float:
    """Median seconds of `nanprobe --help`, files already in the page cache."""
    return statistics.median(seconds([str(NANPROBE), "--help"], 0) for _ in range(runs + 1))


def demo_seconds() -> float:
    """Seconds from command to verdict on the demo."""
    with tempfile.TemporaryDirectory() as directory:
        return seconds([str(NANPROBE), "diagnose", str(DEMO), "--output", f"{directory}/run"], 1)


def seconds(command: list[str], expected_code: int) -> float:
    """Wall time of one command, which must end with `expected_code`."""
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    elapsed = time.perf_counter() - start
    if done.returncode != expected_code:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return elapsed
