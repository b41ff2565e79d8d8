"""What a bug report has to say of the machine: versions, hardware, settings. Asked without loading torch.

What only torch knows is asked in a child process, so that a broken or a hanging torch is an answer, too.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

TORCH_TIMEOUT = 60.0  # seconds; a first import from a network drive is slow
_QUESTIONS = "nanprobe.target.torch_answers"

PACKAGES = (
    *("nanprobe", "torch", "numpy", "pandas", "transformers", "lightning", "pytorch-lightning", "accelerate"),
    *("deepspeed", "torchvision", "torchaudio", "triton", "safetensors", "typer", "rich"),
)
VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE"),
    *("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
    *("PYTORCH_NO_CUDA_MEMORY_CACHING", "TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "TORCHINDUCTOR_CACHE_DIR"),
    *("TORCH_LOGS", "TORCH_DEVICE_BACKEND_AUTOLOAD"),
    *("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "MKL_ENABLE_INSTRUCTIONS"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "KMP_AFFINITY", "LD_PRELOAD", "PYTHONHASHSEED"),
    *("ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_CPU", "RANK", "LOCAL_RANK", "WORLD_SIZE", "WANDB_MODE"),
    *("XDG_CACHE_HOME", "TMPDIR", "CI"),
)  # fmt: skip
# Whether they are set can matter; what they are set to is nobody's business.
SECRETS = (
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "COMET_API_KEY", "NEPTUNE_API_TOKEN"),
    *("MLFLOW_TRACKING_TOKEN", "CLEARML_API_SECRET_KEY"),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine as nanprobe sees it."""

    packages: dict[str, str]  # version by name, of those that are installed
    python: str
    executable: str
    system: str
    cpu: str
    cores: int  # usable by this process
    memory: int | None  # bytes; of the container, where it has less than the machine
    torch: dict[str, Any] | None  # what torch says of itself; None when it does not
    torch_problem: str | None  # why it does not
    variables: dict[str, str]  # of VARIABLES, those that are set
    secrets: tuple[str, ...]  # of SECRETS, those that are set
    runs_folder: str
    runs: int  # kept there
    fp16: str = field(default="")  # whether FP16 is native here, and why


def survey_machine(runs_folder: str, runs: int, torch_timeout: float = TORCH_TIMEOUT) -> Machine:
    """Everything there is to say; takes as long as importing torch, and never raises because of it."""
    answers, problem = ask_torch(torch_timeout)
    return Machine(
        packages=list_packages(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        executable=sys.executable,
        system=platform.platform(),
        cpu=name_cpu(),
        cores=count_cores(),
        memory=measure_memory(),
        torch=answers,
        torch_problem=problem,
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
        secrets=tuple(name for name in SECRETS if name in os.environ),
        runs_folder=runs_folder,
        runs=runs,
        fp16=explain_fp16(answers, problem),
    )


def list_packages() -> dict[str, str]:
    """Versions as the installer wrote them down; nothing is imported."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def ask_torch(timeout: float) -> tuple[dict[str, Any] | None, str | None]:
    """What torch says of itself in a process of its own, else why it says nothing."""
    # The child looks for modules where this process does, whatever lies in the working directory.
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; import runpy; runpy.run_module({_QUESTIONS!r}, run_name='__main__')"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, errors="replace", timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"importing torch took more than {timeout:g} s"
    except OSError as error:
        return None, f"{sys.executable} could not be started: {error.strerror or error}"
    if done.returncode:
        return None, _explain_failure(done.returncode, done.stderr)
    try:
        answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return None, "torch was imported, but the process ended without an answer"
    return answers, None


def explain_fp16(answers: Mapping[str, Any] | None, problem: str | None) -> str:
    """Where the fp16 and amp stages compute, and why there."""
    if answers is None:
        return f"could not tell: {problem}"
    if answers.get("cuda_available"):
        return "native: the amp stage runs on the GPU, with its own kernels (--device auto)"
    why = answers.get("no_cuda_because") or "torch sees no CUDA device"
    return f"emulated on the CPU, with CUDA's autocast lists and rounding, because {why}"


def name_cpu() -> str:
    """The processor's model, as far as the system tells."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def count_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def measure_memory() -> int | None:
    """Bytes of memory; None where the system does not tell. Source: Linux, Control Group v2, memory.max."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no limit is the word "max"
        return total
    return min(total, limit)


def _explain_failure(status: int, stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    said = f": {lines[-1]}" if lines else ""
    return f"torch cannot be imported (exit status {status}){said}" if status > 0 else f"importing torch crashed{said}"
