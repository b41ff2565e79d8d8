"""A stage in an interpreter of its own, where there is no fork: the request comes on standard input."""

from __future__ import annotations

import os
import pickle
import sys
import traceback

from nanprobe.target.child import run_child
from nanprobe.target.status import INTERNAL_ERROR_STATUS


def main() -> None:
    """Read the request, run the stage, and end the process with its status."""
    request = pickle.load(sys.stdin.buffer)
    status = INTERNAL_ERROR_STATUS
    try:
        status = run_child(request, None)
    except BaseException:
        traceback.print_exc()
    os._exit(status)
