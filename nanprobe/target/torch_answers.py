"""What torch says of itself, as one line of JSON on stdout; run in a process of its own by `nanprobe.machine`."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch


def answer() -> dict[str, Any]:
    """Build, devices and numeric settings. What this build of torch cannot tell is None."""
    return {
        "version": torch.__version__,
        "cuda_build": torch.version.cuda,
        "hip_build": torch.version.hip,
        "cudnn": _ask(torch.backends.cudnn.version),
        "cuda_available": torch.cuda.is_available(),
        "no_cuda_because": _explain_no_cuda(),
        "devices": _list_devices(),
        "mps_available": _ask(torch.backends.mps.is_available),
        "cpu_capability": _ask(torch.backends.cpu.get_cpu_capability),
        "threads": torch.get_num_threads(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "float32_matmul_precision": _ask(torch.get_float32_matmul_precision),
        "tf32_matmul": _ask(lambda: torch.backends.cuda.matmul.allow_tf32),
        "tf32_cudnn": _ask(lambda: torch.backends.cudnn.allow_tf32),
        "fp16_reduced_precision_reduction": _ask(
            lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
        ),
    }


def _list_devices() -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        of = torch.cuda.get_device_properties(index)
        found.append({"name": of.name, "capability": f"{of.major}.{of.minor}", "memory": of.total_memory})
    return found


def _explain_no_cuda() -> str | None:
    """Why there is no CUDA device; None when there is one."""
    if torch.cuda.is_available():
        return None
    if torch.version.cuda is None and torch.version.hip is None:
        return "this build of torch has no CUDA"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return " ".join(str(error).split())
    return None


def _ask(question: Callable[[], Any]) -> Any:
    try:
        found = question()
    except (AttributeError, RuntimeError):
        return None
    return found if found is None or isinstance(found, (bool, int, float)) else str(found)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.stdout.write("\n" + json.dumps(answer()) + "\n")
